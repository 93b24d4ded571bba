// SPDX-License-Identifier: Apache-2.0
/** `tensorferry backends` and `bench` as an author of a backend meets them, on a backend that is not ours. */
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { ConformanceReport } from "@tensorferry/testing"
import * as Schema from "effect/Schema"
import { describeReport } from "../../src/backends/reportText.ts"
import { assertNothingRuns, endAll, failuresOf, run, runAll, scratch, start } from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { type Change, writeSpool } from "../support/spool.ts"

afterEach(endAll)

const decodeReport = Schema.decodeUnknownSync(Schema.toCodecJson(ConformanceReport))

interface Judged {
  readonly code: number | null
  readonly report: ConformanceReport
  readonly resultOf: (name: string) => { readonly status: string; readonly detail: string }
}

/** Where the driver of the page begins to move a program. */
const starting = "if (isBroken) return"

/** Judges spool, with these changes, by cases with this in their name. */
const judge = async (filter: string, changes: ReadonlyArray<Change> = [], ...more: ReadonlyArray<string>) => {
  using folder = scratch()
  writeSpool(folder.path, changes)
  writeFileSync(join(folder.path, "quirks.json"), JSON.stringify({ "moves one byte": "it moves words" }))
  const args = ["backends", "conformance", "spool", "--backend-package", "./spool", "--ranks", "2", "--json"]
  const filters = filter === "" ? [] : ["--filter", filter]
  const command = start([...args, ...filters, "--report", "report.json", ...more], { cwd: folder.path, limit: 110_000 })
  const ended = await command.ended
  await assertNothingRuns(command)
  const printed = JSON.parse(ended.stdout) as { readonly ok: boolean; readonly report: unknown }
  const report = decodeReport(JSON.parse(readFileSync(join(folder.path, "report.json"), "utf8")))
  assert.deepStrictEqual(decodeReport(printed.report), report)
  assert.strictEqual(printed.ok, ended.code === 0)
  const cases = report.services.flatMap((service) => service.cases)
  const resultOf = (name: string) => cases.find((one) => one.name === name) ?? assert.fail(`no case "${name}"`)
  return { code: ended.code, report, resultOf } satisfies Judged
}

