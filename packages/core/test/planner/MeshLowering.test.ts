// SPDX-License-Identifier: Apache-2.0
/**
 * Mesh plans carried out on plain arrays: generated layouts against the oracle, the faults of the source systems, and
 * public cases by name. Seeds are fixed; TENSORFERRY_TESTS=soak runs many more.
 */

import { assert, describe, it } from "@effect/vitest"
import { between } from "@tensorferry/testing/planning/arbitraries"
import { type MeshPair, meshPair } from "@tensorferry/testing/planning/meshArbitraries"
import { isReducible, meshBalanceLaw, meshPlansOf, meshTransferLaw } from "@tensorferry/testing/planning/meshLaws"
import { arrayOf, heldElements, runMeshPlans, valuesOf } from "@tensorferry/testing/planning/meshOracle"
import { parse, specsOf, type TensorInput } from "@tensorferry/testing/planning/meshSides"
import { isSoak } from "@tensorferry/testing/testLevel"
import type { ElementValue } from "@tensorferry/testing/values/casts"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Rank } from "../../src/base/Ids.ts"
import { elementCount, type Shape } from "../../src/base/Region.ts"
import type { Bucket } from "../../src/ir/Bucket.ts"
import type { Chunk } from "../../src/ir/Chunk.ts"
import type { SourceChoice } from "../../src/ir/M2MMap.ts"
import { MeshPlan } from "../../src/ir/MeshPlan.ts"
import { formatMeshLayout } from "../../src/layout/MeshText.ts"
import { parameterMetadata } from "../../src/layout/ParameterMetadata.ts"
import type { MeshLayout } from "../../src/layout/Placement.ts"
import { rosterFromParameters } from "../../src/layout/Roster.ts"
import { localShard } from "../../src/layout/ShardIntervals.ts"
import { partAlignment } from "../../src/planner/Bucketing.ts"
import { indexLowering, lowerRank, type MeshTensorSpec } from "../../src/planner/Lowering.ts"
import { checkMeshPlan, checkMeshPlans } from "../../src/planner/MeshCheck.ts"
import { planMesh } from "../../src/planner/MeshPlanner.ts"
import type { PlanErrorKind } from "../../src/planner/PlanError.ts"
import { indexRosters, planRank } from "../../src/planner/RosterPlanner.ts"

const times = (usual: number) => (isSoak ? usual * 20 : usual)
const timeout = isSoak ? 900_000 : 60_000
const choices: ReadonlyArray<SourceChoice> = ["balanced", "etha"]

const plansOf = (specs: ReadonlyArray<MeshTensorSpec>, bucketBytes = 2 ** 20): ReadonlyArray<MeshPlan> => {
  const index = Result.getOrThrow(indexLowering(specs, { bucketBytes }))
  const ranks = new Set(specs.flatMap(({ map }) => [...map.source.mesh.ranks, ...map.target.mesh.ranks]))
  return [...ranks].sort((a, b) => a - b).map((rank) => lowerRank(index, rank))
}

/** Payload bytes that one rank sends to others, contributions among them; a broadcast counts once per destination. */
const sentBytesOf = (plan: MeshPlan): number => {
  let bytes = 0
  for (const { entries } of plan.buckets) {
    for (const { chunk, nbytes } of entries) {
      if (chunk.srcIdx.rank === plan.rank) bytes += nbytes * chunk.dstIdx.length
    }
  }
  return bytes
}

/** Whole values: the element's number in the tensor, which every type in use holds. */
const numbered = (specs: ReadonlyArray<MeshTensorSpec>) => (rank: Rank, at: number) => {
  const { map, shape, sourceDtype } = specs[at]!
  const held = Result.getOrThrow(localShard(map.source, shape, rank))
  return arrayOf(
    sourceDtype,
    held.shape,
    heldElements(map.source, shape, rank).map((element) => element % 113)
  )
}

