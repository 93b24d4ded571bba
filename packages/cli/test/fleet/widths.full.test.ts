// SPDX-License-Identifier: Apache-2.0
/** What commands print of a fleet on terminals of several widths, and where letters are of ASCII alone. */
import { spawn, spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { beat, type MadeUp, madeUpMember, madeUpVersion, putFleet, served, servedStore, took } from "./madeUp.ts"

const main = fileURLToPath(new URL("../../src/main.ts", import.meta.url))

/** An open update, one that was given up, a member that failed, and one whose machine has a long name. */
const plain = served(9)
const by = madeUpMember(0).id
const reason = "1 of 2 have it after 60 s. The device failed: out of memory."
const fleet: MadeUp = {
  ...plain,
  entries: [
    ...plain.entries,
    { _tag: "Propose", manifest: madeUpVersion(3), policy: { _tag: "Quorum", count: 2 }, by, at: 20_000 },
    { _tag: "Abort", serial: 3, culprits: [madeUpMember(3).id], reason, at: 80_000 },
    { _tag: "Propose", manifest: madeUpVersion(4), policy: { _tag: "All" }, by, at: Date.now() }
  ],
  reports: plain.reports.map((report, rank) => (rank === 3 ? { ...report, failure: "The device failed." } : report)),
  progress: plain.progress.map((stated, rank) => {
    const named = { ...stated, host: `a-rather-long-name-${rank}.of-a-machine.example.org` }
    const part = { from: madeUpMember(Math.max(0, rank - 1)).id, stripe: 0, bytes: 1000, done: 900 - 50 * rank }
    return rank === 0 ? named : took(named, 4, null, [part])
  })
}

/** What the command prints on a terminal. */
const printed = (columns: number, args: string, env: Readonly<Record<string, string>> = {}) =>
  Effect.promise(
    () =>
      new Promise<string>((resolve, reject) => {
        const command = `stty cols ${columns}; '${process.execPath}' '${main}' ${args}`
        const child = spawn("script", ["-qec", command, "/dev/null"], { env: { ...process.env, ...env } })
        let text = ""
        child.stdout.on("data", (chunk) => {
          text += String(chunk)
        })
        child.on("error", reject)
        child.on("close", (code) => (code === 0 ? resolve(text.replaceAll("\r\n", "\n")) : reject(new Error(text))))
      })
  )

const commands = [
  "fleet status",
  "fleet history",
  "fleet explain 2",
  "fleet explain 3",
  "fleet explain 4",
  "watch --once"
]

/** What `watch --terminal` draws on a terminal of 60 columns until it has drawn so often, and how it ends on a signal. */
const drawn = (port: number, times: number) =>
  Effect.promise(
    () =>
      new Promise<{ readonly frames: ReadonlyArray<string>; readonly code: number | null }>((resolve, reject) => {
        const command = `stty cols 60 rows 40; exec '${process.execPath}' '${main}' watch --terminal --store 127.0.0.1:${port}`
        const child = spawn("script", ["-qec", command, "/dev/null"], { stdio: ["pipe", "pipe", "inherit"] })
        let text = ""
        let isAsked = false
        const framesOf = () => text.replaceAll("\r\n", "\n").split("\u001b[H\u001b[2J").slice(1)
        child.stdout.on("data", (chunk) => {
          text += String(chunk)
          if (isAsked || framesOf().length <= times) return
          isAsked = true
          // Ctrl-C, as a user types it.
          child.stdin.write("\u0003")
        })
        child.on("error", reject)
        child.on("close", (code) => resolve({ frames: framesOf(), code }))
      })
  ).pipe(Effect.timeout("60 seconds"))

describe.skipIf(spawnSync("script", ["--version"]).status !== 0)("a fleet on a terminal", () => {
  it.live(
    "fits 60, 80 and 200 columns, and is of ASCII alone where the locale is",
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const { port, store } = yield* servedStore()
          yield* putFleet(store, fleet)
          yield* beat(store, fleet.name, () => fleet.reports.filter(({ member }) => member.rank !== 6))
          for (const columns of [60, 80, 200]) {
            for (const args of columns === 60 ? commands : commands.slice(0, 2)) {
              const text = yield* printed(columns, `${args} --store 127.0.0.1:${port}`)
              for (const line of text.split("\n")) assert.isAtMost(line.length, columns, `${args}: ${line}`)
              assert.notInclude(text, "\u001b[")
            }
          }
          for (const args of commands.slice(-3)) {
            const text = yield* printed(80, `${args} --store 127.0.0.1:${port}`, { LC_ALL: "C" })
            assert.match(text, /^[\n\x20-\x7e]+$/, args)
          }
        })
      ),
    180_000
  )

  it.live(
    "is drawn again as it changes until Ctrl-C, within the terminal's columns and rows",
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const { port, store } = yield* servedStore()
          yield* putFleet(store, fleet)
          yield* beat(store, fleet.name, () => fleet.reports)
          const { code, frames } = yield* drawn(port, 3)
          assert.strictEqual(code, 130)
          for (const frame of frames.slice(0, 3)) {
            const lines = frame.split("\n")
            assert.include(lines[0], "Fleet prod: version 2")
            assert.isAtMost(lines.length, 40)
            for (const line of lines) assert.isAtMost(line.length, 60, line)
          }
        })
      ),
    120_000
  )
})