describe("backends", () => {
  it("lists, and probes one with all that it tried", async () => {
    const [bare, list, probe, nobody] = await runAll([
      ["backends", "--json"],
      ["backends", "list", "--json"],
      ["backends", "probe", "nccl"],
      ["backends", "probe", "nobody", "--json"]
    ])
    assert.strictEqual(bare!.code, 0, bare!.stderr)
    assert.strictEqual(bare!.stdout, list!.stdout)
    assert.strictEqual(probe!.code, 1, "there is no GPU here")
    for (const part of ["unavailable", "tried", "libcuda.so.1", "remedy"]) assert.include(probe!.stdout, part)
    assert.strictEqual(nobody!.code, 1)
    assert.strictEqual(failuresOf(nobody!)[0]!.reason, "UnknownBackend")
  })

  it("goes on behind a probe that throws, and says whose it is", async () => {
    using folder = scratch()
    writeSpool(folder.path, [
      [
        "spool/index.ts",
        'Effect.succeed({ _tag: "Available", detail: "Files in a folder.", versions: { spool: "1.0.0" } })',
        'Effect.die(new Error("bad probe"))'
      ]
    ])
    const named = ["--backend-package", "./spool"]
    const options = { cwd: folder.path }
    const list = await run(["backends", "--json", ...named], options)
    assert.strictEqual(list.code, 0, list.stdout)
    const { backends } = JSON.parse(list.stdout) as { readonly backends: ReadonlyArray<Record<string, unknown>> }
    const spool = backends.find(({ name }) => name === "spool") ?? assert.fail("spool is not listed")
    const { _tag, cause, remedy } = spool.probe as Record<string, string>
    assert.strictEqual(_tag, "Unavailable")
    assert.match(cause!, /bad probe \(at .*spool\/index\.ts:\d+:\d+\)/)
    assert.include(remedy!, "package ./spool")
    assert.isAbove(backends.length, 1)
    for (const args of [["backends", "probe"], ["doctor"]]) {
      const ended = await run([...args, ...named], options)
      assert.strictEqual(ended.code, 0, ended.stderr)
      for (const part of ["bad probe", "package ./spool", "torch-copy"]) assert.include(ended.stdout, part)
    }
  })

  it("names file and line of a package that cannot be parsed", async () => {
    using folder = scratch()
    writeSpool(folder.path)
    writeFileSync(join(folder.path, "spool/index.ts"), "export const descriptors = [{\n  name: 1 2\n}]\n")
    const ended = await run(["backends", "--backend-package", "./spool", "--json"], { cwd: folder.path })
    assert.strictEqual(ended.code, 1)
    assert.match(failuresOf(ended)[0]!.message, /\(at .*spool\/index\.ts:2\)/)
  })

  it("tests a backend of another author, and reports what passed, what does not apply, and its package", async () => {
    const { code, report, resultOf } = await judge("moves one")
    assert.strictEqual(code, 0, JSON.stringify(report.services))
    assert.strictEqual(resultOf("moves one byte").status, "passed")
    assert.strictEqual(report.backend, "spool")
    assert.deepStrictEqual(report.package, { name: "spool", version: "1.0.0" })
    assert.strictEqual(report.core.apiVersion, 1)
    assert.isTrue(report.isFiltered)
    assert.deepStrictEqual(
      report.services.map(({ service, isOffered }) => [service, isOffered]),
      [
        ["tensorEngine", false],
        ["copyService", true],
        ["copyDriver", true],
        ["replayTransfer", false]
      ]
    )
  })

  it("fails with a driver that lies, and names what differs", async () => {
    const { code, resultOf } = await judge("moves one", [
      ["spool/driver.ts", "into.set(arrived)", "into.set(arrived.map((byte) => byte ^ 1))"]
    ])
    assert.strictEqual(code, 1)
    const { status, detail } = resultOf("moves one byte")
    assert.strictEqual(status, "failed")
    assert.match(detail, /rank [01]: Round 0, task \d from rank \d: .*differs at byte 0/)
  })
})