/** Carries plans out and asserts that every target rank holds the numbers of its elements. */
const assertMoves = (specs: ReadonlyArray<MeshTensorSpec>, plans: ReadonlyArray<MeshPlan>): void => {
  assert.deepStrictEqual(
    checkMeshPlans(plans).map(({ message }) => message),
    []
  )
  const outcome = runMeshPlans(plans, numbered(specs))
  assert.deepStrictEqual(outcome.faults, [])
  for (const [at, { map, shape }] of specs.entries()) {
    for (const rank of map.target.mesh.ranks) {
      assert.deepStrictEqual(
        valuesOf(outcome.targets.get(rank)![at]!).map(Number),
        heldElements(map.target, shape, rank).map((element) => element % 113)
      )
    }
  }
}

const chunksOf = (plan: MeshPlan): ReadonlyArray<Chunk> => [
  ...plan.localChunks,
  ...plan.buckets.flatMap(({ entries }) => entries.map(({ chunk }) => chunk))
]

const textOf = ({ source, target, shape, sourceDtype, targetDtype }: MeshPair): string =>
  `${formatMeshLayout(source)} to ${formatMeshLayout(target)}, ${sourceDtype} to ${targetDtype} [${shape}]`

/** Walks every rank's list front to back; a bucket goes when all its ranks are at it. What is left is stuck. */
const stuckBuckets = (plans: ReadonlyArray<MeshPlan>): ReadonlyArray<string> => {
  const lists = new Map(plans.map(({ rank, buckets }) => [rank, [...buckets]]))
  const ranksOf = ({ entries }: Bucket): ReadonlyArray<Rank> => {
    const { srcIdx, dstIdx } = entries[0]!.chunk
    return [srcIdx.rank, ...dstIdx.map(({ rank }) => rank)]
  }
  for (let moved = true; moved; ) {
    moved = false
    for (const list of lists.values()) {
      const [next] = list
      if (next === undefined || ranksOf(next).some((rank) => lists.get(rank)?.[0]?.key !== next.key)) continue
      for (const rank of ranksOf(next)) lists.get(rank)!.shift()
      moved = true
    }
  }
  return [...lists.values()].flatMap((list) => list.map(({ key }) => key))
}

describe("mesh plans of generated layouts", () => {
  for (const isPartial of [false, true]) {
    it.effect(
      `${isPartial ? "contributions" : "whole values"} move between any two layouts`,
      () =>
        Effect.gen(function* () {
          const pairs = yield* Arbitrary.sampleEffect(meshPair({ isPartial }), { count: times(150), seed: "mesh" })
          let moved = 0
          for (const [at, pair] of pairs.entries()) {
            if (!isReducible(pair)) continue
            moved += elementCount(pair.shape)
            const bucketBytes = [1, 64, 2 ** 20][at % 3]!
            for (const choice of choices) {
              assert.deepStrictEqual(meshTransferLaw(pair, choice, bucketBytes), [], `${choice}: ${textOf(pair)}`)
            }
            assert.deepStrictEqual(meshBalanceLaw(pair), [], textOf(pair))
          }
          assert.isAbove(moved, 1000)
        }),
      timeout
    )
  }

  it.effect(
    "lists in one shared order never wait for each other, without any buffering",
    () =>
      Effect.gen(function* () {
        const pairs = yield* Arbitrary.sampleEffect(meshPair({ isPartial: true }), { count: times(60), seed: "order" })
        for (const pair of pairs) {
          for (const choice of choices) {
            assert.deepStrictEqual(stuckBuckets(Result.getOrThrow(meshPlansOf(pair, choice, 40))), [], textOf(pair))
          }
        }
      }),
    timeout
  )

  it.effect(
    "there and back is identity",
    () =>
      Effect.gen(function* () {
        const pairs = yield* Arbitrary.sampleEffect(meshPair(), { count: times(40), seed: "back" })
        for (const { source, target, shape } of pairs) {
          const lower = (from: MeshLayout, to: MeshLayout): ReadonlyArray<MeshTensorSpec> => [
            {
              name: "weight",
              shape,
              sourceDtype: "uint8",
              targetDtype: "uint8",
              map: Result.getOrThrow(planMesh(from, to))
            }
          ]
          const [there, back] = [lower(source, target), lower(target, source)]
          const middle = runMeshPlans(plansOf(there), numbered(there))
          const again = runMeshPlans(plansOf(back), (rank) => middle.targets.get(rank)![0]!)
          assert.deepStrictEqual([...middle.faults, ...again.faults], [])
          for (const rank of source.mesh.ranks) {
            assert.deepStrictEqual(again.targets.get(rank)![0]!.bytes, numbered(there)(rank, 0).bytes)
          }
        }
      }),
    timeout
  )
})

