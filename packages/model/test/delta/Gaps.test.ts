// SPDX-License-Identifier: Apache-2.0
/** Positions as gaps of 16 bits give the same positions back, or are not packed at all. */
import { assert, describe, it } from "@effect/vitest"
import { makeRandom } from "@tensorferry/testing/mutate"
import { writeGaps, writePositions } from "../../src/delta/Gaps.ts"

const gapsOf = (positions: Uint32Array): Uint16Array | undefined => {
  const gaps = new Uint16Array(positions.length)
  return writeGaps(positions, gaps) ? gaps : undefined
}

const positionsOf = (gaps: Uint16Array): Uint32Array => {
  const positions = new Uint32Array(gaps.length)
  writePositions(gaps, positions)
  return positions
}

describe("gaps", () => {
  it("give positions back", () => {
    const random = makeRandom(2)
    for (const widest of [1, 2, 300, 65_536]) {
      for (const count of [0, 1, 2, 1000]) {
        let next = -1
        const positions = Uint32Array.from({ length: count }, () => (next += 1 + random.below(widest)))
        const gaps = gapsOf(positions)!
        assert.lengthOf(gaps, count)
        assert.deepStrictEqual(positionsOf(gaps), positions)
      }
    }
    const last = Uint32Array.from({ length: 65_536 }, (_, at) => 65_536 * at + 65_535)
    assert.deepStrictEqual(positionsOf(gapsOf(last)!), last)
  })

  it("are none where one takes more than 16 bits", () => {
    assert.isUndefined(gapsOf(Uint32Array.of(65_536)))
    assert.isDefined(gapsOf(Uint32Array.of(65_535)))
    assert.isUndefined(gapsOf(Uint32Array.of(3, 4 + 65_536)))
    assert.isDefined(gapsOf(Uint32Array.of(3, 4 + 65_535)))
  })

  it("that lead too far do not ascend", () => {
    const positions = positionsOf(new Uint16Array(65_600).fill(0xffff))
    assert.isTrue(positions.some((position, at) => at > 0 && position <= positions[at - 1]!))
  })
})