describe("backends conformance", () => {
  it("reports the process that crashed first, by its message and the line of the driver", async () => {
    const { code, report, resultOf } = await judge("programs without", [
      [
        "spool/driver.ts",
        starting,
        `if (group.rank === 1) {
            setImmediate(() => Buffer.alloc(-1))
            return Effect.never
          }
          ${starting}`
      ]
    ])
    assert.strictEqual(code, 1)
    const [first, ...rest] = resultOf("programs without messages start and end").detail.split("\n")
    assert.match(
      first!,
      /^rank 1 crashed: the process ended with exit code \d+: RangeError \[ERR_OUT_OF_RANGE\]: .* \(at .*spool\/driver\.ts:\d+:\d+\)$/
    )
    for (const line of rest) assert.match(line, /^rank 0: /)
    assert.include(describeReport(report), "rank 1 crashed: ")
  })

  it("reports a layer that throws by its message and the line, in every case and in bench", async () => {
    const change: Change = [
      "spool/driver.ts",
      "const group = yield* ProcessGroup\n",
      'const group = yield* ProcessGroup\n    yield* Effect.die(new Error("boom"))\n'
    ]
    const { code, report } = await judge("moves one", [change])
    assert.strictEqual(code, 1)
    const cases = report.services.flatMap((service) => service.cases).filter(({ ranks }) => ranks === 2)
    assert.isNotEmpty(cases)
    for (const { detail } of cases) assert.match(detail, /^rank 0: boom \(at .*spool\/driver\.ts:\d+:\d+\)$/m)
    const text = describeReport(report)
    assert.include(text, "boom (at ")
    assert.notInclude(text, "    at ")
    using folder = scratch()
    writeSpool(folder.path, [change])
    const args = ["bench", "--backend", "spool", "--backend-package", "./spool", "--bytes", "8", "--json"]
    const ended = await run(args, { cwd: folder.path, limit: 110_000 })
    assert.strictEqual(ended.code, 1)
    assert.match(failuresOf(ended)[0]!.message, /boom \(at .*spool\/driver\.ts:\d+:\d+\)/)
  })

  it("goes on behind a case that takes its process with it", async () => {
    const { code, resultOf } = await judge("copyDriver", [
      ["spool/driver.ts", starting, `if (program.messages.length === 0) process.exit(3)\n          ${starting}`]
    ])
    assert.strictEqual(code, 1)
    const { status, detail } = resultOf("programs without messages start and end")
    assert.strictEqual(status, "failed")
    assert.match(detail, /ended with exit code 3|gone|connection/i)
    for (const name of [
      "paths name the peers and why",
      "cancel stops writing",
      "nothing is written after await has ended"
    ]) {
      assert.strictEqual(resultOf(name).status, "passed", name)
    }
  })

  it("calls a case that hangs failed", async () => {
    const { code, resultOf } = await judge(
      "programs without",
      [["spool/driver.ts", starting, `if (program.messages.length === 0) return Effect.never\n          ${starting}`]],
      "--case-seconds",
      "2"
    )
    assert.strictEqual(code, 1)
    assert.match(resultOf("programs without messages start and end").detail, /did not end within its deadline/)
  })

  it("fails every case of a driver that cannot be built, without trying for ever", async () => {
    const { code, report } = await judge("", [
      [
        "spool/driver.ts",
        "const group = yield* ProcessGroup\n",
        "const group = yield* ProcessGroup\n    process.exit(4)\n"
      ]
    ])
    assert.strictEqual(code, 1)
    const cases = report.services.flatMap((service) => service.cases)
    assert.isAbove(cases.length, 60)
    for (const { ranks, status, name } of cases) assert.strictEqual(status, ranks > 2 ? "skipped" : "failed", name)
  })

  it("skips quirks with their reason, from a file or the descriptor, and refuses those that say nothing", async () => {
    const known = await judge("moves one", [], "--quirks", "quirks.json")
    assert.strictEqual(known.code, 0)
    assert.deepInclude(known.resultOf("moves one byte"), { status: "skipped", detail: "Known quirk: it moves words" })
    const stated = await judge("moves one", [
      ["spool/index.ts", "options: Options,", 'options: Options,\n    quirks: { "moves one tensor": "it moves none" },']
    ])
    assert.deepInclude(stated.resultOf("moves one tensor"), { status: "skipped", detail: "Known quirk: it moves none" })
    const strange = await judge("moves one", [
      [
        "spool/index.ts",
        "options: Options,",
        'options: Options,\n    quirks: { "moves one tensors": "it moves none" },'
      ]
    ])
    assert.strictEqual(strange.code, 1)
    assert.strictEqual(
      strange.resultOf("moves one tensors").detail,
      'A quirk is stated for "moves one tensors", which is no case. Did you mean "moves one tensor"?'
    )
  })

  it("refuses a report that cannot be written before any case runs", async () => {
    using folder = scratch()
    writeSpool(folder.path, [
      ["spool/driver.ts", starting, `if (rank >= 0) return Effect.die("it ran")\n          ${starting}`]
    ])
    const args = ["backends", "conformance", "spool", "--backend-package", "./spool", "--json", "--filter", "moves one"]
    const ended = await run([...args, "--report", join("nowhere", "report.json")], { cwd: folder.path })
    assert.strictEqual(ended.code, 1)
    assert.strictEqual(failuresOf(ended)[0]!.reason, "WriteFailed")
    assert.notInclude(ended.stdout, "it ran")
  })

  it("refuses quirks of a file that say nothing, and names the entries, with a filter too", async () => {
    using folder = scratch()
    writeSpool(folder.path)
    writeFileSync(
      join(folder.path, "silent.json"),
      JSON.stringify({ "moves one byte": " ", "moves one tnsor": "so what", "sings a song": "it is loud" })
    )
    const args = [
      "backends",
      "conformance",
      "spool",
      "--backend-package",
      "./spool",
      "--json",
      "--quirks",
      "silent.json"
    ]
    for (const more of [[], ["--filter", "moves one"]]) {
      const ended = await runHere([...args, ...more], folder.path)
      assert.strictEqual(ended.code, 2)
      const { message, fields } = failuresOf(ended)[0]!
      assert.strictEqual(fields?.file, "silent.json")
      assert.include(message, '"moves one byte": The quirk gives no reason.')
      assert.include(message, '"moves one tnsor", which is no case. Did you mean "moves one tensor"?')
      assert.include(message, 'A quirk is stated for "sings a song", which is no case. Write')
    }
  })

  it("refuses wrong options with their path, and filters that choose nothing", async () => {
    using folder = scratch()
    writeSpool(folder.path)
    const args = ["backends", "conformance", "spool", "--backend-package", "./spool", "--json"]
    const judged = (...more: ReadonlyArray<string>) => runHere([...args, ...more], folder.path)
    const wrong = await judged("--options", '{"folder": 7}')
    assert.strictEqual(wrong.code, 2)
    assert.include(failuresOf(wrong)[0]!.message, "folder must be string, but is 7.")
    for (const more of [
      ["--options", "{"],
      ["--filter", "no such case"],
      ["--ranks", "9"],
      ["--quirks", "nowhere.json"],
      ["--hooks", "nowhere.mjs"]
    ]) {
      assert.strictEqual((await judged(...more)).code, 2, more.join(" "))
    }
  })
})