describe("both planners", () => {
  /** Per destination element of a rank, where it comes from. */
  type Origins = Map<string, string>

  const positions = (shape: Shape, region: ReadonlyArray<readonly [number, number]>): ReadonlyArray<number> => {
    let numbers = [0]
    for (const [dim, [start, stop]] of region.entries()) {
      numbers = numbers.flatMap((base) =>
        Array.from({ length: stop - start }, (_, at) => base * shape[dim]! + start + at)
      )
    }
    return numbers
  }
  const note = (
    origins: Origins,
    rank: Rank,
    peer: Rank,
    to: ReadonlyArray<number>,
    from: ReadonlyArray<number>
  ): void => {
    for (const [at, element] of to.entries()) origins.set(`${rank}/${element}`, `${peer}/${from[at]}`)
  }

  it.effect("agree on every element's source where one rank holds it", () =>
    Effect.gen(function* () {
      const cases = yield* Arbitrary.sampleEffect(
        Arbitrary.all({
          source: between(1, 6),
          target: between(1, 6),
          sourceFactor: between(1, 3),
          targetFactor: between(1, 3),
          rows: between(1, 17),
          firstRank: between(0, 6),
          isReversed: between(0, 1)
        }),
        { count: times(80), seed: "planners" }
      )
      let compared = 0
      for (const input of cases) {
        const shape = [input.rows, 2]
        const ranks = (first: number, count: number) => Array.from({ length: count }, (_, at) => first + at)
        const sourceRanks = ranks(0, input.source)
        const targetRanks = ranks(input.firstRank, input.target)
        if (input.isReversed === 1) targetRanks.reverse()
        const layout = (of: ReadonlyArray<number>, factor: number) =>
          parse(`${of.length}@${of.map((rank) => `${rank}-${rank}`).join(",")}:SS(0,${factor})`)
        const [source, target] = [layout(sourceRanks, input.sourceFactor), layout(targetRanks, input.targetFactor)]
        const roster = (side: MeshLayout) =>
          rosterFromParameters(
            side.mesh.ranks.map((rank) => {
              const held = Result.getOrThrow(localShard(side, shape, rank))
              return [
                rank,
                [
                  parameterMetadata({
                    name: "weight",
                    dtype: "float32",
                    ownerRank: rank,
                    shape: held.shape,
                    isTp: true,
                    tensorParallelGroupRanks: side.mesh.ranks,
                    partitionOffsets: held.intervals[0]!
                  })
                ]
              ] as const
            })
          )
        const index = Result.getOrThrow(indexRosters(roster(source), roster(target)))
        const [byRoster, byMesh]: [Origins, Origins] = [new Map(), new Map()]
        const shapeOf = (side: MeshLayout, rank: Rank) => Result.getOrThrow(localShard(side, shape, rank)).shape
        for (const rank of targetRanks) {
          for (const op of planRank(index, rank).recvOps) {
            const from = positions(shapeOf(source, op.peerRank), op.peerSlice)
            note(byRoster, rank, op.peerRank, positions(shapeOf(target, rank), op.mySlice), from)
          }
        }
        const map = Result.getOrThrow(planMesh(source, target))
        for (const plan of plansOf([{ name: "weight", shape, sourceDtype: "float32", targetDtype: "float32", map }])) {
          for (const { srcIdx, dstIdx, sliceTuples, srcSliceTuples } of chunksOf(plan)) {
            if (!dstIdx.some(({ rank }) => rank === plan.rank)) continue
            const from = positions(shapeOf(source, srcIdx.rank), srcSliceTuples)
            note(byMesh, plan.rank, srcIdx.rank, positions(shapeOf(target, plan.rank), sliceTuples!), from)
          }
        }
        compared += byMesh.size
        assert.deepStrictEqual(new Map([...byMesh].sort()), new Map([...byRoster].sort()), JSON.stringify(input))
      }
      assert.isAbove(compared, 500)
    })
  )
})

