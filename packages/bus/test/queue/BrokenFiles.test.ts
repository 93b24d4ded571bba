// SPDX-License-Identifier: Apache-2.0
/**
 * Files of queues and states that a power cut, a full disk or a program that does not know them left: the agent starts with
 * a new file, sets the broken one aside and says so. None ends the process.
 */
import { existsSync, readdirSync, readFileSync, statSync, truncateSync, utimesSync, writeFileSync } from "node:fs"
import { basename, dirname } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Result from "effect/Result"
import { CleanupBatch, RegisterTensors } from "../../src/command/Command.ts"
import type { CommandQueueError } from "../../src/queue/CommandQueue.ts"
import * as CommandQueueLmdb from "../../src/queue/CommandQueueLmdb.ts"
import * as AgentStateLmdb from "../../src/state/AgentStateLmdb.ts"
import { hasLmdb, lmdbMissing, scratch, uniqueFile } from "../support.ts"

const serve = (path: string) => CommandQueueLmdb.make({ path, role: "agent", capacity: 4096, mapBytes: 2 ** 24 })
const keep = (path: string) => AgentStateLmdb.make({ path, role: "agent", mapBytes: 2 ** 24 })

/** Hundreds of commands, some with pages of their own, and some taken out, so that there are free pages. */
const recorded = (path: string) =>
  Effect.scoped(
    Effect.gen(function* () {
      const queue = yield* serve(path)
      const short = Array.from({ length: 600 }, (_, at) => new CleanupBatch({ batchId: `short-${at}` }))
      const long = Array.from(
        { length: 8 },
        (_, at) => new RegisterTensors({ batchId: `long-${at}`, tensors: [["p", new Uint8Array(9000)]] })
      )
      yield* queue.enqueue([...short, ...long])
      yield* queue.dequeue(100)
      yield* queue.enqueue(short.slice(0, 300))
      return readFileSync(path)
    })
  )

const pageBytes = 4096

/** No command where one was lost. */
const orLost = <A>(dequeue: Effect.Effect<ReadonlyArray<A>, CommandQueueError>) =>
  Effect.catchIf(
    dequeue,
    ({ reason }) => reason._tag === "Corrupt",
    () => Effect.succeed<ReadonlyArray<A>>([])
  )

/** What opening the bytes as an agent logs. The queue works afterwards. */
const logsOf = (path: string, prepare: () => void) =>
  Effect.gen(function* () {
    const lines: Array<string> = []
    const logger = Logger.make(({ message }) => void lines.push(String(message)))
    prepare()
    yield* Effect.scoped(
      Effect.gen(function* () {
        const queue = yield* serve(path)
        yield* queue.enqueue([new CleanupBatch({ batchId: "last" })])
        for (;;) {
          const taken = yield* orLost(queue.dequeue(1000))
          const last = taken.at(-1)
          if (last?._tag === "CleanupBatch" && last.batchId === "last") break
        }
      })
    ).pipe(Effect.provide(Logger.layer([logger])))
    return lines.filter((line) => line.includes("set aside"))
  })

const asideOf = (path: string) =>
  readdirSync(dirname(path)).filter((name) => name.startsWith(`${basename(path)}-broken-`))