describe("hooks that are named", () => {
  const judged = async (hooks: string) => {
    using folder = scratch()
    writeFileSync(join(folder.path, "hooks.mjs"), hooks)
    const args = ["backends", "conformance", "torch-copy", "--filter", "waits for its consumer is busy"]
    const ended = await run([...args, "--hooks", "hooks.mjs", "--json"], { cwd: folder.path })
    const { report } = JSON.parse(ended.stdout) as { readonly report: ConformanceReport }
    return { code: ended.code, result: report.services.flatMap(({ cases }) => cases)[0]! }
  }

  it("take the place of the descriptor's", async () => {
    const host = new URL("../../../backend-torch-copy/src/index.ts", import.meta.url).href
    const { code, result } = await judged(`
      import { descriptor } from "${host}"
      export const replayTesting = (device, options) => descriptor.replayTesting(device, { ...options, deferred: true })
    `)
    assert.strictEqual(code, 0)
    assert.strictEqual(result.status, "passed")
  })

  it("are refused where the module has none", async () => {
    const { code, result } = await judged("export const replay = 1")
    assert.strictEqual(code, 1)
    assert.include(result.detail, "It exports no replayTesting.")
  })
})

describe("bench", () => {
  it("measures any backend beside memory copies", async () => {
    using folder = scratch()
    writeSpool(folder.path)
    const args = ["bench", "--backend", "spool", "--backend-package", "./spool", "--ranks", "3", "--json"]
    const ended = await run([...args, "--bytes", "1", "--bytes", "64KiB"], { cwd: folder.path, limit: 110_000 })
    assert.strictEqual(ended.code, 0, ended.stdout)
    const { cases } = JSON.parse(ended.stdout) as { readonly cases: ReadonlyArray<Record<string, number | string>> }
    assert.deepStrictEqual(
      cases.map(({ byteLength, path }) => [byteLength, path]),
      [
        [1, "file"],
        [65_536, "file"]
      ]
    )
    for (const one of cases) {
      assert.isAbove(Number(one.fastestSeconds), 0)
      assert.isAtLeast(Number(one.medianSeconds), Number(one.fastestSeconds))
      assert.isAbove(Number(one.copyBytesPerSecond), 0)
    }
  })

  it("reports no figures of a driver that spoils bytes", async () => {
    using folder = scratch()
    writeSpool(folder.path, [["spool/driver.ts", "into.set(arrived)", "into.set(arrived.map(() => 0x55))"]])
    const args = ["bench", "--backend", "spool", "--backend-package", "./spool", "--bytes", "8", "--json"]
    const ended = await run(args, { cwd: folder.path, limit: 110_000 })
    assert.strictEqual(ended.code, 1, ended.stdout)
    assert.include(failuresOf(ended)[0]!.message, "byte 0 is 85 instead of")
  })
})
