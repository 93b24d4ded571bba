// SPDX-License-Identifier: Apache-2.0
/**
 * The planner's laws over generated layouts, and the brute-force oracle that carries plans out with real bytes. Seeds are
 * fixed; TENSORFERRY_TESTS=soak runs many more.
 */

import { assert, describe, it } from "@effect/vitest"
import { loopbackLayer, makeLoopbackNetwork } from "@tensorferry/testing/Loopback"
import { driverLies, lyingDriver } from "@tensorferry/testing/Lying"
import { expertPair, fusedPair, layoutsOf, type ModelPair, modelPair } from "@tensorferry/testing/planning/arbitraries"
import {
  appendLaw,
  assemblyLaw,
  coverageLaw,
  estimateLaw,
  pairingLaw,
  payloadLaw
} from "@tensorferry/testing/planning/laws"
import { describeFault, jobSize, runOracle, runRoundTrip } from "@tensorferry/testing/planning/oracle"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { ReshardPlan } from "../../src/ir/ReshardPlan.ts"
import { parametersOf, type Roster } from "../../src/layout/Roster.ts"
import { checkPlans } from "../../src/planner/PlanCheck.ts"
import { indexRosters, planRank } from "../../src/planner/RosterPlanner.ts"

const times = (usual: number) => (isSoak ? usual * 20 : usual)
const timeout = isSoak ? 900_000 : 60_000

const rostersOf = (pair: ModelPair) => {
  const layouts = Result.getOrThrow(layoutsOf(pair))
  return { source: layouts.source.roster, destination: layouts.destination.roster }
}

const plansOf = (source: Roster, destination: Roster): ReadonlyArray<ReshardPlan> => {
  const index = Result.getOrThrow(indexRosters(source, destination))
  return Array.from({ length: jobSize(source, destination) }, (_, rank) => planRank(index, rank))
}

const entries = (roster: Roster) => roster.members.map(({ rank }) => [rank, parametersOf(roster, rank)] as const)

/** Deterministic, and never the identity for more than one value. */
const shuffle = <A>(values: ReadonlyArray<A>): ReadonlyArray<A> => {
  const odd = values.filter((_, at) => at % 2 === 1)
  return [...odd.reverse(), ...values.filter((_, at) => at % 2 === 0).reverse()]
}

const holds = (source: Roster, destination: Roster, what: unknown): void => {
  const plans = plansOf(source, destination)
  const faults = [
    ...coverageLaw(plans),
    ...pairingLaw(plans),
    ...estimateLaw(plans),
    ...payloadLaw(plans),
    ...checkPlans(plans).map((fault) => fault.message),
    ...assemblyLaw(entries(source), entries(destination), shuffle)
  ]
  assert.deepStrictEqual(faults, [], JSON.stringify(what))
}

const small = { tp: 4, pp: 2, dp: 2 }

describe("laws of plans", () => {
  it.effect(
    "hold for models in any two layouts",
    () =>
      Effect.gen(function* () {
        const pairs = yield* Arbitrary.sampleEffect(modelPair(), { count: times(40), seed: "laws" })
        for (const pair of pairs) {
          const { source, destination } = rostersOf(pair)
          holds(source, destination, pair)
        }
      }),
    timeout
  )

  it.effect(
    "hold for strided, packed and explicit cuts of one tensor",
    () =>
      Effect.gen(function* () {
        for (const pair of yield* Arbitrary.sampleEffect(fusedPair, { count: times(30), seed: "fused" })) {
          holds(pair.source, pair.destination, pair)
        }
      }),
    timeout
  )

  it.effect(
    "hold for experts kept as lists and in groups",
    () =>
      Effect.gen(function* () {
        for (const pair of yield* Arbitrary.sampleEffect(expertPair, { count: times(30), seed: "experts" })) {
          holds(pair.source, pair.destination, pair)
        }
      }),
    timeout
  )

  it.effect(
    "ids stay when destination ranks are appended",
    () =>
      Effect.gen(function* () {
        const pairs = yield* Arbitrary.sampleEffect(modelPair(), { count: times(40), seed: "append" })
        for (const pair of pairs) {
          // Replicas come before stages, so that only with one stage the new ones are behind all others.
          const before: ModelPair = { ...pair, destination: { ...pair.destination, pp: 1, dp: 1 } }
          const after: ModelPair = { ...before, destination: { ...before.destination, dp: 3 } }
          const [small, large] = [rostersOf(before), rostersOf(after)]
          assert.deepStrictEqual(
            appendLaw(small.source, small.destination, large.destination),
            [],
            JSON.stringify(pair)
          )
        }
      }),
    timeout
  )

  it("are able to fail", () => {
    const pair: ModelPair = {
      tensors: [{ lengths: [8, 8], dtype: "float32", source: "first", destination: "second", layer: 0 }],
      source: { tp: 2, pp: 1, dp: 1 },
      destination: { tp: 2, pp: 1, dp: 1 },
      placement: "collocated"
    }
    const { source, destination } = rostersOf(pair)
    const [first, ...rest] = plansOf(source, destination)
    const [op, ...others] = first!.recvOps
    const with_ = (recvOps: ReshardPlan["recvOps"]) => [{ ...first!, recvOps }, ...rest]
    assert.isNotEmpty(coverageLaw(with_(others)))
    assert.isNotEmpty(pairingLaw(with_(others)))
    assert.isNotEmpty(payloadLaw(with_(others)))
    assert.isNotEmpty(coverageLaw(with_([op!, op!, ...others])))
    assert.isNotEmpty(pairingLaw(with_([{ ...op!, peerRank: 1 - op!.peerRank }, ...others])))
    assert.isNotEmpty(coverageLaw(with_([{ ...op!, mySlice: [[4, 12], op!.mySlice[1]!] }, ...others])))
    assert.isNotEmpty(
      appendLaw(source, destination, rostersOf({ ...pair, destination: { tp: 4, pp: 1, dp: 1 } }).destination)
    )
  })
})

