// SPDX-License-Identifier: Apache-2.0
/** The demand of a job is what the plans of its ranks receive, bundle by bundle, over generated layouts. */

import { assert, describe, it } from "@effect/vitest"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, regionShape } from "@tensorferry/core/base/Region"
import type { Roster } from "@tensorferry/core/layout/Roster"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import { expertPair, fusedPair, layoutsOf, modelPair } from "@tensorferry/testing/planning/arbitraries"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { planDemand } from "../../src/fanout/planDemand.ts"

const holds = (source: Roster, destination: Roster, what: unknown): void => {
  const index = Result.getOrThrow(indexRosters(source, destination))
  const { bundles, bundleOf } = planDemand(index)
  const text = JSON.stringify(what)
  const keys = bundles.map(({ holders, wanters }) => `${holders} to ${wanters}`)
  assert.strictEqual(new Set(keys).size, keys.length, text)
  for (const { rank } of destination.members) {
    const received = new Map<number, number>()
    const { recvOps, destinationTensors } = planRank(index, rank)
    const resolved = new Map(destinationTensors.map(({ name, resolvedName }) => [name, resolvedName]))
    for (const op of recvOps) {
      const at = bundleOf(resolved.get(op.paramName)!, op.peerRank, op.peerSlice)!
      assert.include(bundles[at]!.holders, op.peerRank, text)
      assert.include(bundles[at]!.wanters, rank, text)
      const bytes = byteLengthOf(op.wireDtype, elementCount(regionShape(op.mySlice)))
      received.set(at, (received.get(at) ?? 0) + bytes)
    }
    const wanted = bundles.flatMap(({ bytes, wanters }, at) => (wanters.includes(rank) ? [[at, bytes] as const] : []))
    assert.deepStrictEqual(
      [...received].filter(([, bytes]) => bytes > 0).sort(([a], [b]) => a - b),
      wanted.filter(([, bytes]) => bytes > 0),
      text
    )
  }
  for (const { bytes, regions } of bundles) {
    const sum = regions.reduce((total, region) => total + region.bytes * region.names.length, 0)
    assert.strictEqual(sum, bytes, text)
  }
}

const arbitrary = { runs: isSoak ? 4000 : 120, seed: isSoak ? `${Date.now()}` : "demand" }
const options = { arbitrary, timeout: isSoak ? 900_000 : 60_000 }

describe("the demand of a job is what its plans receive", () => {
  it.effect.prop(
    "of models cut alike",
    { pair: modelPair() },
    ({ pair }) =>
      Effect.sync(() => {
        const layouts = Result.getOrThrow(layoutsOf(pair))
        holds(layouts.source.roster, layouts.destination.roster, pair)
      }),
    options
  )
  it.effect.prop(
    "of fused tensors",
    { pair: fusedPair },
    ({ pair }) => Effect.sync(() => holds(pair.source, pair.destination, pair)),
    options
  )
  it.effect.prop(
    "of experts",
    { pair: expertPair },
    ({ pair }) => Effect.sync(() => holds(pair.source, pair.destination, pair)),
    options
  )
})
