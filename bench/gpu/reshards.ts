// SPDX-License-Identifier: Apache-2.0
/**
 * The weights that the device benches move: real shapes of parameters, cut as training and inference jobs cut them. Pure.
 *
 * Targets, references and limits are milliseconds on two H100 that are linked by NVLink (18 links each): the limit is what
 * the link or the memory carries, the reference Megatron-LM's refit through NCCL on the same machine.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { Shape } from "@tensorferry/core/base/Region"
import { type ParameterMetadata, parameterMetadata } from "@tensorferry/core/layout/ParameterMetadata"
import { type Roster, rosterFromParameters } from "@tensorferry/core/layout/Roster"

interface Weight {
  readonly name: string
  readonly shape: Shape
  /** Dimension that tensor parallelism cuts; whole on every rank where there is none. */
  readonly cut?: number
}

const layers = (count: number, of: (layer: number) => ReadonlyArray<Weight>): ReadonlyArray<Weight> =>
  Array.from({ length: count }, (_, layer) => of(layer)).flat()

/** 32 layers, fused qkv and fc1: 195 parameters, 16.06 GB in bfloat16. */
export const llama8b: ReadonlyArray<Weight> = [
  { name: "embedding.weight", shape: [128_256, 4096], cut: 0 },
  ...layers(32, (layer) => [
    { name: `layers.${layer}.qkv.weight`, shape: [6144, 4096], cut: 0 },
    { name: `layers.${layer}.proj.weight`, shape: [4096, 4096], cut: 1 },
    { name: `layers.${layer}.fc1.weight`, shape: [28_672, 4096], cut: 0 },
    { name: `layers.${layer}.fc2.weight`, shape: [4096, 14_336], cut: 1 },
    { name: `layers.${layer}.norm1.weight`, shape: [4096] },
    { name: `layers.${layer}.norm2.weight`, shape: [4096] }
  ]),
  { name: "norm.weight", shape: [4096] },
  { name: "output.weight", shape: [128_256, 4096], cut: 0 }
]

/** 8 layers of 128 experts with a parameter each: 2081 parameters, 10.46 GB in bfloat16. */
export const experts: ReadonlyArray<Weight> = [
  { name: "embedding.weight", shape: [151_936, 2048], cut: 0 },
  ...layers(8, (layer) => [
    { name: `layers.${layer}.qkv.weight`, shape: [3072, 2048], cut: 0 },
    { name: `layers.${layer}.proj.weight`, shape: [2048, 2048], cut: 1 },
    { name: `layers.${layer}.router.weight`, shape: [128, 2048] },
    { name: `layers.${layer}.norm.weight`, shape: [2048] },
    ...Array.from(
      { length: 128 },
      (_, expert): ReadonlyArray<Weight> => [
        { name: `layers.${layer}.experts.${expert}.fc1.weight`, shape: [1536, 2048], cut: 0 },
        { name: `layers.${layer}.experts.${expert}.fc2.weight`, shape: [2048, 768], cut: 1 }
      ]
    ).flat()
  ])
]

/** Every tensor-parallel group holds the model once; `groups` are replicas of each other. */
const roster = (weights: ReadonlyArray<Weight>, groups: ReadonlyArray<ReadonlyArray<Rank>>): Roster =>
  rosterFromParameters(
    groups.flatMap((group) =>
      group.map((ownerRank, position): readonly [Rank, ReadonlyArray<ParameterMetadata>] => [
        ownerRank,
        weights.map(({ name, shape, cut }) => {
          const isTp = cut !== undefined && group.length > 1
          return parameterMetadata({
            name,
            dtype: "bfloat16",
            ownerRank,
            shape: isTp ? shape.map((length, dim) => (dim === cut ? length / group.length : length)) : shape,
            isTp,
            ...(cut === undefined ? {} : { partitionDim: cut }),
            tensorParallelGroupRanks: group,
            dataParallelGroupRanks: groups.map((members) => members[position]!)
          })
        })
      ])
    )
  )

export interface DeviceCase {
  readonly name: string
  readonly source: Roster
  readonly destination: Roster
  /** Target by the best path, and by collectives alone. */
  readonly targetMs: number
  readonly collectivesTargetMs: number
  readonly referenceMs: number
  readonly limitMs: number
}

/** Everything smaller by this factor, for rehearsals: long dimensions are divided. */
const shrunk = (weights: ReadonlyArray<Weight>, factor: number): ReadonlyArray<Weight> =>
  weights.map((weight) => ({
    ...weight,
    shape: weight.shape.map((length) => (length > 16 * factor ? Math.ceil(length / factor / 2) * 2 : length))
  }))

interface Timing {
  readonly targetMs: number
  readonly collectivesTargetMs: number
  readonly referenceMs: number
  readonly limitMs: number
}

type Cut = ReadonlyArray<ReadonlyArray<Rank>>

const table: ReadonlyArray<readonly [name: string, weights: ReadonlyArray<Weight>, from: Cut, to: Cut, Timing]> = [
  [
    "llama-8b, rank 0 -> rank 1",
    llama8b,
    [[0]],
    [[1]],
    { targetMs: 43, collectivesTargetMs: 46, referenceMs: 51, limitMs: 40.5 }
  ],
  [
    "llama-8b, TP2 -> TP1xDP2 collocated",
    llama8b,
    [[0, 1]],
    [[0], [1]],
    { targetMs: 25, collectivesTargetMs: 32, referenceMs: 51, limitMs: 22 }
  ],
  [
    "llama-8b, TP1xDP2 -> TP2 collocated",
    llama8b,
    [[0], [1]],
    [[0, 1]],
    { targetMs: 6.5, collectivesTargetMs: 6.5, referenceMs: 12.9, limitMs: 5.4 }
  ],
  [
    "experts, rank 0 -> rank 1",
    experts,
    [[0]],
    [[1]],
    { targetMs: 30, collectivesTargetMs: 45, referenceMs: 104.5, limitMs: 27 }
  ],
  [
    "experts, TP2 -> TP1xDP2 collocated",
    experts,
    [[0, 1]],
    [[0], [1]],
    { targetMs: 18, collectivesTargetMs: 30, referenceMs: 305, limitMs: 15 }
  ]
]

export const deviceCaseCount = table.length

export const deviceCase = (at: number, shrink = 1): DeviceCase => {
  const [name, weights, from, to, timing] = table[at]!
  const scaled = shrink === 1 ? weights : shrunk(weights, shrink)
  return { name, source: roster(scaled, from), destination: roster(scaled, to), ...timing }
}