describe.skipIf(!hasLmdb)(`a broken queue file${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  let cuts = 0
  const withRecorded = <E, R>(body: (whole: Buffer, next: () => string) => Effect.Effect<void, E, R>) =>
    Effect.scoped(
      Effect.flatMap(scratch, (folder) =>
        Effect.flatMap(recorded(uniqueFile(folder, "whole")), (whole) =>
          body(whole, () => uniqueFile(folder, `cut${++cuts}`))
        )
      )
    )

  it.live("that is whole is taken over as it is", () =>
    withRecorded((whole, next) =>
      Effect.gen(function* () {
        assert.isAbove(whole.length / pageBytes, 20)
        const path = next()
        assert.deepStrictEqual(yield* logsOf(path, () => writeFileSync(path, whole, { mode: 0o600 })), [])
        assert.deepStrictEqual(asideOf(path), [])
      })
    )
  )

  it.live("that was cut short is set aside, whatever its length", () =>
    withRecorded((whole, next) =>
      Effect.gen(function* () {
        for (const length of [
          1,
          100,
          pageBytes,
          2 * pageBytes,
          3 * pageBytes + 7,
          whole.length >> 1,
          whole.length - 1
        ]) {
          const path = next()
          const lines = yield* logsOf(path, () => {
            writeFileSync(path, whole, { mode: 0o600 })
            truncateSync(path, length)
          })
          assert.lengthOf(lines, 1, `${length} bytes`)
          const [aside] = asideOf(path)
          assert.include(lines[0], path)
          assert.include(lines[0], aside!)
          assert.strictEqual(statSync(`${dirname(path)}/${aside}`).size, length)
          assert.isFalse(existsSync(path))
        }
      })
    )
  )

  it.live(
    "with garbage or zeros in any page, or anywhere, never ends the process",
    () =>
      withRecorded((whole, next) =>
        Effect.gen(function* () {
          let state = 7
          const random = (below: number) => {
            state = (Math.imul(state, 1664525) + 1013904223) >>> 0
            return Math.floor((state / 2 ** 32) * below)
          }
          let aside = 0
          const pages = whole.length / pageBytes
          const spoiled = (spoil: (bytes: Buffer) => void) =>
            Effect.gen(function* () {
              const path = next()
              const bytes = Buffer.from(whole)
              spoil(bytes)
              aside += (yield* logsOf(path, () => writeFileSync(path, bytes, { mode: 0o600 }))).length
            })
          for (let page = 0; page < pages; page += isSoak ? 1 : 5) {
            const [from, to] = [page * pageBytes, (page + 1) * pageBytes]
            yield* spoiled((bytes) => bytes.fill(0, from, to))
            yield* spoiled((bytes) => {
              for (let at = from; at < to; at++) bytes[at] = random(256)
            })
          }
          assert.isAbove(aside, 5)
          for (let round = 0; round < (isSoak ? 2000 : 40); round++) {
            yield* spoiled((bytes) => {
              // Where pages keep their numbers and offsets, most of the time.
              for (let flips = 1 + random(4); flips > 0; flips--) {
                bytes[random(pages) * pageBytes + random(random(2) === 0 ? 64 : pageBytes)] = random(256)
              }
            })
          }
        })
      ),
    600_000
  )

  // What LMDB has no reason to doubt: one byte of a value differs, in this page and in those that it was copied from.
  for (const [what, name, place, behind] of [
    ["a short command", "short-550", 550, 2],
    ["the type of a command", "short-551", 551, -16],
    ["the first byte of a command", "short-552", 552, -29],
    ["a command with pages of its own", "long-3", 603, 5000]
  ] as const) {
    it.live(`with a byte that differs in ${what} fails one take, which names the place, and gives all others`, () =>
      withRecorded((whole, next) =>
        Effect.gen(function* () {
          const path = next()
          const bytes = Buffer.from(whole)
          let found = 0
          for (let at = bytes.indexOf(name); at >= 0; at = bytes.indexOf(name, at + 1), found++) {
            // Still a letter: without a checksum it would be another command of the same form.
            bytes[at + behind]! ^= 1
          }
          assert.isAbove(found, 0)
          writeFileSync(path, bytes, { mode: 0o600 })
          yield* Effect.scoped(
            Effect.gen(function* () {
              const queue = yield* serve(path)
              const errors: Array<CommandQueueError> = []
              const names: Array<string> = []
              const { head, tail } = yield* queue.status
              assert.deepStrictEqual([head, tail], [100n, 908n])
              while ((yield* queue.status).head < tail || errors.length === 0) {
                const taken = yield* Effect.result(queue.dequeue(200))
                if (Result.isFailure(taken)) errors.push(taken.failure)
                else for (const message of taken.success) names.push((message as CleanupBatch).batchId)
              }
              const [error, ...more] = errors
              assert.deepStrictEqual([error!.reason._tag, more], ["Corrupt", []])
              assert.include(error!.message, `Entry ${place} of the queue ${path}`)
              assert.strictEqual((yield* queue.status).refused, 1)
              const all = [
                ...Array.from({ length: 500 }, (_, at) => `short-${at + 100}`),
                ...Array.from({ length: 8 }, (_, at) => `long-${at}`),
                ...Array.from({ length: 300 }, (_, at) => `short-${at}`)
              ]
              assert.deepStrictEqual(
                names,
                all.filter((_, at) => at + 100 !== place)
              )
              // The place is free, and what is put there next is not held against what was there before.
              yield* queue.enqueue(Array.from({ length: 4096 }, (_, at) => new CleanupBatch({ batchId: `next-${at}` })))
              let taken = 0
              while (taken < 4096) taken += (yield* queue.dequeue(1000)).length
            })
          )
        })
      )
    )
  }

  it.live("of an earlier run of the machine is set aside", () =>
    withRecorded((whole, next) =>
      Effect.gen(function* () {
        const path = next()
        const lines = yield* logsOf(path, () => {
          writeFileSync(path, whole, { mode: 0o600 })
          utimesSync(path, 1_000_000, 1_000_000)
        })
        assert.lengthOf(lines, 1)
        assert.include(lines[0], "an earlier run of the machine")
      })
    )
  )

  it.live("is refused by clients, and set aside as a state too", () =>
    withRecorded((whole, next) =>
      Effect.gen(function* () {
        const path = next()
        writeFileSync(path, whole, { mode: 0o600 })
        truncateSync(path, 3 * pageBytes)
        const client = AgentStateLmdb.make({ path, role: "client", connectMillis: 10 })
        assert.strictEqual((yield* Effect.flip(Effect.scoped(client))).reason._tag, "Damaged")
        yield* Effect.scoped(Effect.flatMap(keep(path), (state) => state.put([["a", Uint8Array.of(1)]])))
        assert.lengthOf(asideOf(path), 1)
      })
    )
  )
})
