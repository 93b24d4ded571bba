// SPDX-License-Identifier: Apache-2.0
/**
 * Replay rings in real shared memory: a writer in another process that overwrites as fast as it can, several that want
 * the same ring, and one that is killed in the middle of a row.
 */

import { assert, describe, it } from "@effect/vitest"
import { packRows } from "@tensorferry/core/replay/ReplayPack"
import {
  claimReplayWriter,
  createReplayRing,
  openReplayRing,
  replayRingBytes,
  snapshotOf
} from "@tensorferry/core/replay/ReplayRing"
import { makeRowLayout } from "@tensorferry/core/replay/ReplayRowLayout"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import type { Question } from "./fixtures/replay-writer.ts"
import { makeEngine, startPeer } from "./support.ts"

/** Batches to look at while the writer writes. */
const wanted = isSoak ? 10_000 : 50
const capacity = 8
const chunk = 3

const makeRing = (width: number) =>
  Effect.gen(function* () {
    const { memory } = yield* makeEngine()
    const layout = Result.getOrThrow(makeRowLayout([{ name: "x", dtype: "float64", shape: [width] }]))
    const storage = yield* memory.allocate(replayRingBytes(layout, capacity))
    const ring = Result.getOrThrow(createReplayRing(storage, layout, capacity))
    return { handle: yield* memory.share(storage), layout, memory, ring, storage }
  })

const startWriter = Effect.gen(function* () {
  const peer = yield* startPeer("replay-writer")
  return {
    ask: (question: Question) => Effect.promise(() => peer.ask(question)),
    kill: Effect.promise(peer.kill),
    peer
  }
})

describe("a writer in another process", () => {
  // One mebibyte, as large as a piece of a batch, and rows that are copied word by word.
  for (const [what, width, rows, total] of [
    ["long", 2 ** 17, 3, 150],
    ["short", 4, 3000, 3000]
  ] as const) {
    it.live(
      `never shows a torn row of the ${what} ones, however fast it overwrites them`,
      () =>
        Effect.gen(function* () {
          const { handle, layout, memory } = yield* makeRing(width)
          const writer = yield* startWriter
          assert.deepStrictEqual(yield* writer.ask({ _tag: "claim", handle }), { claimed: true })
          // A reader without the right to write.
          const ring = Result.getOrThrow(openReplayRing(yield* memory.open(handle)))
          yield* writer.ask({ _tag: "hammer", from: 0, rows: 9, chunk })
          const batch = new Float64Array(rows * width)
          const bytes = Buffer.from(batch.buffer)
          const counts = { batches: 0, redrawn: 0, tooFast: 0 }
          let written = 9
          let newest = 0n
          const readWhile = (writing: Fiber.Fiber<unknown>) =>
            Effect.gen(function* () {
              for (let tick = 0; writing.pollUnsafe() === undefined; tick++) {
                batch.fill(-1)
                const packed = yield* Effect.result(packRows({ ring, seed: written, tick, rows, into: bytes }))
                yield* Effect.yieldNow
                if (Result.isFailure(packed)) {
                  assert.strictEqual(packed.failure.reason._tag, "Overwritten")
                  counts.tooFast += 1
                  continue
                }
                const { first, end, redrawn } = packed.success
                assert.isTrue(end >= newest && end - first <= BigInt(capacity))
                newest = end
                counts.batches += 1
                counts.redrawn += redrawn
                for (let row = 0; row < rows; row++) {
                  const value = batch[row * width]!
                  if (value < Number(first) || value >= Number(end)) assert.fail(`row ${value} of ${first} to ${end}`)
                  const one = bytes.subarray(row * layout.rowBytes, (row + 1) * layout.rowBytes)
                  // All words are equal where the row is the same one word further.
                  if (!one.subarray(8).equals(one.subarray(0, -8))) assert.fail(`row ${value} is torn`)
                }
              }
            })
          const isEnough = () => counts.batches >= wanted && counts.redrawn + counts.tooFast >= wanted / 10
          for (let round = 0; !isEnough(); round++) {
            assert.isBelow(round, 20 * wanted, JSON.stringify(counts))
            const question = { _tag: "hammer", from: written, rows: total, chunk } as const
            const writing = yield* Effect.forkChild(writer.ask(question), { startImmediately: true })
            yield* readWhile(writing)
            yield* Fiber.join(writing)
            written += total
            assert.strictEqual((yield* snapshotOf(ring)).end, BigInt(written))
          }
        }),
      300_000
    )
  }

  it.live("keeps the ring while it lives; after its death exactly one of several takes it over", () =>
    Effect.gen(function* () {
      const { handle, ring } = yield* makeRing(16)
      const first = yield* startWriter
      yield* first.ask({ _tag: "claim", handle })
      const others = yield* Effect.all([startWriter, startWriter])
      assert.deepStrictEqual(yield* others[0]!.ask({ _tag: "claim", handle }), { failed: "OwnedByOther" })
      const { reason } = yield* Effect.flip(claimReplayWriter(ring))
      assert.strictEqual(reason._tag, "OwnedByOther")
      assert.include(reason.detail, String(first.peer.pid))
      yield* first.ask({ _tag: "hammer", from: 0, rows: 9, chunk })
      yield* first.ask({ _tag: "begin", rows: 3 })
      assert.deepStrictEqual(yield* snapshotOf(ring), { first: 4n, end: 9n })
      yield* first.kill
      const answers = yield* Effect.forEach(others, ({ ask }) => ask({ _tag: "claim", handle }), {
        concurrency: "unbounded"
      })
      assert.deepStrictEqual(answers.map((answer) => JSON.stringify(answer)).sort(), [
        '{"claimed":true}',
        '{"failed":"OwnedByOther"}'
      ])
      assert.deepStrictEqual(yield* snapshotOf(ring), { first: 4n, end: 9n }, "what it had begun is not there")
      const next = others[answers.findIndex((answer) => "claimed" in (answer as object))]!
      yield* next.ask({ _tag: "hammer", from: 9, rows: 3, chunk })
      const into = new Float64Array(200 * 16)
      yield* packRows({ ring, seed: 1, tick: 1, rows: 200, into: new Uint8Array(into.buffer) })
      for (let row = 0; row < 200; row++) {
        const words = new Set(into.subarray(row * 16, (row + 1) * 16))
        assert.strictEqual(words.size, 1)
        const [value] = words
        assert.isTrue(value! >= 4 && value! < 12, `row ${value}`)
      }
    })
  )

  it.live("writes through a mapping of its own that its parent sees, and the other way round", () =>
    Effect.gen(function* () {
      const { memory } = yield* makeEngine()
      for (const size of [1000, 5 * 2 ** 20]) {
        const storage = yield* memory.allocate(size)
        const handle = yield* memory.share(storage)
        const shared = yield* memory.openShared(handle)
        const looked = yield* memory.open(handle)
        shared.bytes!.fill(7)
        assert.isTrue(Buffer.from(storage.bytes!).equals(Buffer.alloc(size, 7)))
        storage.bytes![size - 1] = 8
        assert.deepStrictEqual([shared.bytes![size - 1], looked.bytes![size - 1]], [8, 8])
        looked.bytes![size - 1] = 9
        assert.strictEqual(storage.bytes![size - 1], 8, "a mapping to read keeps to itself")
      }
    })
  )
})
