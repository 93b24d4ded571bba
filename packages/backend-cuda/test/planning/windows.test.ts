// SPDX-License-Identifier: Apache-2.0
/** Windows of a flow: both ends cut alike, and no limit is passed. */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Schema from "effect/Schema"
import {
  alignUp,
  cutWindows,
  longestPiece,
  packAlignment,
  slotAlignment,
  spreadProgress,
  type WindowPiece,
  windowLimits
} from "../../src/planning/windows.ts"

const between = (minimum: number, maximum: number) => Schema.Int.check(Schema.isBetween({ minimum, maximum }))

const small = (byteLength: number): WindowPiece => ({ byteLength, isOwn: false, isStaged: true })
const own = (byteLength: number, isStaged = false): WindowPiece => ({ byteLength, isOwn: true, isStaged })

const limits = { stagedBytes: 1024, operations: 3, wireBytes: 10_000 }

describe("windowLimits", () => {
  it("shares staging between peers, directions and slots", () => {
    for (const peers of [0, 1, 2, 3, 7, 100]) {
      const { stagedBytes, operations } = windowLimits(64 * 2 ** 20, peers)
      assert.isAtMost(stagedBytes * 4 * Math.max(1, peers), 64 * 2 ** 20)
      assert.isAtMost(operations * 2 * Math.max(1, peers), 512)
      assert.isAtLeast(operations, 1)
      assert.strictEqual(stagedBytes % slotAlignment, 0)
    }
    assert.strictEqual(windowLimits(2 ** 20, 10_000).operations, 1)
  })
})

describe("cutWindows", () => {
  it("cuts nothing into nothing", () => assert.deepStrictEqual(cutWindows([], limits), []))

  it("packs what fits", () => {
    assert.deepStrictEqual(cutWindows([small(16), small(1), small(700)], limits), [{ begin: 0, end: 3 }])
  })

  it("starts a window where staging is full", () => {
    assert.deepStrictEqual(cutWindows([small(400), small(368), small(1)], limits), [
      { begin: 0, end: 2 },
      { begin: 2, end: 3 }
    ])
  })

  it("counts operations, and packed parts as one", () => {
    assert.deepStrictEqual(cutWindows([own(1), small(1), own(1), small(1), own(1)], limits), [
      { begin: 0, end: 4 },
      { begin: 4, end: 5 }
    ])
  })

  it("gives a part beyond all limits a window of its own", () => {
    assert.deepStrictEqual(cutWindows([own(1), own(1_000_000), own(1)], limits), [
      { begin: 0, end: 1 },
      { begin: 1, end: 2 },
      { begin: 2, end: 3 }
    ])
  })

  const Piece = Schema.Struct({ byteLength: between(1, 2000), isOwn: Schema.Boolean, isStaged: Schema.Boolean })
  it.prop(
    "covers all parts in order within the limits",
    { pieces: Arbitrary.array(Arbitrary.schema(Piece), { maxLength: 40 }), peers: Arbitrary.schema(between(1, 9)) },
    ({ pieces, peers }) => {
      const wanted = windowLimits(20_000 * peers, peers)
      const fitting = pieces.filter(({ byteLength }) => byteLength <= longestPiece(wanted))
      const windows = cutWindows(fitting, wanted)
      let next = 0
      for (const { begin, end } of windows) {
        assert.strictEqual(begin, next)
        assert.isBelow(begin, end)
        next = end
        const inside = fitting.slice(begin, end)
        const packed = inside.filter(({ isOwn }) => !isOwn)
        assert.isAtMost(inside.length - packed.length + (packed.length > 0 ? 1 : 0), wanted.operations)
        const packedBytes = packed
          .filter(({ isStaged }) => isStaged)
          .reduce((sum, { byteLength }) => sum + alignUp(byteLength, packAlignment), 0)
        const staged = inside
          .filter(({ isOwn, isStaged }) => isOwn && isStaged)
          .reduce(
            (sum, { byteLength }) => sum + alignUp(byteLength, slotAlignment),
            alignUp(packedBytes, slotAlignment)
          )
        assert.isAtMost(staged, wanted.stagedBytes)
      }
      assert.strictEqual(next, fitting.length)
    },
    { arbitrary: { runs: 300, seed: "windows" } }
  )
})

describe("spreadProgress", () => {
  it("ends at the total and never goes back", () => {
    for (const [traffic, total] of [
      [[], 0],
      [[5], 3],
      [[1, 1, 1], 100],
      [[7, 0, 2 ** 40], 13],
      [[0, 0], 0]
    ] as const) {
      const steps = spreadProgress(traffic, total)
      assert.isTrue(steps.every((step) => step >= 0))
      assert.strictEqual(
        steps.reduce((sum, step) => sum + step, 0),
        total
      )
    }
  })
})
