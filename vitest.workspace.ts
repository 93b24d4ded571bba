// SPDX-License-Identifier: Apache-2.0
import { existsSync, readdirSync } from "node:fs"
import * as path from "node:path"
import { defineConfig } from "vitest/config"

const root = import.meta.dirname

/** Which files a run takes, by their names; see CONTRIBUTING. */
const kinds = {
  /** What `make test` has time for. */
  usual: { include: ["test/**/*.test.ts"], exclude: ["**/*.full.test.ts", "**/*.soak.test.ts"] },
  /** What takes minutes: `make test-full`, nightly. */
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

/** A folder in which to leave `usual.json`, `full.json` or `soak.json`, for scripts/test-counts.ts. */
const results = process.env.TENSORFERRY_TEST_RESULTS

/** Its tests change libraries that a process loads once. */
const needsProcessPerFile = new Set(["packages/backend-xpu"])

/** Where processes that tests start keep compiled code: it halves the time that each needs to load Effect and the sources. */
const env = { NODE_COMPILE_CACHE: path.join(root, "node_modules/.cache/compiled") }

/** Every folder that has a package and tests. */
const projects = ["golden", ...readdirSync(path.join(root, "packages")).map((name) => `packages/${name}`)].filter(
  (folder) => existsSync(path.join(root, folder, "package.json")) && existsSync(path.join(root, folder, "test"))
)

/** One project per package; test files live in its `test`. */
export default defineConfig({
  test: {
    // Most tests wait for processes and deadlines; by default two processors would get a single worker.
    maxWorkers: 2,
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
          testTimeout: 300_000
        }
      }
    ]
  }
})
