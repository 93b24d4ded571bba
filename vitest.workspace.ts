import { defineConfig } from "vitest/config"

/** Folder of each project, whose name it is. */
const projects: { readonly [name: string]: string } = {
  core: "packages/core",
  native: "packages/native",
  testing: "packages/testing",
  "backend-torch-copy": "packages/backend-torch-copy",
  gpu: "packages/gpu",
  simulators: "packages/simulators",
  "backend-cuda": "packages/backend-cuda",
  "backend-nvshmem": "packages/backend-nvshmem",
  "backend-xpu": "packages/backend-xpu",
  bus: "packages/bus",
  cli: "packages/cli",
  golden: "golden"
}

const isFull = process.env.TENSORFERRY_TEST_FULL !== undefined

/** What takes longer than a default run has time for. */
const onlyInFull: { readonly [name: string]: Array<string> } = {
  core: ["test/Fuzz.test.ts", "test/group/ProcessGroupTcp.test.ts"],
  "backend-torch-copy": ["test/Baseline.test.ts", "test/Mesh.test.ts", "test/Tcp.test.ts"],
  bus: ["test/CudaProcesses.test.ts"],
  "backend-cuda": ["test/PlantedFaults.test.ts", "test/Pairs.test.ts", "test/Processes.test.ts", "test/Seeds.test.ts"],
  "backend-nvshmem": ["test/PlantedFaults.test.ts", "test/Seeds.test.ts"],
  cli: [
    "test/Families.test.ts",
    "test/MeshCommand.test.ts",
    "test/RankFreeze.test.ts",
    "test/Output.test.ts",
    "test/BrokenFiles.test.ts",
    "test/Checkpoints.test.ts",
    "test/Launcher.test.ts",
    "test/Observe.test.ts",
    "test/BackendsCommand.test.ts",
    "test/ReplayCommand.test.ts",
    "test/Fuzz.test.ts",
    "test/Conversion.test.ts"
  ],
  examples: ["test/reference.test.ts", "test/tarballs.test.ts"]
}

/** One project per package; test files live in its `test`. */
export default defineConfig({
  test: {
    // Most tests wait for processes and deadlines; by default two processors would get a single worker.
    maxWorkers: 2,
    projects: [
      ...Object.entries(projects).map(([name, root]) => ({
        extends: true as const,
        test: {
          name,
          root,
          include: ["test/**/*.test.ts"],
          exclude: isFull ? [] : (onlyInFull[name] ?? []),
          testTimeout: 120_000,
          hookTimeout: 120_000
        }
      })),
      // Examples run on the packed packages, as strangers install them.
      {
        extends: true as const,
        test: {
          name: "examples",
          root: "examples",
          include: ["test/**/*.test.ts"],
          exclude: isFull ? [] : onlyInFull.examples!,
          globalSetup: ["test/setup.ts"],
          testTimeout: 300_000
        }
      }
    ]
  }
})
