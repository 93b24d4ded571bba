// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of batches: the right rows, whole, from what is there; memory that is the caller's again; what is refused.
 */
import * as Effect from "effect/Effect"
import { checkEqual } from "../conformance/Case.ts"
import { expectRefusal, makeRing, needsWindows, type RingCase, ringCase } from "./ringCase.ts"
import { expectBatch, ringLayout, ringRowsFrom } from "./ringRows.ts"

export const ringBatchCases: ReadonlyArray<RingCase> = [
  ringCase(
    "draws the rows that seed and tick determine, through many rounds of the ring",
    Effect.gen(function* () {
      for (const [capacity, pieceRows] of [
        [1, 1],
        [2, 1],
        [7, 3],
        [50, 8],
        [300, 64]
      ] as const) {
        const ring = yield* makeRing({ capacity, pieceRows })
        let end = 0
        for (let tick = 0; tick < 12; tick++) {
          const count = 1 + ((tick * 37) % (2 * capacity))
          end += count
          yield* checkEqual("Rows ever pushed", yield* ring.push(ringRowsFrom(end - count, count)), end)
          const packing = tick % 2 === 0 ? "columns" : "rows"
          const draw = { seed: tick * 2 ** 40, tick: tick * 1000, count: 1 + ((tick * 53) % 90), packing } as const
          const batch = yield* ring.sample(draw)
          yield* checkEqual("The end of what was drawn from", batch.end, end)
          yield* checkEqual("Its beginning", batch.first, Math.max(0, end - capacity))
          yield* expectBatch(`Tick ${tick} of a ring of ${capacity}`, capacity, draw, batch)
        }
      }
    })
  ),
  ringCase(
    "draws large batches, in which numbers beyond the range are passed over often",
    Effect.gen(function* () {
      const capacity = 1040
      const ring = yield* makeRing({ capacity })
      yield* ring.push(ringRowsFrom(0, 1030))
      for (const count of [1000, 5000, 40_000]) {
        const draw = { seed: 7, tick: count, count }
        yield* expectBatch(`${count} rows`, capacity, draw, yield* ring.sample(draw))
      }
    })
  ),
  ringCase(
    "takes rows from memory that changes as soon as a push has ended",
    Effect.gen(function* () {
      const capacity = 40
      const ring = yield* makeRing({ capacity, pieceRows: 4 })
      const memory = new Uint8Array(33 * ringLayout.rowBytes)
      for (let tick = 0; tick < 8; tick++) {
        memory.set(ringRowsFrom(tick * 33, 33))
        yield* ring.push(memory)
        memory.fill(0xcc)
        const draw = { seed: 3, tick, count: 100 }
        yield* expectBatch(`Tick ${tick}`, capacity, draw, yield* ring.sample(draw))
      }
    })
  ),
  ringCase(
    "begins empty where another ring was before",
    Effect.gen(function* () {
      for (let round = 0; round < 4; round++) {
        const drawAll = Effect.gen(function* () {
          const ring = yield* makeRing({ capacity: 16 })
          const draw = { seed: round, tick: 0, count: 20 }
          yield* expectRefusal("A draw from an empty ring", ring.sample(draw), ["RingEmpty"])
          yield* checkEqual("Rows of no push", yield* ring.push(new Uint8Array(0)), 0)
          yield* expectRefusal("A draw after an empty push", ring.sample(draw), ["RingEmpty"])
          yield* ring.push(ringRowsFrom(0, 3 + round))
          yield* expectBatch(`Round ${round}`, 16, draw, yield* ring.sample(draw))
        })
        yield* Effect.scoped(drawAll)
      }
    })
  ),
  ringCase(
    "refuses what does not fit, and goes on",
    Effect.gen(function* () {
      const ring = yield* makeRing({ capacity: 16 })
      yield* ring.push(ringRowsFrom(0, 5))
      const draw = { seed: 1, tick: 1, count: 20 }
      const ragged = ringRowsFrom(5, 2).subarray(1)
      yield* expectRefusal("Rows and a half", ring.push(ragged), ["InvalidRequest"])
      for (const [what, wrong] of [
        ["A negative seed", { seed: -1 }],
        ["Half a tick", { tick: 0.5 }],
        ["A seed that no number is", { seed: Number.NaN }],
        ["A tick beyond 2^53", { tick: 2 ** 60 }]
      ] as const) {
        yield* expectRefusal(what, ring.sample({ ...draw, ...wrong }), ["InvalidRequest"])
      }
      const batch = yield* ring.sample(draw)
      yield* checkEqual("Rows after refusals", batch.end, 5)
      yield* expectBatch("A draw after refusals", 16, draw, batch)
    })
  ),
  ringCase(
    "refuses windows, weights and episodes that cannot be, and goes on",
    Effect.gen(function* () {
      const ring = yield* makeRing({ capacity: 16 })
      const plain = yield* makeRing({ capacity: 16 })
      yield* ring.push(ringRowsFrom(0, 5))
      yield* plain.push(ringRowsFrom(0, 5))
      const draw = { seed: 1, tick: 1, count: 20 }
      for (const wrong of [{ count: 0 }, { count: 1.5 }, { window: 0 }, { window: 17 }, { count: 2 ** 25 }]) {
        yield* expectRefusal(JSON.stringify(wrong), ring.sample({ ...draw, ...wrong }), ["InvalidRequest"])
      }
      for (const weight of [-1, 0.5, 2 ** 32, Number.NaN]) {
        yield* expectRefusal(`The weight ${weight}`, ring.push(ringRowsFrom(5, 1), weight), ["InvalidRequest"])
      }
      yield* expectRefusal("Windows longer than what is there", ring.sample({ ...draw, window: 6 }), ["NothingToDraw"])
      // Rows 3 and 5 end episodes.
      const whole = { ...draw, window: 5, episodes: "whole" } as const
      yield* expectRefusal("Windows over every end", ring.sample(whole), ["NothingToDraw"])
      yield* ring.weigh!([0, 1, 2, 3, 4], [0, 0, 0, 0, 0])
      const weighted = { ...draw, draws: "weighted" } as const
      yield* expectRefusal("Rows without weights", ring.sample(weighted), ["NothingToDraw"])
      yield* expectBatch("A draw after refusals", 16, draw, yield* ring.sample(draw))
    }),
    needsWindows
  )
]
