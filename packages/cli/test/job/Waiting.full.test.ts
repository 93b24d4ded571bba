// SPDX-License-Identifier: Apache-2.0
/**
 * Commands that wait for a process say for whom and until when, each in the same form, and nothing with `--quiet`. Two of a
 * kind run beside each other, so that both have waited as long.
 */
import { afterEach, assert, describe, it } from "@effect/vitest"
import { endAll, eventually, freePort, membersOf, type Running, scratch, signal, start } from "../support/command.ts"
import { mnist, mnistRules } from "../support/models.ts"

afterEach(endAll)

/** What a command has written on standard error so far. */
const heard = (command: Running): (() => string) => {
  let text = ""
  command.child.stderr!.on("data", (chunk) => {
    text += String(chunk)
  })
  return () => text
}

/** A process that the command started, by a part of its arguments; it has not done its work yet. */
const childOf = (command: Running, program: RegExp, ...words: ReadonlyArray<string>): Promise<number> =>
  eventually(`a process of ${program}`, 30_000, () => {
    const found = membersOf(command.pid).find(({ args }) => {
      const at = args.findIndex((arg) => program.test(arg))
      return at >= 0 && words.every((word, next) => args[at + 1 + next] === word)
    })
    return found?.pid
  })

const cases: ReadonlyArray<
  readonly [args: ReadonlyArray<string>, program: RegExp, words: ReadonlyArray<string>, said: RegExp]
> = [
  [
    ["reshard", mnist, "--to", "tp=2", "--rules", mnistRules],
    /rankMain\.[tj]s$/,
    ["rank", "0"],
    /^Waited \d+ s for (ranks? [\d, ]+ to start|rank 0 to open a port); this fails in \d+ s\.$/m
  ],
  [
    ["bench", "--bytes", "64KiB"],
    /benchMain\.[tj]s$/,
    ["rank", "0"],
    /^Waited \d+ s for rank 0 to start; this fails in \d+ s\.$/m
  ],
  [
    ["bench", "--bytes", "64KiB"],
    /benchMain\.[tj]s$/,
    ["rank", "1"],
    /^rank 0: Rank 0 has waited \d+ s on \S+ for rank 1 to join; this fails in \d+ s\.$/m
  ],
  [
    ["backends", "conformance", "torch-copy", "--ranks", "2", "--filter", "moves one byte"],
    /conformanceMain\.[tj]s$/,
    ["rank", "0"],
    /^Waited \d+ s for rank 0 to start; this fails in \d+ s\.$/m
  ],
  [
    ["replay", "bench", "--rows", "64", "--width", "8", "--ticks", "4"],
    /collectorMain\.[tj]s$/,
    ["collector"],
    /^Waited \d+ s for the collector to fill the ring; this fails in \d+ s\.$/m
  ]
]

describe("a command that waits", () => {
  for (const [args, program, words, said] of cases)
    it(`${args.slice(0, 2).join(" ")}, for ${words.join(" ")}: says so, unless it is to be quiet`, async () => {
      const [loud, quiet] = [start(args), start([...args, "--quiet"])]
      const stopped = await Promise.all(
        [loud, quiet].map(async (command) => {
          const pid = await childOf(command, program, ...words)
          signal(pid, "SIGSTOP")
          return pid
        })
      )
      const text = heard(loud)
      await eventually(`words that match ${said}`, 30_000, () => (said.test(text()) ? true : undefined))
      for (const pid of stopped) signal(pid, "SIGCONT")
      const [loudly, quietly] = await Promise.all([loud.ended, quiet.ended])
      assert.strictEqual(loudly.code, 0, loudly.stderr)
      assert.strictEqual(quietly.code, 0, quietly.stderr)
      assert.strictEqual(quietly.stderr, "")
    })

  it("agent, for a store that nobody serves: says so, unless it is to be quiet", async () => {
    using folder = scratch()
    const store = `127.0.0.1:${await freePort()}`
    const args = (socket: string) => ["agent", "--rank", "0", "--socket", `${folder.path}/${socket}`, "--store", store]
    const [loud, quiet] = [start(args("loud")), start([...args("quiet"), "--quiet"])]
    const [text, silence] = [heard(loud), heard(quiet)]
    const said = new RegExp(`Waited \\d+ s for the store at ${store}; this fails in \\d+ s\\.`)
    await eventually(`words that match ${said}`, 30_000, () => (said.test(text()) ? true : undefined))
    for (const { pid } of [loud, quiet]) signal(pid, "SIGTERM")
    await Promise.all([loud.ended, quiet.ended])
    assert.strictEqual(silence(), "")
  })
})