describe("faults of the source systems", () => {
  it("fault 12: members of a reduction pair equal cells, whatever the buckets", () => {
    for (const choice of choices) {
      for (const [from, to] of [
        ["2x2:P(sum),S0", "3@4:S0"],
        ["2x3:P(sum),S0", "2x2@6:S0,S1"],
        ["2x2:P(sum),S0", "5@4:S0"]
      ] as const) {
        const specs = specsOf(from, to, [{ shape: [60, 4] }, { shape: [61, 3] }], choice)
        let first: ReadonlyArray<ReadonlyArray<ElementValue>> | undefined
        for (const bucketBytes of [1, 100, 2 ** 20]) {
          const plans = plansOf(specs, bucketBytes)
          assert.deepStrictEqual(checkMeshPlans(plans), [])
          for (const plan of plans) {
            for (const { entries } of plan.buckets) {
              if (entries[0]!.chunk.kind !== "none") continue
              const cells = entries.map(({ chunk }) => JSON.stringify(chunk.srcIdx.cell))
              assert.strictEqual(new Set(cells).size, 1)
              for (const { chunk } of entries) assert.include(chunk.bucketKey, `cell[${chunk.srcIdx.cell}]`)
            }
          }
          const outcome = runMeshPlans(plans, (rank, at) => {
            const { sourceShape } = plans.find((plan) => plan.rank === rank)!.tensors[at]!
            return arrayOf(
              "float32",
              sourceShape!,
              Array.from({ length: elementCount(sourceShape!) }, (_, i) => i + rank)
            )
          })
          assert.deepStrictEqual(outcome.faults, [])
          const values = [...outcome.targets.values()].flatMap((arrays) =>
            arrays.flatMap((array) => (array === null ? [] : [valuesOf(array)]))
          )
          first ??= values
          assert.deepStrictEqual(values, first)
        }
      }
    }
  })

  it("fault 13: dimensions that do not divide are cut where the shards really end", () => {
    for (const [from, to, shape] of [
      ["4:S0", "2@4:S0", [10, 2]],
      ["2:S0", "2@2:S1", [4, 7]],
      ["1:R", "3@1:S0", [10]],
      ["4:S0", "2@4:R", [3, 2]],
      ["2x2:S0,S0", "3@1:S1", [7, 5]]
    ] as const) {
      for (const choice of choices) {
        const specs = specsOf(from, to, [{ shape }], choice)
        assertMoves(specs, plansOf(specs))
      }
    }
    const plans = plansOf(specsOf("4:S0", "2@4:S0", [{ shape: [10, 2] }]))
    assert.deepStrictEqual(
      plans
        .slice(0, 4)
        .flatMap((plan) =>
          chunksOf(plan).map(({ srcIdx, srcSliceTuples, dstIdx }) => [srcIdx, srcSliceTuples[0], dstIdx[0]])
        ),
      [
        [{ rank: 0, cell: [0, 0] }, [0, 3], { rank: 4, cell: [0, 0] }],
        [{ rank: 1, cell: [0, 0] }, [0, 2], { rank: 4, cell: [1, 0] }],
        [{ rank: 1, cell: [1, 0] }, [2, 3], { rank: 5, cell: [0, 0] }],
        [{ rank: 2, cell: [0, 0] }, [0, 3], { rank: 5, cell: [1, 0] }],
        [{ rank: 3, cell: [0, 0] }, [0, 1], { rank: 5, cell: [2, 0] }]
      ]
    )
  })

  it("fault 14: overlapping meshes move, and local copies read the source tensor", () => {
    for (const [from, to] of [
      ["2:S0", "2:S1"],
      ["2x2:S0,R", "4:R"],
      ["4:S0", "4@2:S0"],
      ["4:S0", "2@1:S0"]
    ] as const) {
      for (const choice of choices) {
        const specs = specsOf(from, to, [{ shape: [8, 6] }], choice)
        assertMoves(specs, plansOf(specs, 16))
      }
    }
    const [plan] = plansOf(specsOf("2:S0", "2:S1", [{ shape: [8, 6] }]))
    const [local] = plan!.localChunks
    assert.deepStrictEqual(
      [local!.srcSliceTuples, local!.sliceTuples],
      [
        [
          [0, 4],
          [0, 3]
        ],
        [
          [0, 4],
          [0, 3]
        ]
      ]
    )
    assert.deepStrictEqual(
      [plan!.tensors[0]!.sourceShape, plan!.tensors[0]!.targetShape],
      [
        [4, 6],
        [8, 3]
      ]
    )
  })

  it("fault 15: mixed types share a bucket at aligned places, and travel as the narrower type", () => {
    const tensors: ReadonlyArray<TensorInput> = [
      { shape: [3], from: "bfloat16" },
      { shape: [2], from: "float32" },
      { shape: [5], from: "uint8" },
      { shape: [3], from: "int64" },
      { shape: [7], from: "bfloat16", to: "float32" },
      { shape: [7], from: "float32", to: "bfloat16" },
      { shape: [3], from: "bfloat16", to: "float16" },
      { shape: [3], from: "int32", to: "float32" }
    ]
    const specs = specsOf("1:R", "1@1:R", tensors).map((spec, at) =>
      tensors[at]!.from === "int64" ? { ...spec, sourceDtype: "int64" as const, targetDtype: "int64" as const } : spec
    )
    const plans = plansOf(specs)
    const [bucket, ...others] = plans[0]!.buckets
    assert.deepStrictEqual(others, [])
    for (const { offset } of bucket!.entries) assert.strictEqual(offset % partAlignment, 0)
    assert.deepStrictEqual(
      bucket!.entries.map(({ chunk, nbytes }) => [chunk.transferDtype, nbytes]),
      [
        ["bfloat16", 6],
        ["float32", 8],
        ["uint8", 5],
        ["int64", 24],
        ["bfloat16", 14],
        ["bfloat16", 14],
        ["bfloat16", 6],
        ["int32", 12]
      ]
    )
    const outcome = runMeshPlans(plans, (_, at) => {
      const { sourceDtype, shape } = specs[at]!
      const values = Array.from({ length: shape[0]! }, (_, i) => (sourceDtype === "int64" ? BigInt(i + 1) : i + 1))
      return arrayOf(sourceDtype, shape, values)
    })
    assert.deepStrictEqual(outcome.faults, [])
    for (const [at, { shape }] of specs.entries()) {
      assert.deepStrictEqual(
        valuesOf(outcome.targets.get(1)![at]!).map(Number),
        Array.from({ length: shape[0]! }, (_, i) => i + 1)
      )
    }
  })

  it("fault 16: regions of tensors beyond 2^32 elements are exact", () => {
    const length = 2 ** 40 + 1
    const plans = plansOf(specsOf("3:S0", "5@3:S0", [{ shape: [length, 8], from: "uint8" }]))
    assert.deepStrictEqual(checkMeshPlans(plans), [])
    const size = (parts: number) => (BigInt(length) + BigInt(parts) - 1n) / BigInt(parts)
    const [first, second] = [...chunksOf(plans[4]!)].sort((a, b) => a.srcIdx.rank - b.srcIdx.rank)
    // Rank 4 holds the second of five shards, which begins in the first of three and ends in the second.
    assert.deepStrictEqual(first!.srcSliceTuples[0], [Number(size(5)), Number(size(3))])
    assert.deepStrictEqual(second!.srcSliceTuples[0], [0, Number(2n * size(5) - size(3))])
    assert.strictEqual(sentBytesOf(plans[0]!) + sentBytesOf(plans[1]!) + sentBytesOf(plans[2]!), length * 8)
  })

  it("fault 17: strided shards alone, and with a factor above the inner count", () => {
    for (const [from, to] of [
      ["2:S0", "2@2:SS(0,2)"],
      ["2:SS(0,3)", "3:S0"],
      ["2x2:SS(0,4),S0", "2@4:S0"],
      ["2x2:SS(0,4),S0", "4@2:SS(0,5)"],
      ["3:SS(0,100)", "2:R"]
    ] as const) {
      for (const rows of [16, 13, 5, 1, 0]) {
        const specs = specsOf(from, to, [{ shape: [rows, 2] }])
        assertMoves(specs, plansOf(specs))
      }
    }
  })
})

