// SPDX-License-Identifier: Apache-2.0
/** Swizzled scales: the documented places, padding left alone, and the way back; for every edge of rows and columns. */
import { assert, describe, it } from "@effect/vitest"
import { make } from "@tensorferry/testing/ReferenceEngine"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import {
  inRowsMoves,
  layOutMoves,
  scaleMatrixOf,
  swizzledLength,
  swizzledOffset
} from "../../src/transform/ScaleLayouts.ts"

const engine = make()

const roundTrip = (shape: ReadonlyArray<number>) =>
  Effect.gen(function* () {
    const [rows, columns] = scaleMatrixOf(shape)
    const scales = yield* engine.allocate("float8_e8m0fnu", shape)
    const bytes = scales.storage.bytes!
    for (let at = 0; at < bytes.length; at++) bytes[at] = 1 + (at % 251)
    const swizzled = yield* engine.allocate("float8_e8m0fnu", [swizzledLength(rows, columns)])
    yield* engine.fill(swizzled, 0)
    yield* engine.copy(layOutMoves("swizzled", scales, swizzled))
    const found = swizzled.storage.bytes!
    const expected = new Uint8Array(found.length)
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++)
        expected[swizzledOffset(row, column, columns)] = bytes[row * columns + column]!
    assert.deepStrictEqual(found, expected)
    const back = yield* engine.allocate("float8_e8m0fnu", shape)
    yield* engine.copy(inRowsMoves("swizzled", swizzled, back))
    assert.deepStrictEqual(back.storage.bytes, bytes)
  })

describe("swizzled scales", () => {
  it("lie where the documentation puts them", () => {
    // A tile of 128 x 4 takes 512 bytes; rows 32 apart are neighbours of 4 bytes.
    assert.strictEqual(swizzledOffset(0, 3, 8), 3)
    assert.strictEqual(swizzledOffset(1, 0, 8), 16)
    assert.strictEqual(swizzledOffset(32, 0, 8), 4)
    assert.strictEqual(swizzledOffset(127, 3, 8), 511)
    assert.strictEqual(swizzledOffset(0, 4, 8), 512)
    assert.strictEqual(swizzledOffset(128, 0, 8), 1024)
    assert.strictEqual(swizzledLength(129, 5), 2 * 2 * 512)
  })

  it("no two scales share a place, and a shard of them is not a swizzled shard", () => {
    const places = new Set<number>()
    for (let row = 0; row < 200; row++)
      for (let column = 0; column < 7; column++) places.add(swizzledOffset(row, column, 7))
    assert.strictEqual(places.size, 1400)
    assert.isBelow(Math.max(...places), swizzledLength(200, 7))
    // Rows 64 to 127 begin in the middle of a tile, and the bytes from there on belong to other rows too.
    assert.notStrictEqual(swizzledOffset(64, 0, 4), swizzledLength(64, 4))
  })

  it.effect("there and back at every kind of edge", () =>
    Effect.forEach(
      [
        [6, 3],
        [128, 4],
        [129, 5],
        [1, 1],
        [31, 2],
        [33, 4],
        [64, 9],
        [3, 50, 7],
        [257, 8],
        [0, 4],
        [160, 1]
      ],
      roundTrip,
      { discard: true }
    )
  )

  const Lengths = Schema.Tuple([
    Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 300 })),
    Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 14 }))
  ])
  it.effect.prop(
    "there and back",
    { lengths: Arbitrary.schema(Lengths) },
    ({ lengths }) => Effect.scoped(roundTrip(lengths)),
    {
      arbitrary: { runs: 30 }
    }
  )
})
