// SPDX-License-Identifier: Apache-2.0
/** The progress line: what it says of a job's phases, and that it leaves nothing behind. */
import { assert, describe, it } from "@effect/vitest"
import type { Phase } from "@tensorferry/model/Phase"
import * as Effect from "effect/Effect"
import { makeProgressBar, type ProgressMode, type ProgressOptions } from "../../src/output/ProgressBar.ts"

const phases = ["load", "copy", "verify"] as const

const shown = (mode: ProgressMode, isTerminal: boolean, columns?: number, options: Partial<ProgressOptions> = {}) => {
  const written: Array<string> = []
  let now = 0
  const output = { write: (text: string) => void written.push(text), isTerminal, columns, now: () => now }
  const bar = makeProgressBar({ size: 2, phases, mode, ...options }, output)
  return {
    written,
    say: (seconds: number, rank: number, phase: Phase, done: number, total: number) => {
      now = seconds * 1000
      Effect.runSync(bar.update({ rank, phase, done, total }))
    },
    clear: () => Effect.runSync(bar.clear),
    last: () => written.at(-1)!.replace("\r\u001b[2K", "")
  }
}

describe("progress", () => {
  it("counts the phases of a job together, with amounts, rates and the time left of each", () => {
    const { say, last } = shown("auto", true)
    say(0, 0, "load", 0, 2 ** 30)
    say(2, 0, "load", 2 ** 29, 2 ** 30)
    assert.strictEqual(
      last(),
      "1 of 3: loading  ██░░░░░░░░░░░░░░░░░░░░░░   8%  512 MiB of 1.0 GiB  0.27 GB/s  6 s left"
    )
    say(4, 1, "load", 2 ** 30, 2 ** 30)
    say(4, 0, "load", 2 ** 30, 2 ** 30)
    say(4.1, 0, "copy", 0, 2 ** 20)
    assert.match(last(), /^1 of 3: loading {2}█{8}░{16} {2}33%/)
    say(4.2, 1, "copy", 2 ** 19, 2 ** 20)
    assert.match(last(), /^2 of 3: copying .* 41% {2}512 KiB of 2\.0 MiB/)
  })

  it("of things that are counted has neither amounts nor rates, and of one phase no number", () => {
    const { say, last } = shown("auto", true, 80, { size: 1, phases: ["copy"], counts: "items" })
    say(0, 0, "copy", 0, 40)
    say(4, 0, "copy", 10, 40)
    assert.strictEqual(last(), "copying  ██████░░░░░░░░░░░░░░░░░░  25%  12 s left")
  })

  it("says how long the rest takes once that can be known, and ends at the whole", () => {
    const { say, last } = shown("auto", true, 120, { size: 1 })
    say(0, 0, "load", 2 ** 28, 2 ** 30)
    say(0.5, 0, "load", 2 ** 29, 2 ** 30)
    assert.notInclude(last(), "left")
    say(1.5, 0, "load", 2 ** 29, 2 ** 30)
    assert.match(last(), /0\.36 GB\/s {2}2 s left$/)
    say(2, 0, "finish", 0, 0)
    assert.strictEqual(last(), "finishing  ████████████████████████ 100%")
  })

  it("is drawn at most twenty times a second, again after it was cleared, and at once in a new phase", () => {
    const { say, written, clear } = shown("auto", true, 80, { size: 1 })
    for (let at = 0; at < 100; at++) say(at / 1000, 0, "load", at, 1000)
    assert.lengthOf(written, 2)
    say(0.0991, 0, "copy", 0, 1000)
    assert.lengthOf(written, 3)
    clear()
    say(0.2, 0, "copy", 1, 1000)
    assert.match(written.at(-1)!, /^\r.\[2K2 of 3: copying/)
  })

  it("never goes back", () => {
    const { say, written } = shown("auto", true)
    let at = 0
    for (const phase of phases)
      for (const done of [0, 1, 2, 3, 4])
        for (const rank of [0, 1]) {
          at += 0.1
          say(at, rank, phase, done * 2 ** 20, 2 ** 22)
        }
    const percents = written.map((line) => Number(/(\d+)%/.exec(line)![1]))
    assert.deepStrictEqual(
      percents,
      [...percents].sort((a, b) => a - b)
    )
    assert.strictEqual(percents.at(-1), 100)
  })

  it("leaves out what a narrow terminal has no room for, and nothing behind", () => {
    for (const columns of [20, 40, 60, 80]) {
      const { say, written, clear } = shown("auto", true, columns)
      say(0, 0, "load", 1, 2 ** 30)
      say(3, 0, "load", 2 ** 29, 2 ** 30)
      for (const line of written) assert.isBelow(line.replace("\r\u001b[2K", "").length, columns)
      clear()
      assert.strictEqual(written.at(-1), "\r\u001b[2K")
    }
  })

  it("is silent where standard error is no terminal, and where it is not wanted", () => {
    for (const silent of [shown("auto", false), shown("none", true)]) {
      silent.say(0, 0, "load", 1, 2)
      silent.clear()
      assert.deepStrictEqual(silent.written, [])
    }
  })

  it("is lines of JSON for programs, at most five a second and one at the start of each phase", () => {
    const { say, written, clear } = shown("json", false)
    for (let at = 0; at < 100; at++) for (const rank of [0, 1]) say(at / 100, rank, "load", at, 100)
    for (const rank of [0, 1]) say(1.01, rank, "copy", 0, 100)
    const before = written.length
    clear()
    assert.lengthOf(written, before)
    const lines = written.map((line) => JSON.parse(line) as Readonly<Record<string, unknown>>)
    assert.isAtMost(lines.length, 7)
    assert.notInclude(written.join(""), "\r")
    assert.deepStrictEqual(lines.at(-1), {
      phase: "copy",
      index: 2,
      of: 3,
      fraction: 1 / 3,
      done: 0,
      total: 200,
      seconds: 0
    })
  })
})
