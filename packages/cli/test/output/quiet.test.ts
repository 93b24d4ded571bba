// SPDX-License-Identifier: Apache-2.0
/** `--quiet`: which commands take it, and that it means the same for all of them, in help, completions and logs. */
import { readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import * as Console from "effect/Console"
import type * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import * as References from "effect/References"
import { subcommands } from "../../src/commands/all.ts"
import { logOfRank } from "../../src/job/RankProcess.ts"
import { withFailures } from "../../src/output/CliFailure.ts"
import { progressMode } from "../../src/output/ProgressBar.ts"
import { logsBeside, quietly } from "../../src/output/quiet.ts"
import { runHere } from "../support/here.ts"

/** Wait for other processes, or work as long as a model is large. */
const waiting = [
  "reshard",
  "convert",
  "verify",
  "delta make",
  "delta apply",
  "replay bench",
  "replay demo",
  "bench",
  "bench delta",
  "backends conformance",
  "agent",
  "fleet status",
  "fleet history",
  "fleet explain",
  "watch"
]

/** Read what is at hand and answer. */
const answering = [
  "plan",
  "plan check",
  "describe",
  "report",
  "delta show",
  "backends",
  "backends list",
  "backends probe",
  "backends options",
  "doctor"
]

/** Holds subcommands and does nothing itself. */
const groups = ["delta", "replay", "fleet"]

const namesOf = (command: Command.Command.Any, before: ReadonlyArray<string> = []): ReadonlyArray<string> => {
  const path = [...before, command.name]
  const below = command.subcommands.flatMap(({ commands }) => commands.flatMap((one) => namesOf(one, path)))
  return [path.join(" "), ...below]
}

describe("--quiet", () => {
  it("is decided for every command", () => {
    const all = subcommands.flatMap((command) => namesOf(command))
    assert.deepStrictEqual([...all].sort(), [...waiting, ...answering, ...groups].sort())
  })

  it("is in the help of every command that waits, in the same words, and in that of no other", async () => {
    const words = new Set<string>()
    for (const name of waiting) {
      const { stdout } = await runHere([...name.split(" "), "--help"])
      const [line] = stdout.split("\n").filter((one) => one.includes("--quiet"))
      assert.isDefined(line, name)
      words.add(line!.replace(/\s+/g, " ").trim())
    }
    assert.strictEqual(words.size, 1, [...words].join("\n"))
    assert.match([...words][0]!, /nothing on standard error but notes, warnings and errors/)
    for (const name of answering)
      assert.notInclude((await runHere([...name.split(" "), "--help"])).stdout, "--quiet", name)
  })

  it("is offered by completions for exactly the commands that wait", async () => {
    const { stdout } = await runHere(["--completions", "fish"])
    const offered = stdout.split("\n").filter((line) => /-l quiet\b/.test(line))
    assert.strictEqual(offered.length, waiting.length, offered.join("\n"))
  })

  it("is said of exactly these commands on the page about terminals", () => {
    const page = readFileSync(new URL("../../../../docs/terminal.md", import.meta.url), "utf8")
    const [paragraph] = page.split("\n\n").filter((one) => one.includes("takes `--quiet`"))
    const [list] = paragraph!.split("With it")
    const named = [...list!.matchAll(/`([a-z ]+)`/g)].map(([, name]) => name!)
    const isNamed = (command: string) => named.some((name) => command === name || command.startsWith(`${name} `))
    assert.deepStrictEqual(
      waiting.filter((name) => !isNamed(name)),
      []
    )
    assert.deepStrictEqual(answering.filter(isNamed), [])
  })

  it("silences words of waiting and leaves warnings, of this process and of ranks", async () => {
    for (const quiet of [false, true]) {
      const said: Array<string> = []
      const keep = (...words: ReadonlyArray<unknown>) => void said.push(words.join(" "))
      let cleared = 0
      const bar = { clear: Effect.sync(() => void cleared++) }
      const body = Effect.gen(function* () {
        yield* Effect.logInfo("Waited 3 s for the store.")
        yield* logOfRank(2, "Waited 3 s for rank 1.")
        yield* logOfRank(1, "A link is \u001b[31mslow.", "Warn")
        yield* Effect.logWarning("The disk is nearly full.")
      }).pipe(Effect.provide(logsBeside(bar)))
      const run = withFailures({ json: false, quiet }, body)
      await Effect.runPromise(
        Effect.provideService(run, Console.Console, { ...globalThis.console, error: keep, log: keep })
      )
      const warnings = ["rank 1: A link is \\u001b[31mslow.", "The disk is nearly full."]
      assert.deepStrictEqual(
        said,
        quiet ? warnings : ["Waited 3 s for the store.", "rank 2: Waited 3 s for rank 1.", ...warnings]
      )
      assert.strictEqual(cleared, said.length)
    }
  })

  it("says no more than --log-level lets it", async () => {
    const level = quietly(true, References.MinimumLogLevel)
    const within = (stated: "Error" | "Debug") =>
      Effect.runPromise(Effect.provideService(level, References.MinimumLogLevel, stated))
    assert.strictEqual(await within("Error"), "Error")
    assert.strictEqual(await within("Debug"), "Warn")
  })

  it("draws no line of progress, and leaves the lines of JSON that were asked for", () => {
    assert.strictEqual(progressMode({ json: false, quiet: true }), "none")
    assert.strictEqual(progressMode({ json: true, quiet: false, progress: "auto" }), "none")
    assert.strictEqual(progressMode({ json: false, quiet: false, progress: "auto" }), "auto")
    assert.strictEqual(progressMode({ json: true, quiet: true, progress: "json" }), "json")
  })
})
