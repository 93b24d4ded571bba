// SPDX-License-Identifier: Apache-2.0
/** Weights that are stored as numbers with companions are cut where, and only where, references can read the shards. */
import { assert, describe, it } from "@effect/vitest"
import { checkPacking, checkScales, codings, type RecordedPacking, type RecordedScales } from "../src/formCuts.ts"
import { readGolden } from "../src/readGolden.ts"

const casesOf = <Case>(set: string): ReadonlyArray<Case> =>
  (readGolden(set) as { readonly cases: ReadonlyArray<Case> }).cases

describe("packed integers", () => {
  const cases = casesOf<RecordedPacking>("packed_int")
  it.each(cases)("$id $title", (recorded) => {
    assert.isUndefined(checkPacking(recorded))
  })

  it("with a word of a shard changed are noticed", () => {
    const [first] = cases
    const [cut, ...rest] = first!.cuts
    const [shard, other] = cut!.example.shards
    const bits = shard.weight_packed!.bits
    const changed = { ...shard, weight_packed: { ...shard.weight_packed!, bits: `f${bits.slice(1)}` } }
    const wrong = { ...cut!, example: { ...cut!.example, shards: [changed, other] as const } }
    assert.match(checkPacking({ ...first!, cuts: [wrong, ...rest] }) ?? "", /shard 0: weight_packed/)
    assert.match(checkPacking({ ...first!, cuts: [{ ...cut!, step: 2 }, ...rest] }) ?? "", /a step of 1, recorded 2/)
  })
})

describe.each(Object.keys(codings) as ReadonlyArray<keyof typeof codings>)("blocks of %s", (set) => {
  const cases = casesOf<RecordedScales>(set)
  it("are cut between them, every number with the scale that it had", () => {
    assert.isAbove(cases.length, 30)
    for (const recorded of cases) assert.isUndefined(checkScales(set)(recorded), recorded.id)
  })
})