describe("plans", () => {
  const specs = () => specsOf("2x2:P(sum),S0", "3@3:S1", [{ shape: [12, 6] }, { shape: [5, 7], to: "bfloat16" }])

  it("are data that survives JSON, with one digest on all ranks", () => {
    const plans = plansOf(specs(), 64)
    const codec = Schema.toCodecJson(MeshPlan)
    for (const plan of plans) {
      const text = JSON.stringify(Schema.encodeSync(codec)(plan))
      assert.deepStrictEqual(Schema.decodeUnknownSync(codec)(JSON.parse(text)), plan)
      assert.deepStrictEqual(
        plansOf(specs(), 64).find(({ rank }) => rank === plan.rank),
        plan
      )
      assert.strictEqual(plan.sharedDigest, plans[0]!.sharedDigest)
    }
  })

  it("of other layouts, types, shapes, names or bucket sizes have other digests", () => {
    const digest = (tensors: ReadonlyArray<MeshTensorSpec>, bucketBytes = 64) =>
      plansOf(tensors, bucketBytes)[0]!.sharedDigest
    const [first, second] = specs()
    const digests = [
      digest(specs()),
      digest(specs(), 65),
      digest([first!]),
      digest([second!, first!]),
      digest([first!, { ...second!, name: "other" }]),
      digest([first!, { ...second!, shape: [7, 5] }]),
      digest([first!, { ...second!, targetDtype: "float16" }]),
      digest(specsOf("2x2:P(sum),S0", "3@4:S1", [{ shape: [12, 6] }])),
      digest(specsOf("2x2:P(sum),S0", "3@3:S1", [{ shape: [12, 6] }], "etha"))
    ]
    assert.strictEqual(new Set(digests).size, digests.length)
  })

  it("of a rank outside both meshes are empty", () => {
    const plan = lowerRank(Result.getOrThrow(indexLowering(specs())), 17)
    assert.deepStrictEqual([plan.buckets, plan.localChunks], [[], []])
    assert.deepStrictEqual(
      plan.tensors.map(({ sourceShape, targetShape }) => [sourceShape, targetShape]),
      [
        [null, null],
        [null, null]
      ]
    )
  })

  it("take tensors that go by different maps, and scalars", () => {
    const [sharded] = specsOf("2:S0", "2@2:S1", [{ shape: [6, 4] }])
    const [scalar, vector] = specsOf("2:R", "2@2:R", [{ shape: [] }, { shape: [5] }])
    const [strided] = specsOf("2:S1", "2@2:SS(0,2)", [{ shape: [5, 3] }])
    const mixed = [sharded!, scalar!, vector!, strided!].map((spec, at) => ({ ...spec, name: `weight ${at}` }))
    const plans = plansOf(mixed)
    assertMoves(mixed, plans)
    assert.strictEqual(plans[0]!.maps.length, 3)
  })

  it("that cannot be are refused by the tensor's name", () => {
    const refused = (tensors: ReadonlyArray<MeshTensorSpec>, kind: PlanErrorKind, ...words: ReadonlyArray<string>) => {
      const result = indexLowering(tensors)
      assert.isTrue(Result.isFailure(result))
      if (Result.isSuccess(result)) return
      assert.strictEqual(result.failure.kind, kind, result.failure.message)
      for (const word of [tensors[0]!.name, ...words]) assert.include(result.failure.message, word)
    }
    refused(specsOf("2:S1", "2:R", [{ shape: [4] }]), "InvalidMetadata", "[4]", "2:S1")
    refused(specsOf("2:S0", "2:R", [{ shape: [] }]), "InvalidMetadata")
    refused(specsOf("2:S0", "2:R", [{ shape: [2 ** 51, 4] }]), "InvalidMetadata", "2^53")
    refused(specsOf("2:SS(0,3000000)", "2:R", [{ shape: [2 ** 30] }]), "InvalidMetadata", "intervals")
    refused(specsOf("2:R", "2:R", [{ shape: [4], from: "complex64", to: "float32" }]), "DTypeMismatch", "complex64")
    refused(specsOf("2:P(sum)", "2:R", [{ shape: [4], from: "complex64" }]), "DTypeMismatch", "sum")
    refused(specsOf("2:P(avg)", "2:R", [{ shape: [4], from: "bool" }]), "DTypeMismatch", "avg")
    refused(specsOf("2:S0", "1:R", [{ shape: [2, 3], from: "float4_e2m1fn" }]), "CutInsideByte")
    const [one] = specsOf("2:S0", "2:R", [{ shape: [4] }])
    refused([one!, one!], "DuplicateName")
    assert.isTrue(Result.isFailure(indexLowering([one!], { bucketBytes: 0 })))
    assert.isTrue(Result.isSuccess(indexLowering(specsOf("2:S0", "4:S0", [{ shape: [4, 2], from: "float4_e2m1fn" }]))))
    const fixed = Result.getOrThrow(planMesh(parse("2:S-1"), parse("2:R"), { tensorRank: 2 }))
    refused([{ ...one!, map: fixed }], "InvalidMetadata", "2 dimensions")
  })

  it("are checked: chunks that are lost, doubled, moved or different at one end are reported", () => {
    const plans = plansOf(specs(), 64)
    const damage = (change: (plan: MeshPlan) => MeshPlan, at = 0) =>
      checkMeshPlans(plans.map((plan, place) => (place === at ? change(plan) : plan))).map(({ message }) => message)
    assert.deepStrictEqual(
      damage((plan) => plan),
      []
    )
    const [bucket] = plans[0]!.buckets
    const shift = (change: Partial<Bucket["entries"][number]>): Bucket => ({
      ...bucket!,
      entries: [{ ...bucket!.entries[0]!, ...change }, ...bucket!.entries.slice(1)]
    })
    const replaced = (other: Bucket) => (plan: MeshPlan) => ({ ...plan, buckets: [other, ...plan.buckets.slice(1)] })
    assert.isNotEmpty(damage((plan) => ({ ...plan, buckets: plan.buckets.slice(1) })))
    assert.isNotEmpty(damage((plan) => ({ ...plan, buckets: [...plan.buckets, bucket!] })))
    assert.isNotEmpty(damage((plan) => ({ ...plan, sharedDigest: "another" })))
    assert.isNotEmpty(damage(replaced(shift({ offset: 3 }))))
    assert.isNotEmpty(damage(replaced(shift({ nbytes: 1 }))))
    const { chunk } = bucket!.entries[0]!
    const moved = chunk.srcSliceTuples.map(([start, stop]) => [start + 100, stop + 100] as const)
    assert.isNotEmpty(damage(replaced(shift({ chunk: { ...chunk, srcSliceTuples: moved } }))))
    // Boxes of the right shape inside the shard, but of other elements.
    const [local] = plansOf(specsOf("2:R", "2:S0", [{ shape: [4] }]))
    const other = local!.localChunks.map((one) => ({ ...one, srcSliceTuples: [[2, 4] as const] }))
    assert.isNotEmpty(checkMeshPlan({ ...local!, localChunks: other }))
    assert.deepStrictEqual(checkMeshPlan(local!), [])
    // What no plan has, but a file may.
    assert.isNotEmpty(damage(replaced({ ...bucket!, entries: [], totalBytes: 0 })))
    const into = chunk.sliceTuples ?? []
    assert.isNotEmpty(damage(replaced(shift({ chunk: { ...chunk, sliceTuples: [...into, [0, 1]] } }))))
    assert.isNotEmpty(damage(replaced(shift({ chunk: { ...chunk, sliceTuples: [] } }))))
    assert.isNotEmpty(damage(replaced(shift({ chunk: { ...chunk, dstIdx: [] } }))))
    assert.isNotEmpty(damage(replaced(shift({ chunk: { ...chunk, tensor: 99 } }))))
    assert.isNotEmpty(damage((plan) => ({ ...plan, bucketBytes: plan.bucketBytes + 1 })))
    assert.isNotEmpty(damage((plan) => ({ ...plan, maps: [] })))
    const last = plans.length - 1
    assert.include(
      damage((plan) => ({ ...plan, buckets: plan.buckets.slice(1), localChunks: [] }), last).join("\n"),
      "elements"
    )
  })
})