describe("oracle", () => {
  it.live(
    "models move between any two layouts",
    () =>
      Effect.gen(function* () {
        const pairs = yield* Arbitrary.sampleEffect(modelPair({ limits: small }), { count: times(30), seed: "oracle" })
        for (const pair of pairs) {
          const { source, destination } = rostersOf(pair)
          const faults = yield* runOracle(source, destination)
          assert.deepStrictEqual(faults.map(describeFault), [], JSON.stringify(pair))
        }
      }),
    timeout
  )

  it.live(
    "there and back is identity",
    () =>
      Effect.gen(function* () {
        const arbitrary = modelPair({ limits: small, dtypes: ["float32", "int16", "bool"] })
        for (const pair of yield* Arbitrary.sampleEffect(arbitrary, { count: times(15), seed: "back" })) {
          const { source, destination } = rostersOf(pair)
          const faults = yield* runRoundTrip(source, destination)
          assert.deepStrictEqual(faults.map(describeFault), [], JSON.stringify(pair))
        }
      }),
    timeout
  )

  it.live(
    "fused tensors and experts",
    () =>
      Effect.gen(function* () {
        const pairs = [
          ...(yield* Arbitrary.sampleEffect(fusedPair, { count: times(12), seed: "fused oracle" })),
          ...(yield* Arbitrary.sampleEffect(expertPair, { count: times(12), seed: "expert oracle" }))
        ]
        for (const pair of pairs) {
          const faults = yield* runOracle(pair.source, pair.destination)
          assert.deepStrictEqual(faults.map(describeFault), [], JSON.stringify(pair))
        }
      }),
    timeout
  )

  it.live(
    "distinguishes wrong elements from missing ones",
    () =>
      Effect.gen(function* () {
        const tensor = { lengths: [6, 4], dtype: "float32", source: "first", destination: "first", layer: 0 } as const
        const { source, destination } = rostersOf({
          tensors: [tensor, tensor],
          source: { tp: 1, pp: 1, dp: 1 },
          destination: { tp: 2, pp: 1, dp: 1 },
          placement: "disjoint"
        })
        const judged = Effect.fnUntraced(function* (name: string) {
          const network = makeLoopbackNetwork()
          const lie = driverLies.find((known) => known.name === name)!
          const faults = yield* runOracle(source, destination, {
            driver: () => lyingDriver(lie, loopbackLayer(network))
          })
          return faults.map(({ rank, wrong, missing, total }) => [rank, wrong, missing, total])
        })
        assert.deepStrictEqual(yield* judged("drops the last part of every message"), [
          [1, 0, 12, 12],
          [2, 0, 12, 12]
        ])
        assert.deepStrictEqual(yield* judged("swaps equal parts"), [
          [1, 12, 0, 12],
          [1, 12, 0, 12],
          [2, 12, 0, 12],
          [2, 12, 0, 12]
        ])
      }),
    timeout
  )
})
