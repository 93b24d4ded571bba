// SPDX-License-Identifier: Apache-2.0
import { existsSync, readdirSync } from "node:fs"
import * as path from "node:path"
import { defineConfig } from "vitest/config"
import { BaseSequencer, type TestSpecification } from "vitest/node"

const root = import.meta.dirname

/** Which files a run takes, by their names; see CONTRIBUTING. */
const kinds = {
  /** What `make test` has time for. */
  usual: { include: ["test/**/*.test.ts"], exclude: ["**/*.full.test.ts", "**/*.soak.test.ts"] },
  /** What takes minutes: `make test-full`, in CI. */
  full: { include: ["test/**/*.full.test.ts"], exclude: [] },
  /** Everything, with the counts and seeds of hours. */
  soak: { include: ["test/**/*.test.ts"], exclude: [] }
}

const kindOf = (name: string): keyof typeof kinds => {
  if (name === "usual" || name === "full" || name === "soak") return name
  throw new Error(`TENSORFERRY_TESTS is "${name}"; it may be usual, full or soak`)
}

const kind = kindOf(process.env.TENSORFERRY_TESTS ?? "usual")
const files = kinds[kind]

/** Files of minutes, the longest first. */
const longest = [
  "backend-torch-copy/test/Sanitizers.full.test.ts",
  "gpu/test/Sanitizers.full.test.ts",
  "cli/test/Pages.full.test.ts",
  "examples/test/tarballs.full.test.ts",
  "simulators/test/gpuSimulator.full.test.ts",
  "backend-tcp/test/Sanitizers.full.test.ts",
  "backend-xpu/test/Sanitizers.full.test.ts",
  "backend-ucx/test/Hosts.soak.test.ts",
  "backend-ucx/test/Sanitizers.soak.test.ts",
  "bus/test/Sanitizers.full.test.ts",
  "model/test/Fuzz.full.test.ts",
  "backend-nvshmem/test/Sanitizers.full.test.ts",
  "golden/test/nativeRules.full.test.ts",
  "core/test/group/ProcessGroupTcp.full.test.ts",
  "backend-tcp/test/Hosts.full.test.ts",
  "bus/test/Kills.full.test.ts",
  "gpu/test/Kernels.full.test.ts"
]

/** Begins with the longest files: no worker is to end with one of them while the other has nothing left to do. */
class LongestFirst extends BaseSequencer {
  override async sort(files: Array<TestSpecification>): Promise<Array<TestSpecification>> {
    const place = ({ moduleId }: TestSpecification): number => {
      const at = longest.findIndex((name) => moduleId.endsWith(name))
      return at < 0 ? longest.length : at
    }
    return (await super.sort(files)).sort((a, b) => place(a) - place(b))
  }
}

/** A folder in which to leave `usual.json`, `full.json` or `soak.json`, for scripts/test-counts.ts. */
const results = process.env.TENSORFERRY_TEST_RESULTS

/** Its tests change libraries that a process loads once. */
const needsProcessPerFile = new Set(["packages/backend-xpu"])

/** Where processes that tests start keep compiled code: it halves the time that each needs to load Effect and the sources. */
const env = { NODE_COMPILE_CACHE: path.join(root, "node_modules/.cache/compiled") }

/** Ends long runs in time. */
const setupFiles = [path.join(root, "scripts/testDeadline.ts")]

/** Every folder that has a package and tests. */
const projects = ["golden", ...readdirSync(path.join(root, "packages")).map((name) => `packages/${name}`)].filter(
  (folder) => existsSync(path.join(root, folder, "package.json")) && existsSync(path.join(root, folder, "test"))
)

/** One project per package; test files live in its `test`. */
export default defineConfig({
  test: {
    // Most tests wait for processes and deadlines; by default two processors would get a single worker.
    maxWorkers: 2,
    sequence: { sequencer: LongestFirst },
    reporters:
      results === undefined ? ["default"] : ["default", ["json", { outputFile: path.join(results, `${kind}.json`) }]],
    projects: [
      ...projects.map((folder) => ({
        extends: true as const,
        test: {
          name: path.basename(folder),
          root: folder,
          ...files,
          // A process for each file would load Effect and compile everything as often.
          isolate: needsProcessPerFile.has(folder),
          env,
          setupFiles,
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
          ...files,
          globalSetup: ["test/setup.ts"],
          env,
          setupFiles,
          testTimeout: 300_000
        }
      }
    ]
  }
})
