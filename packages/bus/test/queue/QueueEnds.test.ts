// SPDX-License-Identifier: Apache-2.0
/** Queues whose work is let go in the middle: nothing is lost or taken twice, and nothing comes after the end. */
import { readdirSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { CleanupBatch } from "../../src/command/Command.ts"
import * as CommandQueueLmdb from "../../src/queue/CommandQueueLmdb.ts"
import { hasLmdb, isSoak, lmdbMissing, scratch, uniqueFile } from "../support.ts"

const command = (at: number) => new CleanupBatch({ batchId: `${at}` })

const descriptors = () => readdirSync("/proc/self/fd").length

describe.skipIf(!hasLmdb)(`queues that end${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it.live("waits that are interrupted at any moment take nothing, and every command comes out once", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const path = uniqueFile(yield* scratch, "ends")
        const queue = yield* CommandQueueLmdb.make({ path, role: "agent", capacity: 64, mapBytes: 2 ** 22 })
        const seen: Array<string> = []
        const take = Effect.map(queue.dequeue(3), (messages) => {
          for (const message of messages) if (message._tag === "CleanupBatch") seen.push(message.batchId)
        })
        let sent = 0
        for (let round = 0; round < (isSoak ? 300 : 60); round++) {
          const taking = yield* Effect.forkChild(
            Effect.uninterruptibleMask((restore) => restore(take)),
            {
              startImmediately: true
            }
          )
          const count = 1 + (round % 4)
          const putting = yield* Effect.forkChild(
            queue.enqueue(Array.from({ length: count }, (_, at) => command(sent + at))),
            { startImmediately: true }
          )
          sent += count
          for (let step = 0; step < round % 7; step++) yield* Effect.yieldNow
          yield* Fiber.interrupt(taking)
          yield* Fiber.join(putting)
          // On a busy machine most waits end before they take: the next command must find a place.
          while (sent - seen.length > 50) yield* Effect.orDie(Effect.timeout(take, "20 seconds"))
        }
        const { tail, space } = yield* queue.status
        assert.strictEqual(tail, BigInt(sent))
        // What an interrupted wait had taken comes to the next one.
        yield* Effect.orDie(Effect.timeout(Effect.repeat(take, { until: () => seen.length >= sent }), "20 seconds"))
        assert.isAtMost(space, 64)
        const lost = Array.from({ length: sent }, (_, at) => `${at}`).filter((id) => !seen.includes(id))
        assert.deepStrictEqual(lost, [], `of ${sent}`)
        assert.lengthOf(new Set(seen), seen.length)
      })
    )
  )

  it.live("a queue that is closed while commands go in and out, again and again, leaves nothing open", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const path = uniqueFile(yield* scratch, "closed")
        const round = Effect.gen(function* () {
          const scope = yield* Scope.make()
          const queue = yield* Scope.provide(
            CommandQueueLmdb.make({ path, role: "agent", capacity: 16, mapBytes: 2 ** 22 }),
            scope
          )
          const begun = [
            Effect.asVoid(queue.dequeue()),
            queue.enqueue(Array.from({ length: 40 }, (_, at) => command(at))),
            Effect.asVoid(queue.status)
          ]
          const work = yield* Effect.forEach(begun, (each) =>
            Effect.forkChild(Effect.exit(each), { startImmediately: true })
          )
          yield* Scope.close(scope, Exit.void)
          for (const each of work) yield* Effect.timeout(Fiber.join(each), "20 seconds")
        })
        yield* round
        const before = descriptors()
        for (let at = 0; at < (isSoak ? 100 : 15); at++) yield* round
        assert.isAtMost(descriptors(), before)
      })
    )
  )
})
