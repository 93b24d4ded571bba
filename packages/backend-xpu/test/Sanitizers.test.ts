/**
 * The other tests again, with an addon and a simulated driver that find misuse of memory (only in full runs: it builds them
 * anew).
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { createRequire } from "node:module"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { packageFolder } from "../src/Addon.ts"

/** What Node, the test runner and OpenCL's driver themselves never free. */
const suppressions = [
  "leak:ossl_load_builtin_compressions",
  "leak:node::contextify::ContextifyScript::New",
  "leak:rolldown",
  "leak:libpocl",
  "leak:libOpenCL",
  "leak:libLLVM",
  "leak:libze_"
].join("\n")

const run = (command: string, values: ReadonlyArray<string>, environment: NodeJS.ProcessEnv = {}) =>
  spawnSync(command, values, { cwd: packageFolder, env: { ...process.env, ...environment }, encoding: "utf8" })

const files = ["Addon", "ReplayDevice", "ReplayConformance", "conformance", "Faults", "InOrder"]

describe.skipIf(process.env.TENSORFERRY_TEST_FULL === undefined || process.platform !== "linux")("sanitizers", () => {
  it("find no misuse: address", () => {
    const folder = mkdtempSync(join(tmpdir(), "tensorferry-sanitize-"))
    try {
      const build = join(folder, "build")
      const configured = run("cmake", ["-S", ".", "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DSANITIZE=address"])
      assert.strictEqual(configured.status, 0, configured.stderr)
      const built = run("cmake", ["--build", build, "-j2"])
      assert.strictEqual(built.status, 0, built.stdout + built.stderr)
      writeFileSync(join(folder, "suppressions"), suppressions)
      const runner = join(dirname(createRequire(import.meta.url).resolve("vitest/package.json")), "vitest.mjs")
      const tested = run(
        process.execPath,
        [runner, "run", "--pool=forks", "--testTimeout=300000", ...files.map((file) => `test/${file}.test.ts`)],
        {
          "@TENSORFERRY/BACKEND_XPU_PREBUILD": folder,
          TENSORFERRY_XPU_TEST_BUILD: build,
          LD_PRELOAD: run("c++", ["-print-file-name=libasan.so"]).stdout.trim(),
          // Some tests ask for more memory than there is; that is no misuse.
          ASAN_OPTIONS: "exitcode=77:allocator_may_return_null=1",
          LSAN_OPTIONS: `suppressions=${join(folder, "suppressions")}`,
          TENSORFERRY_TEST_FULL: undefined
        }
      )
      assert.strictEqual(tested.status, 0, tested.stdout.slice(-20_000) + tested.stderr.slice(-20_000))
      assert.notMatch(tested.stderr, /ERROR: (Address|Leak)Sanitizer:/)
    } finally {
      rmSync(folder, { recursive: true, force: true })
    }
  }, 1_500_000)
})
