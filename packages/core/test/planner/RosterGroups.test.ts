// SPDX-License-Identifier: Apache-2.0
/**
 * Groups that ranks state: a contradiction is refused by every rank's planner, whichever rank of whichever replica holds
 * it, and never planned around.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import { parameterMetadata } from "../../src/layout/ParameterMetadata.ts"
import { type Roster, rosterFromParameters } from "../../src/layout/Roster.ts"
import type { PlanError } from "../../src/planner/PlanError.ts"
import { buildReshardPlan } from "../../src/planner/RosterPlanner.ts"

/** One sharded weight; `groups[r]` is the tensor-parallel group that rank r states. */
const sharded = (groups: ReadonlyArray<ReadonlyArray<number>>, firstRank: number): Roster =>
  rosterFromParameters(
    groups.map((group, at) => [
      firstRank + at,
      [
        parameterMetadata({
          name: "w",
          shape: [4, 3],
          dtype: "float32",
          ownerRank: firstRank + at,
          isTp: true,
          tensorParallelGroupRanks: group.map((member) => firstRank + member)
        })
      ]
    ])
  )

const good = [
  [0, 1],
  [0, 1],
  [2, 3],
  [2, 3]
]

const refusal = (source: Roster, destination: Roster): ReadonlyArray<PlanError | undefined> =>
  Array.from({ length: 8 }, (_, rank) =>
    Result.match(buildReshardPlan(source, destination, rank), {
      onSuccess: () => undefined,
      onFailure: (error) => error
    })
  )

describe("tensor-parallel groups", () => {
  it("groups that agree are planned", () => {
    assert.isTrue(refusal(sharded(good, 0), sharded(good, 4)).every((error) => error === undefined))
  })

  const wrong: Readonly<Record<string, ReadonlyArray<ReadonlyArray<number>>>> = {
    "orders that differ in the first replica": [
      [0, 1],
      [1, 0],
      [2, 3],
      [2, 3]
    ],
    "orders that differ in a later replica": [
      [0, 1],
      [0, 1],
      [2, 3],
      [3, 2]
    ],
    "a member that names another group": [
      [0, 1],
      [0, 1],
      [0, 2],
      [2, 3]
    ]
  }
  for (const [title, groups] of Object.entries(wrong)) {
    for (const side of ["source", "destination"] as const) {
      it(`${title}, at the ${side}, are refused with the same error on every rank`, () => {
        const errors =
          side === "source"
            ? refusal(sharded(groups, 0), sharded(good, 4))
            : refusal(sharded(good, 0), sharded(groups, 4))
        for (const error of errors) {
          assert.strictEqual(error?.kind, "InconsistentGroup")
          assert.strictEqual(error?.paramName, "w")
          assert.include(error?.detail, side)
          assert.deepStrictEqual(error, errors[0])
        }
      })
    }
  }
})

describe("expert numbers", () => {
  /** Two ranks that hold `perRank` listed experts each, of `numExperts` in all. */
  const experts = (perRank: number, numExperts: number, firstRank: number): Roster =>
    rosterFromParameters(
      [firstRank, firstRank + 1].map((ownerRank) => [
        ownerRank,
        Array.from({ length: perRank }, (_, local) =>
          parameterMetadata({
            name: `local_experts.${local}.weight`,
            shape: [2],
            dtype: "float32",
            ownerRank,
            isEp: true,
            numExperts,
            expertParallelGroupRanks: [firstRank, firstRank + 1]
          })
        )
      ])
    )

  it("local numbers become global ones where every rank holds its share", () => {
    assert.isTrue(refusal(experts(2, 4, 0), experts(2, 4, 4)).every((error) => error === undefined))
  })

  for (const [perRank, numExperts] of [
    [2, 3],
    [2, 2],
    [3, 5]
  ] as const) {
    it(`${perRank} experts on each of two ranks, stated as ${numExperts} in all, are refused`, () => {
      for (const error of refusal(experts(perRank, numExperts, 0), experts(perRank, perRank * 2, 4))) {
        assert.strictEqual(error?.kind, "InvalidMetadata")
        assert.include(error?.paramName, "local_experts")
        assert.include(error?.detail, `${numExperts} experts over 2 ranks`)
      }
    })
  }
})

describe("cuts beyond any use", () => {
  const cutTo = (length: number, stride: number, ranks: ReadonlyArray<number>): Roster =>
    rosterFromParameters(
      ranks.map((rank) => [
        rank,
        [
          parameterMetadata({
            name: "w",
            shape: [length],
            dtype: "uint8",
            ownerRank: rank,
            isTp: true,
            partitionStride: stride,
            tensorParallelGroupRanks: ranks
          })
        ]
      ])
    )

  it("are refused by name before they are listed one by one", () => {
    const cases = [
      // A segment for each of a billion elements.
      [cutTo(1e9, 1e9, [0]), cutTo(1e9, 1e9, [0])],
      // Segments that are few by themselves, but whose common tiles are not.
      [cutTo(1_048_573, 1_048_573, [0]), cutTo(1_048_573, 1, [0])],
      [cutTo(999_983, 999_983, [0, 1, 2]), cutTo(2_999_949, 1, [0])]
    ] as const
    for (const [source, destination] of cases) {
      const plan = buildReshardPlan(source, destination, 0)
      if (Result.isFailure(plan)) assert.strictEqual(plan.failure.paramName, "w")
    }
    const first = buildReshardPlan(cases[0][0], cases[0][1], 0)
    assert.isTrue(Result.isFailure(first) && first.failure.kind === "InvalidMetadata")
    const last = buildReshardPlan(cases[2][0], cases[2][1], 0)
    assert.isTrue(Result.isFailure(last) && last.failure.kind === "InvalidMetadata")
  })
})
