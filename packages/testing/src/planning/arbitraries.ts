// SPDX-License-Identifier: Apache-2.0
/**
 * Generators of what planners and executors must handle. Every size is bounded on purpose: an unbounded integer would be
 * generated small, and a product of bounded ones must still fit a test.
 */

import type { DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { type ParameterMetadata, parameterMetadata } from "@tensorferry/core/layout/ParameterMetadata"
import { type Roster, rosterFromParameters } from "@tensorferry/core/layout/Roster"
import {
  type LayoutError,
  type ModelLayout,
  type ModelTensor,
  modelLayout,
  type ParallelConfig,
  worldSizeOf
} from "@tensorferry/model/layout/ModelLayout"
import * as Arbitrary from "effect/Arbitrary"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/** Whole numbers from `minimum` to `maximum`, both ends included. */
export const between = (minimum: number, maximum: number): Arbitrary.Arbitrary<number> =>
  Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum, maximum })))

/** One of these values, of which there is at least one. */
export const oneOf = <const A>(values: ReadonlyArray<A>): Arbitrary.Arbitrary<A> =>
  Arbitrary.map(between(0, values.length - 1), (at) => values[at]!)

/** Lengths at which things go wrong around `around`: 0, 1, one less, itself, one more, twice it, and primes. */
export const lengthAround = (around: number): Arbitrary.Arbitrary<number> =>
  oneOf([around, 0, 1, Math.max(0, around - 1), around + 1, 2 * around, 2 * around + 1, 3, 5, 7, 11, 13])

/** Shapes of up to `maxDims` dimensions and `maxElements` elements; longer ones are cut. */
export const shape = (
  options: { readonly maxDims?: number; readonly maxElements?: number } = {}
): Arbitrary.Arbitrary<Shape> =>
  Arbitrary.map(
    Arbitrary.array(Arbitrary.flatMap(oneOf([2, 3, 4, 8]), lengthAround), {
      minLength: 0,
      maxLength: options.maxDims ?? 3
    }),
    (lengths) => {
      const limit = options.maxElements ?? 600
      const out: Array<number> = []
      for (const length of lengths) {
        if (elementCount([...out, length]) > limit) break
        out.push(length)
      }
      return out
    }
  )

const ShardChoice = Schema.Literals(["replicate", "first", "second", "last"])

/** A tensor of a model, with how each side cuts it. */
export interface TensorChoice {
  readonly lengths: ReadonlyArray<number>
  readonly dtype: DType
  readonly source: typeof ShardChoice.Type
  readonly destination: typeof ShardChoice.Type
  readonly layer: number
}

/** A model in two layouts. */
export interface ModelPair {
  readonly tensors: ReadonlyArray<TensorChoice>
  readonly source: ParallelConfig
  readonly destination: ParallelConfig
  /** Where the destination's ranks begin: among the source's, behind them, or in their middle. */
  readonly placement: "collocated" | "disjoint" | "overlapping"
}

/** The largest degrees that are generated; the smallest are 1. */
export interface DegreeLimits {
  readonly tp: number
  readonly pp: number
  readonly dp: number
}

const config = (limits: DegreeLimits): Arbitrary.Arbitrary<ParallelConfig> =>
  Arbitrary.all({ tp: between(1, limits.tp), pp: between(1, limits.pp), dp: between(1, limits.dp) })

const tensorChoice = (dtypes: readonly [DType, ...ReadonlyArray<DType>]): Arbitrary.Arbitrary<TensorChoice> =>
  Arbitrary.all({
    lengths: Arbitrary.array(Arbitrary.flatMap(oneOf([1, 2, 4, 8]), lengthAround), { minLength: 1, maxLength: 3 }),
    dtype: oneOf(dtypes),
    source: Arbitrary.schema(ShardChoice),
    destination: Arbitrary.schema(ShardChoice),
    layer: between(0, 3)
  })