describe("cases", () => {
  it("five rows over four ranks come back as five rows", () => {
    const specs = specsOf("4:S0", "4@4:R", [{ shape: [5, 10] }])
    const plans = plansOf(specs)
    assertMoves(specs, plans)
    assert.deepStrictEqual(plans[4]!.tensors[0]!.targetShape, [5, 10])
  })

  it("equal byte counts of other placements are other shapes", () => {
    const specs = specsOf("2:S1", "2:S0", [{ shape: [4, 4] }])
    const plans = plansOf(specs)
    assert.deepStrictEqual(
      [plans[0]!.tensors[0]!.sourceShape, plans[0]!.tensors[0]!.targetShape],
      [
        [4, 2],
        [2, 4]
      ]
    )
    assertMoves(specs, plans)
  })

  it("wire bytes are the payload, with no slots padded to the largest", () => {
    // Of the last tensor rank 0 holds everything, and the others give nothing.
    const specs = specsOf("4:S0", "4@4:S1", [{ shape: [4, 1] }, { shape: [4, 4] }, { shape: [1, 262_144] }])
    const sent = plansOf(specs).map(sentBytesOf)
    assert.strictEqual(
      sent.reduce((sum, bytes) => sum + bytes, 0),
      4 * (4 + 16 + 262_144)
    )
  })

  it("both ends cut at the same places, whatever the size", () => {
    const tensors = Array.from({ length: 200 }, (_, at) => ({ shape: [1 + ((at * 37) % 97), 8] }))
    for (const bucketBytes of [1, 1000, 4096, 2 ** 24]) {
      const plans = plansOf(specsOf("2x2:S0,R", "4:S1", tensors), bucketBytes)
      assert.deepStrictEqual(checkMeshPlans(plans), [])
      for (const { buckets } of plans) {
        for (const { entries, totalBytes } of buckets) assert.isTrue(entries.length === 1 || totalBytes <= bucketBytes)
      }
    }
  })

  it("every member contributes to the same reductions, in number and size", () => {
    // Four members reduce eight cells, two of them for others.
    for (const bucketBytes of [32, 2 ** 20]) {
      const plans = plansOf(specsOf("4:P(sum)", "8@4:S0", [{ shape: [64] }]), bucketBytes)
      assert.deepStrictEqual(checkMeshPlans(plans), [])
      const reductions = plans.slice(0, 4).map((plan) =>
        chunksOf(plan)
          .filter(({ kind, srcIdx }) => kind === "none" || srcIdx.rank === plan.rank)
          .map(({ srcSliceTuples }) => JSON.stringify(srcSliceTuples))
      )
      const cells = reductions.map((list) => [...new Set(list)].sort())
      for (const own of cells) assert.deepStrictEqual(own, cells[0])
      assert.strictEqual(cells[0]!.length, 8)
    }
  })

  it("the result does not depend on bucket size", () => {
    const specs = specsOf("3x2:P(sum),S1", "4@2:S0", [
      { shape: [7, 5] },
      { shape: [4, 4], to: "bfloat16" },
      { shape: [1, 11], from: "bfloat16", to: "float32" }
    ])
    const results = [1, 8, 24, 100, 2 ** 20].map((bucketBytes) => {
      const plans = plansOf(specs, bucketBytes)
      const outcome = runMeshPlans(plans, (rank, at) => {
        const { sourceShape } = plans.find((plan) => plan.rank === rank)!.tensors[at]!
        const values = Array.from({ length: elementCount(sourceShape!) }, (_, i) => 0.1 * i + rank / 3)
        return arrayOf(specs[at]!.sourceDtype, sourceShape!, values)
      })
      assert.deepStrictEqual(outcome.faults, [])
      return [...outcome.targets].map(([rank, arrays]) => [rank, arrays.map((array) => array?.bytes)])
    })
    for (const result of results) assert.deepStrictEqual(result, results[0])
  })

  it("reductions take operands by ascending rank, whatever the mesh's order", () => {
    // In float32, (2^24 + 1) + 1 is 2^24 and 1 + 1 + 2^24 is 2^24 + 2.
    const specs = specsOf("3@2,0,1:P(sum)", "1@3:R", [{ shape: [1] }])
    const values = [[1], [1], [2 ** 24]]
    const outcome = runMeshPlans(plansOf(specs), (rank) => arrayOf("float32", [1], values[rank]!))
    assert.deepStrictEqual(valuesOf(outcome.targets.get(3)![0]!), [2 ** 24 + 2])
  })
})
