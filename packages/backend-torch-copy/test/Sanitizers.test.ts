/**
 * The other tests again, with an addon that finds misuse of memory (only in full runs: it builds the addon anew).
 */
import { spawnSync } from "node:child_process"
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { createRequire } from "node:module"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import { assert, it } from "@effect/vitest"
import { packageFolder } from "../src/Addon.ts"

/** What Node and the test runner themselves never free. */
const suppressions = [
  "leak:ossl_load_builtin_compressions",
  "leak:node::contextify::ContextifyScript::New",
  "leak:rolldown"
].join("\n")

const run = (command: string, values: ReadonlyArray<string>, environment: NodeJS.ProcessEnv = {}) =>
  spawnSync(command, values, { cwd: packageFolder, env: { ...process.env, ...environment }, encoding: "utf8" })

it.skipIf(process.env.TENSORFERRY_TEST_FULL === undefined || process.platform !== "linux")(
  "finds no misuse of memory",
  () => {
    const folder = mkdtempSync(join(tmpdir(), "tensorferry-sanitize-"))
    try {
      chmodSync(folder, 0o755) // one of the tests runs a process of another user
      const build = join(folder, "build")
      const configured = run("cmake", ["-S", ".", "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DSANITIZE=address"])
      assert.strictEqual(configured.status, 0, configured.stderr)
      const built = run("cmake", ["--build", build, "-j2"])
      assert.strictEqual(built.status, 0, built.stdout + built.stderr)
      writeFileSync(join(folder, "suppressions"), suppressions)
      const runner = join(dirname(createRequire(import.meta.url).resolve("vitest/package.json")), "vitest.mjs")
      const files = ["Addon", "CopyDriver", "HostMemory", "NamedSemaphore", "TensorEngine"]
      const tested = run(
        process.execPath,
        [runner, "run", "--pool=forks", "--testTimeout=300000", ...files.map((name) => `test/${name}.test.ts`)],
        {
          "@TENSORFERRY/BACKEND_TORCH_COPY_PREBUILD": folder,
          LD_PRELOAD: run("c++", ["-print-file-name=libasan.so"]).stdout.trim(),
          ASAN_OPTIONS: "exitcode=77",
          LSAN_OPTIONS: `suppressions=${join(folder, "suppressions")}`,
          TENSORFERRY_TEST_FULL: undefined
        }
      )
      assert.strictEqual(tested.status, 0, tested.stdout.slice(-20_000) + tested.stderr.slice(-20_000))
      assert.notInclude(tested.stderr, "AddressSanitizer")
    } finally {
      rmSync(folder, { recursive: true, force: true })
    }
  },
  900_000
)
