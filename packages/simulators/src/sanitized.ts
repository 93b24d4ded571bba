// SPDX-License-Identifier: Apache-2.0
/**
 * A package's tests run again by a test of its own, with an addon and a simulated driver that find misuse. Builds take a
 * minute each, so only full runs have them. They stay in the `build` folder of their source: packages share the simulated
 * driver, and the next run compiles what changed.
 */
import { spawnSync } from "node:child_process"
import { existsSync, mkdirSync, writeFileSync } from "node:fs"
import { createRequire } from "node:module"
import { dirname, join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { packageFolder as simulatorsFolder } from "./libraries.ts"

/** A package's tests under a sanitizer: which build, which files, and what it may report. */
export interface SanitizedTests {
  readonly packageFolder: string
  /** Variable by which the package finds the addon that was built. */
  readonly prebuild: string
  /** Files of its `test` folder, without their ending. */
  readonly files: ReadonlyArray<string>
  /** Those of them in which only one thread works: nothing races there. */
  readonly oneThread?: ReadonlyArray<string>
  /** Tests of a package above that run over this addon too: its folder, its files. */
  readonly above?: readonly [packageFolder: string, files: ReadonlyArray<string>]
  /** Whether tests run over a simulated driver, which is then built in the same way. */
  readonly isSimulated?: boolean
  readonly sanitizers?: ReadonlyArray<keyof typeof sanitizers>
  /** Libraries, or functions, that never free what they have. */
  readonly leaking?: ReadonlyArray<string>
  readonly environment?: NodeJS.ProcessEnv
}

/** What Node and the test runner themselves never free. */
const alwaysLeaking = [
  "ossl_load_builtin_compressions",
  "node::contextify::ContextifyScript::New",
  // Node's wrapper of an external that is alive when a process ends; what addons hold by it is allocated apart.
  "napi_create_external",
  "rolldown"
]

const sanitizers = {
  address: {
    library: "libasan.so",
    report: /ERROR: (Address|Leak)Sanitizer:/,
    environment: (suppressions: string) => ({
      // Some tests ask for more memory than there is; that is no misuse.
      ASAN_OPTIONS: "exitcode=77:allocator_may_return_null=1",
      LSAN_OPTIONS: `suppressions=${suppressions}`
    })
  },
  thread: {
    library: "libtsan.so",
    report: /WARNING: ThreadSanitizer:/,
    // Node itself is not built for it: only what the addon does is judged.
    environment: () => ({ TSAN_OPTIONS: "exitcode=66 ignore_noninstrumented_modules=1" })
  }
}

/** The files of each package by the kind of run that has them. A name without a file is a mistake of the list. */
const groupsOf = (...lists: ReadonlyArray<readonly [tested: string, files: ReadonlyArray<string>]>) =>
  lists.flatMap(([tested, files]) =>
    (["usual", "full"] as const).flatMap((kind) => {
      const ending = kind === "usual" ? ".test.ts" : ".full.test.ts"
      const names = files.map((file) => `test/${file}${ending}`).filter((name) => existsSync(join(tested, name)))
      return names.length === 0 ? [] : [{ tested, kind, names }]
    })
  )

/** Defines the test. */
export const describeSanitized = (subject: SanitizedTests): void => {
  const { packageFolder, prebuild, files, oneThread = [], above, isSimulated = false, leaking = [] } = subject
  const run = (folder: string, command: string, values: ReadonlyArray<string>, environment: NodeJS.ProcessEnv = {}) =>
    spawnSync(command, values, {
      cwd: folder,
      env: { ...process.env, ...environment },
      encoding: "utf8",
      maxBuffer: 2 ** 26
    })

  /** Builds a source, one test at a time; the folder with its `build`. */
  const buildWith = (name: keyof typeof sanitizers, source: string): string => {
    const folder = join(source, "build/sanitized", name)
    const build = join(folder, "build")
    mkdirSync(folder, { recursive: true })
    const settings = ["-S", ".", "-B", build, "-DCMAKE_BUILD_TYPE=Release", `-DSANITIZE=${name}`]
    for (const values of [settings, ["--build", build, "-j2"]]) {
      const ended = run(source, "flock", [join(folder, "lock"), "cmake", ...values])
      assert.strictEqual(ended.status, 0, ended.stdout + ended.stderr)
    }
    return folder
  }

  const runWith = (name: keyof typeof sanitizers): void => {
    const { library, report, environment } = sanitizers[name]
    const folder = buildWith(name, packageFolder)
    const simulators = isSimulated ? join(buildWith(name, simulatorsFolder), "build") : undefined
    const suppressions = join(folder, "suppressions")
    writeFileSync(suppressions, [...alwaysLeaking, ...leaking].map((each) => `leak:${each}`).join("\n"))
    const runner = join(dirname(createRequire(import.meta.url).resolve("vitest/package.json")), "vitest.mjs")
    const chosen = files.filter((file) => name === "address" || !oneThread.includes(file))
    for (const { tested, kind, names } of groupsOf([packageFolder, chosen], ...(above === undefined ? [] : [above]))) {
      const ended = run(tested, process.execPath, [runner, "run", "--pool=forks", "--testTimeout=600000", ...names], {
        [prebuild]: folder,
        ...(simulators === undefined ? {} : { TENSORFERRY_SIMULATORS_BUILD: simulators }),
        LD_PRELOAD: run(tested, "c++", [`-print-file-name=${library}`]).stdout.trim(),
        ...environment(suppressions),
        ...subject.environment,
        TENSORFERRY_TESTS: kind
      })
      assert.strictEqual(ended.status, 0, ended.stdout.slice(-20_000) + ended.stderr.slice(-20_000))
      assert.notMatch(ended.stderr, report)
    }
  }

  describe.skipIf(process.platform !== "linux")("sanitizers", () => {
    it("are given tests that exist", () => {
      const missing = [[packageFolder, files] as const, ...(above === undefined ? [] : [above])].flatMap(
        ([tested, list]) => list.filter((file) => groupsOf([tested, [file]]).length === 0)
      )
      assert.deepStrictEqual(missing, [])
    })

    for (const name of subject.sanitizers ?? (["address"] as const)) {
      it(`find no misuse: ${name}`, { timeout: 2_400_000 }, () => runWith(name))
    }
  })
}
