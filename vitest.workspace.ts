import { defineConfig } from "vitest/config"

const packages = ["core", "backend-torch-copy", "backend-cuda", "cli"]

/** One project per package; test files live in `packages/NAME/test`. */
export default defineConfig({
  test: {
    // Most tests wait for processes and deadlines; by default two processors would get a single worker.
    maxWorkers: 2,
    projects: packages.map((name) => ({
      extends: true as const,
      test: {
        name,
        root: `packages/${name}`,
        include: ["test/**/*.test.ts"],
        testTimeout: 120_000,
        hookTimeout: 120_000
      }
    }))
  }
})
