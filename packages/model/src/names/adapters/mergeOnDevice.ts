// SPDX-License-Identifier: Apache-2.0
/**
 * One tensor of a base with an adapter's changes, made by an engine where the tensors lie: products by one kernel, whole tensors
 * and rows by copies. The bits are those of `mergeTensor`, for weights in float32.
 *
 * A shard is a region of the base's tensor: it takes the rows of `b` and the columns of `a` that are its own.
 */
import { bitsOf } from "@tensorferry/core/base/DType"
import { fullRegion, type Region } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { sliceTensor, type Tensor, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type MappingError, mappingError } from "../MappingError.ts"
import type { AdapterChange, AddedBias, LowRank, TrainedRows } from "./Adapter.ts"

/** A weight in use, what it was before any adapter, and which part of the base's tensor both are. */
export interface MergePlace {
  readonly live: Tensor
  readonly base: Tensor
  /** All of the base's tensor by default. */
  readonly region?: Region
}

/** Tensors of the adapter, by their names. */
export type AdapterTensors = ReadonlyMap<string, Tensor>

type Merging = Effect.Effect<void, MappingError | TensorError, TensorEngine | Scope.Scope>

const unsupported = (target: string, detail: string, remedy: string) =>
  mappingError("unsupported", target, undefined, detail, remedy)

/** Why a change cannot be made where the tensors lie; nothing where it can. */
export const deviceFault = (change: AdapterChange): Result.Result<void, MappingError> =>
  change._tag === "LowRank" && change.magnitude !== undefined
    ? unsupported(
        change.target,
        "The adapter states the norm of each output (DoRA), which is that of the whole merged weight and has no sum of its own.",
        "Merge it into the files of the base, or let the engine apply it."
      )
    : change._tag === "Whole" && change.isNew
      ? unsupported(change.target, "The base has no such tensor.", "Merge the adapter into the files of the base.")
      : Result.succeed(undefined)

const tensorOf = (tensors: AdapterTensors, name: string): Result.Result<Tensor, MappingError> => {
  const found = tensors.get(name)
  return found === undefined
    ? mappingError(
        "missing_source",
        name,
        undefined,
        "The adapter's tensor was not given.",
        "Pass all tensors of the adapter."
      )
    : Result.succeed(found)
}

/** Some rows and columns of a matrix. */
const matrixView = (
  tensor: Tensor,
  [row, rowStep, rows]: readonly [number, number, number],
  [column, columnStep, columns]: readonly [number, number, number]
): Tensor => {
  const [down, across] = tensor.strides as [number, number]
  return {
    ...tensor,
    shape: [rows, columns],
    strides: [down * rowStep, across * columnStep],
    byteOffset: tensor.byteOffset + ((row * down + column * across) * bitsOf(tensor.dtype)) / 8
  }
}

const addLowRank = Effect.fnUntraced(function* (
  change: LowRank,
  place: MergePlace,
  tensors: AdapterTensors,
  from: Tensor
) {
  const engine = yield* TensorEngine
  const { rank, isTransposed, experts, scale, shape } = change
  const [a, b] = [
    yield* Effect.fromResult(tensorOf(tensors, change.a)),
    yield* Effect.fromResult(tensorOf(tensors, change.b))
  ]
  const region = place.region ?? fullRegion(shape)
  const ways = region.slice(-2)
  const [outs, ins] = isTransposed ? [ways[1]!, ways[0]!] : [ways[0]!, ways[1]!]
  const matrixOf = (tensor: Tensor, at: number): Tensor => {
    const last = tensor.shape.length - 2
    const step = experts === undefined ? 0 : tensor.strides[0]!
    const matrix = {
      ...tensor,
      shape: tensor.shape.slice(last),
      strides: tensor.strides.slice(last),
      byteOffset: tensor.byteOffset + (at * step * bitsOf(tensor.dtype)) / 8
    }
    return isTransposed ? transposeTensor(matrix, 0, 1) : matrix
  }
  const [first, end] = experts === undefined ? [0, 1] : region[0]!
  for (let expert = first; expert < end; expert++) {
    // `a` has an expert's ranks below each other, `b` has the experts of a rank beside each other.
    yield* engine.addProduct(matrixOf(place.live, expert - first), matrixOf(from, expert - first), {
      a: matrixView(a, [expert * rank, 1, rank], [ins[0], 1, ins[1] - ins[0]]),
      b: matrixView(b, [outs[0], 1, outs[1] - outs[0]], [expert, experts ?? 1, rank]),
      scale
    })
  }
})