/** Bounds of the models that `modelPair` generates. */
export interface ModelPairOptions {
  /** 8 tensor-parallel, 3 pipeline and 2 data-parallel by default. */
  readonly limits?: DegreeLimits
  /** 4 by default. */
  readonly maxTensors?: number
  /** float32, bfloat16 and uint8 by default. */
  readonly dtypes?: readonly [DType, ...ReadonlyArray<DType>]
}

/** Models of a few tensors in any two layouts: uneven, empty, replicated, cut along different dimensions. */
export const modelPair = (options: ModelPairOptions = {}): Arbitrary.Arbitrary<ModelPair> => {
  const limits = options.limits ?? { tp: 8, pp: 3, dp: 2 }
  return Arbitrary.all({
    tensors: Arbitrary.array(tensorChoice(options.dtypes ?? ["float32", "bfloat16", "uint8"]), {
      minLength: 1,
      maxLength: options.maxTensors ?? 4
    }),
    source: config(limits),
    destination: config(limits),
    placement: oneOf(["collocated", "disjoint", "overlapping"] as const)
  })
}

const nameOf = (tensor: TensorChoice, at: number): string => `model.layers.${tensor.layer}.weight_${at}`

const modelTensors = (pair: ModelPair): ReadonlyArray<ModelTensor> =>
  pair.tensors.map((tensor, at) => {
    const shape: Array<number> = []
    for (const length of tensor.lengths) if (elementCount([...shape, length]) <= 2000) shape.push(length)
    return { name: nameOf(tensor, at), dtype: tensor.dtype, shape }
  })

const shardOf = (choice: typeof ShardChoice.Type, dims: number): number | "replicate" => {
  if (choice === "replicate") return "replicate"
  return choice === "first" ? 0 : choice === "last" ? dims - 1 : Math.min(1, dims - 1)
}

/** The two layouts of one model, each with its roster. */
export interface LayoutPair {
  readonly source: ModelLayout
  readonly destination: ModelLayout
}

/** First rank of the pair's destination. */
export const destinationStart = (pair: ModelPair): Rank => {
  const size = worldSizeOf(pair.source)
  return pair.placement === "collocated" ? 0 : pair.placement === "disjoint" ? size : Math.floor(size / 2)
}

/** The two layouts that a pair describes. */
export const layoutsOf = (pair: ModelPair): Result.Result<LayoutPair, LayoutError> => {
  const tensors = modelTensors(pair)
  const side = (which: "source" | "destination", firstRank: Rank) =>
    modelLayout({
      tensors,
      config: pair[which],
      firstRank,
      rules: {
        layers: "model.layers.{}.",
        rules: pair.tensors.map((tensor, at) => ({
          match: nameOf(tensor, at),
          shard: shardOf(tensor[which], tensors[at]!.shape.length)
        }))
      }
    })
  return Result.flatMap(side("source", 0), (source) =>
    Result.map(side("destination", destinationStart(pair)), (destination) => ({ source, destination }))
  )
}

/** Two rosters for one model. */
export interface RosterPair {
  readonly source: Roster
  readonly destination: Roster
}

const range = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, at) => at)

/** How a hand-written roster cuts its one dimension. */
export type CutForm = "strided" | "packed" | "explicit" | "replicated"

/** How many ranks one side has, and how it states its cut. */
export interface CutChoice {
  readonly tp: number
  readonly form: CutForm
}

interface CutModel {
  /** Packed blocks of the whole tensor, each a multiple of every degree and stride in use. */
  readonly blocks: ReadonlyArray<number>
  readonly columns: number
  readonly dtype: DType
}

/** Segments per rank of a strided side. Every degree in use divides a block into that many whole segments. */
const stride = 2

