// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of order: rows that are pushed while batches are drawn. Every row of every batch is whole and one of those that the
 * batch says it was drawn from.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { check, checkEqual } from "../conformance/Case.ts"
import { makeRing, needsWindows, type RingCase, ringCase } from "./ringCase.ts"
import { expectBatch, ringRowsFrom } from "./ringRows.ts"

export const ringOrderCases: ReadonlyArray<RingCase> = [
  ringCase(
    "draws whole rows of one snapshot while another fiber pushes round and round",
    Effect.gen(function* () {
      // Pieces of 3 rows wrap at every place of a ring of 8.
      const capacity = 8
      const ring = yield* makeRing({ capacity, pieceRows: 3 })
      yield* ring.push(ringRowsFrom(0, 5))
      const pushing = yield* Effect.forkScoped(
        Effect.gen(function* () {
          for (let end = 5; end < 200; end += 1 + (end % 7)) {
            yield* ring.push(ringRowsFrom(end, 1 + (end % 7)))
            yield* Effect.yieldNow
          }
        })
      )
      let last = 0
      for (let tick = 0; tick < 60; tick++) {
        const draw = { seed: 9, tick, count: 30 }
        const batch = yield* ring.sample(draw)
        yield* check(batch.end >= last, () => `Tick ${tick} was drawn from rows below ${batch.end}, after ${last}.`)
        last = batch.end
        yield* expectBatch(`Tick ${tick}`, capacity, draw, batch)
        yield* Effect.yieldNow
      }
      yield* Fiber.join(pushing)
    })
  ),
  ringCase(
    "draws only what was there before, while the rows of the same tick arrive",
    Effect.gen(function* () {
      for (const [capacity, pieceRows] of [
        [8, 3],
        [24, 4],
        [64, 16],
        [3, 1],
        [1, 1]
      ] as const) {
        const ring = yield* makeRing({ capacity, pieceRows })
        yield* ring.push(ringRowsFrom(0, capacity + 2))
        let end = capacity + 2
        for (let tick = 0; tick < 16; tick++) {
          const rows = (tick * 5) % (2 * capacity)
          // The first piece of the push takes the place of rows that are not drawn any more.
          const lost = Math.min(rows, pieceRows)
          if (capacity - lost < 1) continue
          const window = capacity - lost > 3 && tick % 2 === 1 ? 2 : 1
          const draws = tick % 3 === 2 ? "weighted" : "uniform"
          const draw = { seed: 4, tick, count: 40, window, draws } as const
          const batch = yield* ring.tick!(ringRowsFrom(end, rows), draw)
          const what = `Tick ${tick} of a ring of ${capacity}`
          yield* checkEqual(`${what}: its end`, batch.end, end)
          yield* checkEqual(`${what}: its beginning`, batch.first, end - capacity + lost)
          yield* expectBatch(what, capacity, draw, batch)
          end += rows
        }
        const draw = { seed: 4, tick: 99, count: 40 }
        const batch = yield* ring.sample(draw)
        yield* checkEqual("The end after all ticks", batch.end, end)
        yield* expectBatch("After all ticks", capacity, draw, batch)
      }
    }),
    needsWindows
  ),
  ringCase(
    "draws new rows as soon as they are in place, while others of the same tick were on their way",
    Effect.gen(function* () {
      for (const [capacity, pieceRows] of [
        [8, 3],
        [24, 4],
        [64, 16],
        [1, 1]
      ] as const) {
        const ring = yield* makeRing({ capacity, pieceRows })
        let end = 0
        for (let tick = 0; tick < 16; tick++) {
          const rows = 1 + ((tick * 7) % (3 * capacity))
          end += rows
          const window = Math.min(end, capacity) > 3 && tick % 2 === 1 ? 3 : 1
          const draws = tick % 3 === 2 ? "weighted" : "uniform"
          const draw = { seed: 6, tick, count: 60, window, draws, episodes: "cut", sees: "new" } as const
          const batch = yield* ring.tick!(ringRowsFrom(end - rows, rows), draw)
          const what = `Tick ${tick} of a ring of ${capacity}`
          yield* checkEqual(`${what}: its end`, batch.end, end)
          yield* checkEqual(`${what}: its beginning`, batch.first, Math.max(0, end - capacity))
          yield* expectBatch(what, capacity, draw, batch)
        }
      }
    }),
    needsWindows
  ),
  ringCase(
    "carries out what its caller no longer waits for, whole",
    Effect.gen(function* () {
      const capacity = 32
      const ring = yield* makeRing({ capacity, pieceRows: 2 })
      yield* ring.push(ringRowsFrom(0, 7))
      for (let round = 0; round < 10; round++) {
        const before = (yield* ring.sample({ seed: 0, tick: 0, count: 1 })).end
        const pushing = yield* Effect.forkScoped(ring.push(ringRowsFrom(before, 9)), { startImmediately: true })
        for (let turn = 0; turn < round; turn++) yield* Effect.yieldNow
        yield* Fiber.interrupt(pushing)
        const draw = { seed: 8, tick: round, count: 50 }
        const batch = yield* ring.sample(draw)
        yield* check(batch.end >= before && batch.end <= before + 9, () => `${batch.end} rows after ${before} and 9.`)
        yield* expectBatch(`Round ${round}`, capacity, draw, batch)
      }
    })
  )
]