const addVector = Effect.fnUntraced(function* (
  { scale, tensor }: AddedBias,
  place: MergePlace,
  tensors: AdapterTensors,
  from: Tensor
) {
  const engine = yield* TensorEngine
  const bias = yield* Effect.fromResult(tensorOf(tensors, tensor))
  const [[first, end]] = (place.region ?? fullRegion(bias.shape)) as readonly [readonly [number, number]]
  const asColumn = (vector: Tensor): Tensor => ({
    ...vector,
    shape: [...vector.shape, 1],
    strides: [...vector.strides, 1]
  })
  // A vector is a product with the number one, of which an integer has the bytes.
  const one = yield* engine.allocate("uint8", [1, 1], bias.device)
  const unit = yield* engine.allocate(bias.dtype, [1, 1], bias.device)
  yield* engine.fill(one, 1)
  yield* engine.copy([{ dst: unit, src: one }])
  const b = asColumn({
    ...bias,
    shape: [end - first],
    byteOffset: bias.byteOffset + (first * bias.strides[0]! * bitsOf(bias.dtype)) / 8
  })
  return yield* engine.addProduct(asColumn(place.live), asColumn(from), { a: unit, b, scale })
})

const setRows = Effect.fnUntraced(function* (
  { rows, tensor }: TrainedRows,
  place: MergePlace,
  tensors: AdapterTensors
) {
  const engine = yield* TensorEngine
  const trained = yield* Effect.fromResult(tensorOf(tensors, tensor))
  const [[first, end], [left, right]] = (place.region ??
    fullRegion([Number.MAX_SAFE_INTEGER, trained.shape[1]!])) as readonly [
    readonly [number, number],
    readonly [number, number]
  ]
  const row = (of: Tensor, at: number, from: number, to: number) =>
    Result.getOrThrow(
      sliceTensor(of, [
        [at, at + 1],
        [from, to]
      ])
    )
  const moves = [...rows.entries()].flatMap(([at, target]) =>
    target < first || target >= end
      ? []
      : [{ dst: row(place.live, target - first, 0, right - left), src: row(trained, at, left, right) }]
  )
  yield* engine.copy(moves)
})

/**
 * Writes the base with these changes to the weight in use, in their order. The base stays as it is, so that nothing builds up.
 * Fails with what `deviceFault` says, before anything is written.
 */
export const mergeOnDevice = (
  changes: ReadonlyArray<AdapterChange>,
  place: MergePlace,
  tensors: AdapterTensors
): Merging =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    for (const change of changes) yield* Effect.fromResult(deviceFault(change))
    const { base, live } = place
    // A product reads the base itself where it comes first.
    if (changes[0]?._tag !== "LowRank" && changes[0]?._tag !== "Added") yield* engine.copy([{ dst: live, src: base }])
    for (const [at, change] of changes.entries()) {
      const from = at === 0 ? base : live
      if (change._tag === "LowRank") yield* addLowRank(change, place, tensors, from)
      else if (change._tag === "Added") yield* addVector(change, place, tensors, from)
      else if (change._tag === "Rows") yield* setRows(change, place, tensors)
      else {
        const whole = yield* Effect.fromResult(tensorOf(tensors, change.tensor))
        const src = place.region === undefined ? whole : Result.getOrThrow(sliceTensor(whole, place.region))
        yield* engine.copy([{ dst: live, src }])
      }
    }
  })