const cutRoster = (model: CutModel, choice: CutChoice, firstRank: Rank): Roster => {
  const ranks = range(choice.tp).map((at) => firstRank + at)
  const rows = model.blocks.reduce((sum, length) => sum + length, 0)
  const local = rows / choice.tp
  const cut = (at: number): Partial<ParameterMetadata> => {
    switch (choice.form) {
      case "replicated":
        return { isTp: false, shape: [rows, model.columns] }
      case "strided":
        return { partitionStride: stride }
      case "packed":
        return { partitionSizes: model.blocks.map((length) => length / choice.tp) }
      case "explicit":
        return { partitionOffsets: [[at * local, (at + 1) * local]] }
    }
  }
  const parameters = ranks.map((rank, at): readonly [Rank, ReadonlyArray<ParameterMetadata>] => [
    rank,
    [
      parameterMetadata({
        name: "fused.weight",
        dtype: model.dtype,
        ownerRank: rank,
        isTp: true,
        tensorParallelGroupRanks: ranks,
        shape: [local, model.columns],
        ...cut(at)
      })
    ]
  ])
  return rosterFromParameters(parameters)
}

/** A fused tensor whose sides declare it by packed blocks, or both by one stride, or by explicit intervals. */
export const fusedPair: Arbitrary.Arbitrary<RosterPair> = Arbitrary.map(
  Arbitrary.all({
    sourceTp: oneOf([1, 2, 3, 4]),
    destinationTp: oneOf([1, 2, 3, 4, 6]),
    forms: oneOf([
      ["packed", "packed"],
      ["strided", "strided"],
      ["packed", "explicit"],
      ["explicit", "packed"],
      ["replicated", "packed"],
      ["packed", "replicated"],
      ["explicit", "explicit"]
    ] as const),
    blocks: Arbitrary.array(between(1, 3), { minLength: 2, maxLength: 3 }),
    columns: oneOf([1, 3]),
    dtype: oneOf(["float32", "bfloat16"] as const),
    isDisjoint: Arbitrary.schema(Schema.Boolean)
  }),
  ({ sourceTp, destinationTp, forms, blocks, columns, dtype, isDisjoint }) => {
    const model: CutModel = { blocks: blocks.map((units) => units * 24), columns, dtype }
    return {
      source: cutRoster(model, { tp: sourceTp, form: forms[0] }, 0),
      destination: cutRoster(model, { tp: destinationTp, form: forms[1] }, isDisjoint ? sourceTp : 0)
    }
  }
)

const expertRoster = (
  experts: number,
  ep: number,
  firstRank: Rank,
  style: "list" | "grouped",
  rows: number
): Roster => {
  const ranks = range(ep).map((at) => firstRank + at)
  const perRank = experts / ep
  return rosterFromParameters(
    ranks.map((rank) => [
      rank,
      range(perRank).map((local) =>
        parameterMetadata({
          name: style === "list" ? `mlp.experts.local_experts.${local}.fc1.weight` : `mlp.experts.fc1.weight${local}`,
          resolvedName:
            style === "list" ? `mlp.experts.local_experts.${local}.fc1.weight` : `mlp.experts.fc1.weight${local}`,
          shape: [rows, 2],
          dtype: "float32",
          ownerRank: rank,
          isEp: true,
          numExperts: experts,
          expertParallelGroupRanks: ranks,
          tensorParallelGroupRanks: [rank]
        })
      )
    ])
  )
}

/** Experts spread over two expert-parallel sizes, kept as a list or in a grouped module, under local numbers. */
export const expertPair: Arbitrary.Arbitrary<RosterPair> = Arbitrary.map(
  Arbitrary.all({
    sourceEp: oneOf([1, 2, 4, 8]),
    destinationEp: oneOf([1, 2, 4, 8]),
    style: oneOf(["list", "grouped"] as const),
    rows: oneOf([1, 3, 5]),
    isDisjoint: Arbitrary.schema(Schema.Boolean)
  }),
  ({ sourceEp, destinationEp, style, rows, isDisjoint }) => ({
    source: expertRoster(8, sourceEp, 0, style, rows),
    destination: expertRoster(8, destinationEp, isDisjoint ? sourceEp : 0, style, rows)
  })
)
