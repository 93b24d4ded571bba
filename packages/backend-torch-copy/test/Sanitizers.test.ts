/**
 * The other tests again, with an addon that finds misuse of memory and races between threads (only in full runs: it builds the addon anew).
 */
import { spawnSync } from "node:child_process"
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { createRequire } from "node:module"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { packageFolder } from "../src/Addon.ts"

/** What Node and the test runner themselves never free. */
const suppressions = [
  "leak:ossl_load_builtin_compressions",
  "leak:node::contextify::ContextifyScript::New",
  "leak:rolldown"
].join("\n")

const run = (command: string, values: ReadonlyArray<string>, environment: NodeJS.ProcessEnv = {}) =>
  spawnSync(command, values, { cwd: packageFolder, env: { ...process.env, ...environment }, encoding: "utf8" })

const files = ["Addon", "CopyDriver", "HostMemory", "Kernels", "NamedSemaphore", "Tcp", "TensorEngine"]

interface Sanitizer {
  readonly name: string
  readonly library: string
  /** How it names itself in what it reports. */
  readonly title: string
  readonly environment: (folder: string) => NodeJS.ProcessEnv
}

const sanitizers: ReadonlyArray<Sanitizer> = [
  {
    name: "address",
    library: "libasan.so",
    title: "AddressSanitizer",
    environment: (folder) => ({
      ASAN_OPTIONS: "exitcode=77",
      LSAN_OPTIONS: `suppressions=${join(folder, "suppressions")}`
    })
  },
  {
    name: "thread",
    library: "libtsan.so",
    title: "ThreadSanitizer",
    // Node itself is not built for it: only what the addon does is judged.
    environment: () => ({ TSAN_OPTIONS: "exitcode=66 ignore_noninstrumented_modules=1" })
  }
]

describe.skipIf(process.env.TENSORFERRY_TEST_FULL === undefined || process.platform !== "linux")("sanitizers", () => {
  for (const { name, library, title, environment } of sanitizers) {
    it(`find no misuse: ${name}`, () => {
      const folder = mkdtempSync(join(tmpdir(), "tensorferry-sanitize-"))
      try {
        chmodSync(folder, 0o755) // one of the tests runs a process of another user
        const build = join(folder, "build")
        const configured = run("cmake", ["-S", ".", "-B", build, "-DCMAKE_BUILD_TYPE=Release", `-DSANITIZE=${name}`])
        assert.strictEqual(configured.status, 0, configured.stderr)
        const built = run("cmake", ["--build", build, "-j2"])
        assert.strictEqual(built.status, 0, built.stdout + built.stderr)
        writeFileSync(join(folder, "suppressions"), suppressions)
        const runner = join(dirname(createRequire(import.meta.url).resolve("vitest/package.json")), "vitest.mjs")
        const tested = run(
          process.execPath,
          [runner, "run", "--pool=forks", "--testTimeout=300000", ...files.map((file) => `test/${file}.test.ts`)],
          {
            "@TENSORFERRY/BACKEND_TORCH_COPY_PREBUILD": folder,
            LD_PRELOAD: run("c++", [`-print-file-name=${library}`]).stdout.trim(),
            ...environment(folder),
            TENSORFERRY_TEST_FULL: undefined
          }
        )
        assert.strictEqual(tested.status, 0, tested.stdout.slice(-20_000) + tested.stderr.slice(-20_000))
        assert.notInclude(tested.stderr, title)
      } finally {
        rmSync(folder, { recursive: true, force: true })
      }
    }, 1_500_000)
  }
})
