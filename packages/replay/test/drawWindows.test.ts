// SPDX-License-Identifier: Apache-2.0
/** Draws of windows: those of the host ring, uniform, by weights, never over an end, and nothing where there is nothing. */
import { assert, describe, it } from "@effect/vitest"
import { drawRows } from "@tensorferry/core/replay/ReplaySampling"
import * as Schema from "effect/Schema"
import { drawWindows, type WindowRequest } from "../src/drawWindows.ts"
import { RingModel } from "../src/RingModel.ts"
import { assertProportions } from "./statistics.ts"

const request: WindowRequest = { seed: 1, tick: 0, count: 64, window: 1, draws: "uniform", episodes: "cross" }

/** A ring into which so many rows were pushed, in pieces, with weights by their number. */
const modelOf = (capacity: number, rows: number, piece: number, weightOf: (row: number) => number = () => 1) => {
  const model = new RingModel(capacity)
  for (let at = 0; at < rows; at += piece) {
    const count = Math.min(piece, rows - at)
    model.reserve(at, count)
    model.commit(at, count, 1)
    const positions = BigInt64Array.from({ length: count }, (_, k) => BigInt(at + k))
    model.weigh(
      positions,
      Uint32Array.from({ length: count }, (_, k) => weightOf(at + k))
    )
  }
  return model
}

const never = () => false
const natural = (minimum: number, maximum: number) => Schema.Int.check(Schema.isBetween({ minimum, maximum }))

describe("windows of one row", () => {
  it.prop(
    "are the rows of the ring on the host for every seed, tick and snapshot",
    {
      seed: natural(0, Number.MAX_SAFE_INTEGER),
      tick: natural(0, 2 ** 40),
      capacity: natural(1, 300),
      rows: natural(1, 900),
      count: natural(1, 80)
    },
    ({ capacity, count, rows, seed, tick }) => {
      const model = modelOf(capacity, rows, Math.min(capacity, 7))
      const range = Math.min(rows, capacity)
      const { drawn, positions } = drawWindows(model, { ...request, seed, tick, count }, never)
      assert.strictEqual(drawn, count)
      const first = rows - range
      assert.deepStrictEqual(
        Array.from(positions, Number),
        Array.from(drawRows({ seed, tick, rows: count, range }), (offset) => first + offset)
      )
    },
    { arbitrary: { runs: 200, seed: "host draws" } }
  )

  it("are drawn equally often", () => {
    const model = modelOf(100, 250, 9)
    const counts = new Float64Array(100)
    for (let tick = 0; tick < 500; tick++) {
      for (const position of drawWindows(model, { ...request, tick, count: 200 }, never).positions) {
        counts[Number(position) - 150]! += 1
      }
    }
    assertProportions("uniform", counts, new Float64Array(100).fill(1))
  })

  it("are drawn in proportion to their weights, and never with none", () => {
    const weightOf = (row: number): number => (row % 7 === 0 ? 0 : (row % 13) ** 3 + 1)
    const model = modelOf(100, 250, 9, weightOf)
    const counts = new Float64Array(100)
    for (let tick = 0; tick < 500; tick++) {
      const { drawn, positions } = drawWindows(model, { ...request, tick, count: 200, draws: "weighted" }, never)
      assert.strictEqual(drawn, 200)
      for (const position of positions) counts[Number(position) - 150]! += 1
    }
    assertProportions(
      "weighted",
      counts,
      Float64Array.from({ length: 100 }, (_, at) => weightOf(150 + at))
    )
  })
})

/** Episodes of 1 to 11 rows. */
const isEnd = (row: number): boolean => row % 17 === 3 || row % 11 === 5

describe("windows of several rows", () => {
  for (const draws of ["uniform", "weighted"] as const) {
    it(`are whole, within an episode and equally often each such, drawn ${draws}`, () => {
      const [capacity, rows, window] = [150, 400, 4]
      const model = modelOf(capacity, rows, 11)
      const first = rows - capacity
      const counts = new Float64Array(capacity)
      for (let tick = 0; tick < 400; tick++) {
        const asked = { ...request, tick, window, draws, episodes: "whole", count: 100 } as const
        const { drawn, lengths, positions } = drawWindows(model, asked, isEnd)
        assert.strictEqual(drawn, 100)
        for (const [at, position] of positions.entries()) {
          assert.strictEqual(lengths[at], window)
          counts[Number(position) - first]! += 1
        }
      }
      const shares = Float64Array.from({ length: capacity }, (_, at) => {
        const start = first + at
        if (start + window > rows) return 0
        return [0, 1, 2].some((by) => isEnd(start + by)) ? 0 : 1
      })
      assertProportions("whole windows", counts, shares)
    })
  }

  it("are cut at the end of their episode", () => {
    const model = modelOf(150, 400, 11)
    const { drawn, lengths, positions } = drawWindows(model, { ...request, window: 5, episodes: "cut" }, isEnd)
    assert.strictEqual(drawn, request.count)
    const seen = new Set<number>()
    for (const [at, position] of positions.entries()) {
      const length = lengths[at]!
      seen.add(length)
      const rows = Array.from({ length: length - 1 }, (_, by) => Number(position) + by)
      assert.isFalse(rows.some(isEnd), `${position} of ${length} rows`)
      if (length < 5) assert.isTrue(isEnd(Number(position) + length - 1))
    }
    assert.isAbove(seen.size, 2)
  })

  it("are none where no window fits, and where no row has a weight", () => {
    const model = modelOf(50, 20, 5)
    const drawnOf = (asked: Partial<WindowRequest>, ends = never) =>
      drawWindows(model, { ...request, ...asked }, ends).drawn
    assert.strictEqual(drawnOf({ window: 20 }), request.count)
    assert.strictEqual(drawnOf({ window: 21 }), 0)
    assert.strictEqual(
      drawnOf({ window: 3, episodes: "whole" }, () => true),
      0
    )
    assert.strictEqual(drawnOf({ draws: "weighted" }), request.count)
    model.weigh(
      BigInt64Array.from({ length: 20 }, (_, at) => BigInt(at)),
      new Uint32Array(20)
    )
    assert.strictEqual(drawnOf({ draws: "weighted" }), 0)
    assert.strictEqual(drawWindows(new RingModel(5), request, never).drawn, 0)
  })
})
