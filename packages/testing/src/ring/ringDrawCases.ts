// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of draws that only rings on devices have: windows within episodes, weights and their changes, all equal to the
 * reference, over the places where ring, pieces and trees wrap.
 */
import * as Effect from "effect/Effect"
import { check } from "../conformance/Case.ts"
import { makeRing, needsWindows, type RingCase, ringCase } from "./ringCase.ts"
import { expectBatch, ringRowsFrom } from "./ringRows.ts"

/** Weights of 32 bits with zeros and extremes among them. */
const weightOf = (row: number): number =>
  row % 5 === 0 ? 0 : row % 7 === 0 ? 2 ** 32 - 1 : (row * 2_654_435_761) % 2 ** 31

/** Draws whose chi-square limit an honest ring exceeds once in a million times or less. */
const expectShares = (what: string, counts: ReadonlyMap<number, number>, shares: ReadonlyMap<number, number>) =>
  Effect.gen(function* () {
    let draws = 0
    let sum = 0
    for (const [row, count] of counts) {
      draws += count
      yield* check(
        (shares.get(row) ?? 0) > 0,
        () => `${what}: row ${row}, which has no share, was drawn ${count} times.`
      )
    }
    for (const share of shares.values()) sum += share
    let statistic = 0
    let degrees = -1
    for (const [row, share] of shares) {
      if (share === 0) continue
      const expected = (draws * share) / sum
      statistic += ((counts.get(row) ?? 0) - expected) ** 2 / expected
      degrees += 1
    }
    const ninth = 2 / (9 * degrees)
    const limit = degrees * (1 - ninth + 4.75 * Math.sqrt(ninth)) ** 3
    yield* check(statistic < limit, () => `${what}: chi-square ${statistic} of ${degrees} degrees exceeds ${limit}.`)
  })

export const ringDrawCases: ReadonlyArray<RingCase> = [
  ringCase(
    "draws windows that cross, keep within, or are cut at the ends of episodes",
    Effect.gen(function* () {
      for (const capacity of [37, 129]) {
        const ring = yield* makeRing({ capacity, pieceRows: 5 })
        let end = 0
        for (let tick = 0; tick < 9; tick++) {
          end += 29
          yield* ring.push(ringRowsFrom(end - 29, 29))
          for (const episodes of ["cross", "whole", "cut"] as const) {
            for (const window of [2, 3, 6]) {
              const packing = (tick + window) % 2 === 0 ? "rows" : "columns"
              const draw = { seed: 5, tick, count: 33, window, episodes, packing } as const
              const what = `${window} rows, ${episodes}, ring of ${capacity}, tick ${tick}`
              yield* expectBatch(what, capacity, draw, yield* ring.sample(draw))
            }
          }
        }
      }
    }),
    needsWindows
  ),
  ringCase(
    "draws by weights of every size, through many rounds of the ring",
    Effect.gen(function* () {
      for (const capacity of [1, 15, 16, 17, 255, 256, 257, 700]) {
        const ring = yield* makeRing({ capacity, pieceRows: Math.ceil(capacity / 3) })
        let end = 0
        for (let tick = 0; tick < 5; tick++) {
          const rows = Math.ceil(capacity * 0.7)
          const from = end
          end += rows
          yield* ring.push(ringRowsFrom(from, rows), 1 + tick)
          const numbers = Array.from({ length: rows }, (_, at) => from + at)
          const draw = { seed: 11, tick, count: 64, draws: "weighted" } as const
          // Of a ring of one row, that one may be the row without a weight.
          const weightAt = (row: number): number => (capacity === 1 ? 3 : weightOf(row + tick))
          yield* ring.weigh!(numbers, numbers.map(weightAt))
          const first = Math.max(0, end - capacity)
          const older = Array.from({ length: from - first }, (_, at) => first + at)
          yield* ring.weigh!(older, older.map(weightAt))
          yield* expectBatch(`Ring of ${capacity}, tick ${tick}`, capacity, draw, yield* ring.sample(draw), weightAt)
          const pairs = { ...draw, window: 2, episodes: "whole" } as const
          if (capacity > 20) {
            yield* expectBatch(`Pairs of ${capacity}`, capacity, pairs, yield* ring.sample(pairs), weightAt)
          }
        }
      }
    }),
    needsWindows
  ),
  ringCase(
    "gives new rows the weight of their push, and takes the largest of a row that is weighed twice",
    Effect.gen(function* () {
      const capacity = 64
      const ring = yield* makeRing({ capacity, pieceRows: 10 })
      yield* ring.push(ringRowsFrom(0, 40), 3)
      yield* ring.push(ringRowsFrom(40, 40), 100)
      // Rows below 16 are gone, 80 has never been.
      yield* ring.weigh!([50, 20, 50, 50, 3, 15, 80, 20, 79], [7, 9, 1000, 8, 1e9, 1e9, 1e9, 0, 0])
      const changed = new Map([
        [50, 1000],
        [20, 9],
        [79, 0]
      ])
      const weightAt = (row: number): number => changed.get(row) ?? (row < 40 ? 3 : 100)
      for (let tick = 0; tick < 5; tick++) {
        const draw = { seed: 2, tick, count: 200, draws: "weighted" } as const
        yield* expectBatch(`Tick ${tick}`, capacity, draw, yield* ring.sample(draw), weightAt)
      }
    }),
    needsWindows
  ),
  ringCase(
    "draws rows equally often",
    Effect.gen(function* () {
      const capacity = 90
      const ring = yield* makeRing({ capacity })
      yield* ring.push(ringRowsFrom(0, 80))
      yield* ring.push(ringRowsFrom(80, 60))
      const counts = new Map<number, number>()
      for (let tick = 0; tick < 20; tick++) {
        const { rows } = yield* ring.sample({ seed: 31, tick, count: 1000, packing: "rows" })
        const view = new DataView(rows.buffer, rows.byteOffset)
        for (let at = 0; at < 1000; at++) {
          const row = Number(view.getBigInt64((at * rows.byteLength) / 1000, true))
          counts.set(row, (counts.get(row) ?? 0) + 1)
        }
      }
      const shares = new Map(Array.from({ length: capacity }, (_, at) => [50 + at, 1]))
      yield* expectShares("Uniform draws", counts, shares)
    })
  ),
  ringCase(
    "draws rows in proportion to their weights",
    Effect.gen(function* () {
      const capacity = 90
      const ring = yield* makeRing({ capacity })
      yield* ring.push(ringRowsFrom(0, 80))
      yield* ring.push(ringRowsFrom(80, 60))
      const rows = Array.from({ length: capacity }, (_, at) => 50 + at)
      const shares = new Map(rows.map((row) => [row, row % 6 === 0 ? 0 : (row % 13) ** 2 + 1]))
      yield* ring.weigh!(rows, [...shares.values()])
      const counts = new Map<number, number>()
      for (let tick = 0; tick < 20; tick++) {
        const { positions } = yield* ring.sample({ seed: 31, tick, count: 1000, draws: "weighted", packing: "rows" })
        for (const row of positions!) counts.set(row, (counts.get(row) ?? 0) + 1)
      }
      yield* expectShares("Weighted draws", counts, shares)
    }),
    needsWindows
  )
]
