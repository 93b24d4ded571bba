// SPDX-License-Identifier: Apache-2.0
/** Members of a fleet as processes: what they print, as events to wait for. A wait that takes too long shows all lines. */
import assert from "node:assert/strict"
import { type ChildProcess, type SpawnOptions, spawn } from "node:child_process"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"

import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import { hashOf, type MemberInput, type MemberLine } from "./weights.ts"

const script = fileURLToPath(new URL("../fixtures/member.ts", import.meta.url))

/** Starts a command: here, or on a host of a test. */
export type StartCommand = (command: string, values: ReadonlyArray<string>, options: SpawnOptions) => ChildProcess

/** A process, and the lines that it printed. */
export class MemberProcess {
  readonly input: MemberInput
  readonly #child: ChildProcess
  readonly #lines: Array<MemberLine> = []
  readonly #waiting = new Set<() => void>()
  #stderr = ""
  #end: string | undefined

  constructor(input: MemberInput, start: StartCommand = spawn) {
    this.input = input
    this.#child = start(process.execPath, [script, JSON.stringify(input)], { stdio: ["pipe", "pipe", "pipe"] })
    createInterface({ input: this.#child.stdout! }).on("line", (text) => {
      if (!text.startsWith("{")) {
        this.#stderr += `${text}\n`
        return
      }
      this.#lines.push(JSON.parse(text) as MemberLine)
      for (const look of [...this.#waiting]) look()
    })
    this.#child.stderr!.on("data", (chunk) => {
      this.#stderr += String(chunk)
    })
    this.#child.once("close", (code, signal) => {
      this.#end = `code ${code}, signal ${signal}`
      for (const look of [...this.#waiting]) look()
    })
  }

  /** How many lines there are: from here on is what comes later. */
  get mark(): number {
    return this.#lines.length
  }

  /** Lines of status so far. */
  get statuses(): ReadonlyArray<MemberLine & { readonly event: "status" }> {
    return this.#lines.flatMap((line) => (line.event === "status" ? [line] : []))
  }

  send(line: string): void {
    this.#child.stdin!.write(`${line}\n`)
  }

  kill(): void {
    this.#child.kill("SIGKILL")
  }

  /** The first line from `mark` on that is wanted. Dies where the process ends first, or after 60 seconds. */
  until(wanted: (line: MemberLine) => boolean, mark = 0): Effect.Effect<MemberLine> {
    const describe = (why: string): string =>
      `rank ${this.input.rank}: ${why}. ${this.#stderr}\n${this.#lines
        .slice(-30)
        .map((line) => JSON.stringify(line))
        .join("\n")}`
    return Effect.callback<MemberLine>((resume) => {
      const look = (): void => {
        const found = this.#lines.slice(mark).find(wanted)
        if (found !== undefined) resume(Effect.succeed(found))
        else if (this.#end !== undefined) resume(Effect.die(describe(`it ended with ${this.#end}`)))
      }
      this.#waiting.add(look)
      look()
      return Effect.sync(() => this.#waiting.delete(look))
    }).pipe(Effect.timeoutOrElse({ duration: "60 seconds", orElse: () => Effect.die(describe("it did not come")) }))
  }

  /** Sends a line and waits for its answer. */
  ask(line: string): Effect.Effect<MemberLine> {
    return Effect.suspend(() => {
      const { mark } = this
      this.send(line)
      return this.until(({ event }) => event === "used" || event === "published" || event === "failed", mark)
    })
  }

  /** Ends when it serves the version, by what it prints from now on or printed last. */
  serves(label: string): Effect.Effect<unknown> {
    return this.until((line) => line.event === "status" && line.serving === label, Math.max(0, this.mark - 1))
  }
}

/** A process that is killed with the scope. */
export const startMember = (input: MemberInput, start?: StartCommand) =>
  Effect.acquireRelease(
    Effect.sync(() => new MemberProcess(input, start)),
    (member) => Effect.sync(() => member.kill())
  ).pipe(Effect.tap((member) => member.until(({ event }) => event === "ready")))

/**
 * Uses the version that a member serves. A process that got no time misses its fence, and rightly refuses until it has seen
 * the history again.
 */
const used = (member: MemberProcess, label: string) =>
  Effect.repeat(
    Effect.andThen(
      member.serves(label),
      Effect.suspend(() => member.ask("use"))
    ),
    {
      until: (line) => line.event !== "failed" || !line.message.includes("It has not reached the store"),
      schedule: Schedule.spaced("100 millis"),
      times: 100
    }
  )

/** All serve the version and hold its bytes. */
export const allUse = (members: ReadonlyArray<MemberProcess>, label: string, seed: number) =>
  Effect.forEach(
    members,
    (member) =>
      Effect.gen(function* () {
        const hash = hashOf(seed, member.input.size)
        assert.deepStrictEqual(yield* used(member, label), { event: "used", label, hash })
      }),
    { concurrency: "unbounded", discard: true }
  )
