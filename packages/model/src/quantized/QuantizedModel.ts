// SPDX-License-Identifier: Apache-2.0
/**
 * A model whose weights are read as codes and scales, quantized by the rank's own engine as they are read, some rows at a
 * time.
 *
 * Invariants: what is read of a region depends on the whole weight's blocks alone, so any cutting gives the same bytes; the
 * largest magnitude of what shares a global scale is that of whole weights; what is read and converted at one time has at
 * most `pieceBytes` of values, or one block, beside the memory that a caller reads into.
 */
import { bitsOf } from "@tensorferry/core/base/DType"
import { elementCount, intersect, type Region, regionShape } from "@tensorferry/core/base/Region"
import {
  type KnownScales,
  TensorEngine,
  type TensorEngineShape,
  type TensorError
} from "@tensorferry/core/service/TensorEngine"
import {
  blockSizesOf,
  codeShapeOf,
  codesPerByte,
  codeTypeOf,
  cutSizeOf,
  hasGlobal,
  type QuantizedTensor,
  scaleShapeOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { permuteTensor, sliceTensor, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { blockHull, codeRegion, scaleHull, wholeRegion } from "@tensorferry/core/transform/QuantizedRegion"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import type { Model } from "../Model.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { readTensor } from "../stream/readTensor.ts"
import type { QuantizedWeight } from "./selection.ts"

/** Most bytes of values that are converted at one time. */
export const pieceBytes = 16 * 1024 * 1024

/** Weights that share a largest magnitude. */
type Members = ReadonlyArray<QuantizedWeight>
type Source = Pick<Model, "readRegion">
type Work<A> = Effect.Effect<A, CheckpointError | ModelError | TensorError, Scope.Scope>

/** Whether one number is that of the whole weight, and of those that it is joined with. */
export const isOneForAll = ({ recipe }: QuantizedWeight): boolean =>
  hasGlobal(recipe) || recipe.block.every((size) => size === 0)

/** Regions within a tensor that was just made of it: always there. */
const sliced = (tensor: Tensor, region: Region): Tensor => Result.getOrThrow(sliceTensor(tensor, region))

const startsOf = (region: Region): ReadonlyArray<number> => region.map(([start]) => start)

const shifted = (region: Region, by: ReadonlyArray<number>): Region =>
  region.map(([start, end], dim) => [start + by[dim]!, end + by[dim]!] as const)

const within = (region: Region, origin: ReadonlyArray<number>): Region =>
  shifted(
    region,
    origin.map((at) => -at)
  )

/** Regions of whole units that make up a region, each of at most so many elements where a unit allows it. */
export const piecesOf = (region: Region, units: ReadonlyArray<number>, most: number): ReadonlyArray<Region> => {
  const count = elementCount(regionShape(region))
  if (count <= most) return [region]
  for (const [dim, [start, end]] of region.entries()) {
    const unit = units[dim] === 0 ? end - start : units[dim]!
    if (end - start <= unit) continue
    const each = Math.max(unit, Math.floor((most * (end - start)) / count / unit) * unit)
    const parts: Array<Region> = []
    for (let at = start; at < end; at += each) {
      const part = region.map((interval, k) => (k === dim ? ([at, Math.min(end, at + each)] as const) : interval))
      parts.push(...piecesOf(part, units, most))
    }
    return parts
  }
  return [region]
}

const piecesOfWeight = (
  { recipe, source }: QuantizedWeight,
  region: Region,
  mostBytes: number
): ReadonlyArray<Region> => {
  const sizes = blockSizesOf(cutSizeOf(recipe), region.length)
  const isCut = recipe.block.every((size) => size === 0)
  return piecesOf(region, isCut ? sizes.map(() => 1) : sizes, Math.floor((mostBytes * 8) / bitsOf(source.dtype)))
}

/** The values of a region of a weight, rows of outputs before columns of inputs. */
const valuesOf = (engine: TensorEngineShape, model: Source, weight: QuantizedWeight, region: Region): Work<Tensor> =>
  Effect.gen(function* () {
    const { isSwapped, source } = weight
    const stored = isSwapped ? [...region.slice(0, -2), region.at(-1)!, region.at(-2)!] : region
    const tensor = yield* readTensor(engine, model, source, stored)
    const order = stored.map((_, dim) => dim)
    return isSwapped ? permuteTensor(tensor, [...order.slice(0, -2), order.at(-1)!, order.at(-2)!]) : tensor
  })

/** A number in memory of the engine. */
const placed = (engine: TensorEngineShape, value: number, shape: ReadonlyArray<number>): Work<Tensor> =>
  Effect.gen(function* () {
    const tensor = yield* engine.allocate("float32", shape)
    const bytes = new Uint8Array(Float32Array.of(value).buffer)
    const src = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), "float32", shape))
    yield* engine.copy([{ dst: tensor, src }])
    return tensor
  })

/** The largest magnitude of weights, all of their elements, some at a time; NaN where one is there. */
export const largestOf = (
  engine: TensorEngineShape,
  model: Source,
  members: Members,
  mostBytes = pieceBytes
): Effect.Effect<number, CheckpointError | ModelError | TensorError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const found = yield* placed(engine, 0, [1])
      for (const weight of members) {
        for (const piece of piecesOfWeight(weight, wholeRegion(weight.shape), mostBytes)) {
          const look = Effect.flatMap(valuesOf(engine, model, weight, piece), (values) =>
            engine.largest(values, found, [0, 0])
          )
          yield* Effect.scoped(look)
        }
      }
      const bytes = new Uint8Array(4)
      const dst = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), "float32", [1]))
      yield* engine.copy([{ dst, src: found }])
      return new DataView(bytes.buffer).getFloat32(0, true)
    })
  )

/** Codes and scales of a region of whole blocks, dense. */
const convertedOf = (
  engine: TensorEngineShape,
  model: Source,
  weight: QuantizedWeight,
  region: Region,
  amax: number | undefined
): Work<QuantizedTensor> =>
  Effect.gen(function* () {
    const { recipe } = weight
    const shape = regionShape(region)
    const data = yield* engine.allocate(codeTypeOf(recipe), codeShapeOf(recipe, shape))
    const scale = yield* engine.allocate(weight.scales.dtype, scaleShapeOf(recipe, shape)!)
    const global = hasGlobal(recipe) ? { global: yield* engine.allocate("float32", [1]) } : {}
    const oneShape = hasGlobal(recipe) ? [1] : scale.shape
    const known: KnownScales = amax === undefined ? {} : { maxima: yield* placed(engine, amax, oneShape) }
    const made: QuantizedTensor = { _tag: "QuantizedTensor", data, scale, ...global, recipe }
    const convert = Effect.flatMap(valuesOf(engine, model, weight, region), (values) =>
      engine.quantize(values, made, known)
    )
    yield* Effect.scoped(convert)
    return made
  })

/** The values that a region of a stored part belongs to, up to whole blocks. */
const hullOf = (weight: QuantizedWeight, part: ModelTensor, region: Region): Region => {
  const { codes, isSwapped, recipe, scales, shape } = weight
  const last = shape.length - 1
  if (part === codes) {
    const each = isSwapped ? 32 : codesPerByte(recipe)
    const [start, end] = region[last]!
    const values: Region = [...region.slice(0, last), [start * each, end * each]]
    // Where one scale is known for all, no block has to be whole.
    return recipe.block.every((size) => size === 0) ? values : blockHull(recipe, values, shape)
  }
  if (part === scales && scales.shape.length === shape.length) {
    const grid = blockSizesOf(recipe.block, shape.length)
    const values = region.map(([start, end], dim): readonly [number, number] => {
      const size = grid[dim]!
      return size === 0 ? [0, shape[dim]!] : [start * size, Math.min(end * size, shape[dim]!)]
    })
    return blockHull(recipe, values, shape)
  }
  // What is of the whole weight does not depend on which elements are converted for it.
  const sizes = blockSizesOf(recipe.block, shape.length)
  return shape.map((length, dim): readonly [number, number] => [0, Math.min(length, sizes[dim] || 1)])
}

/** What was made of a hull as the part is stored, and where it begins in the part. */
const storedPart = (
  { codes, isSwapped, recipe, scales }: QuantizedWeight,
  part: ModelTensor,
  { data, global, scale }: QuantizedTensor,
  hull: Region
): readonly [Tensor, ReadonlyArray<number>] => {
  const seen = (tensor: Tensor, shape: ReadonlyArray<number>): Tensor =>
    Result.getOrThrow(tensorView(tensor.storage, tensor.dtype, shape, { byteOffset: tensor.byteOffset }))
  const starts = startsOf(hull)
  if (part === codes && isSwapped) {
    const [experts, rows, bytes] = data.shape
    return [seen(data, [experts!, rows!, bytes! / 16, 16]), [starts[0]!, starts[1]!, starts[2]! / 32, 0]]
  }
  if (part === codes) return [data, startsOf(codeRegion(recipe, hull))]
  if (part === scales && scales.shape.length === hull.length) return [scale, startsOf(scaleHull(recipe, hull))]
  const tensor = part === scales ? scale : global!
  return [seen(tensor, part.shape), part.shape.map(() => 0)]
}

/** Reads a region of a stored part, some whole blocks at a time. */
const readPart = (
  engine: TensorEngineShape,
  model: Source,
  weight: QuantizedWeight,
  part: ModelTensor,
  region: Region,
  amax: number | undefined,
  into: Uint8Array,
  mostBytes: number
): Effect.Effect<void, CheckpointError | ModelError | TensorError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const storage = yield* engine.wrapHost(into)
      const shape = regionShape(region)
      for (const piece of piecesOfWeight(weight, hullOf(weight, part, region), mostBytes)) {
        const move = Effect.gen(function* () {
          const made = yield* convertedOf(engine, model, weight, piece, amax)
          const [tensor, origin] = storedPart(weight, part, made, piece)
          const common = intersect(region, shifted(wholeRegion(tensor.shape), origin))
          if (common === undefined) return
          const dst = Result.getOrThrow(tensorView(storage, tensor.dtype, shape))
          const src = sliced(tensor, within(common, origin))
          yield* engine.copy([{ dst: sliced(dst, within(common, startsOf(region))), src }])
        })
        yield* Effect.scoped(move)
      }
    })
  )

/**
 * The model with codes and scales in the place of weights. `known` has largest magnitudes by group, where they were found
 * before; the others are found when they are needed. At most `mostBytes` of values are converted at one time.
 */
export const quantizedModel = (
  model: Model,
  weights: Members,
  known: ReadonlyMap<string, number> = new Map(),
  mostBytes = pieceBytes
): Effect.Effect<Model, never, TensorEngine> =>
  Effect.map(TensorEngine, (engine) => {
    const found = new Map(known)
    const partsOf = ({ codes, global, scales }: QuantizedWeight) => [
      codes,
      scales,
      ...(global === undefined ? [] : [global])
    ]
    const bySource = new Map(weights.map((weight) => [weight.source.name, weight]))
    const byPart = new Map(
      weights.flatMap((weight) => partsOf(weight).map((part) => [part.name, { part, weight }] as const))
    )
    const amaxOf = (weight: QuantizedWeight) =>
      Effect.gen(function* () {
        const { group } = weight
        const before = found.get(group)
        if (before !== undefined) return before
        const amax = yield* largestOf(
          engine,
          model,
          weights.filter((one) => one.group === group),
          mostBytes
        )
        found.set(group, amax)
        return amax
      })
    return {
      ...model,
      tensors: quantizedTensors(model.tensors, weights, bySource),
      digestOf: () => undefined,
      readRegion: (name, region, into) => {
        const seen = byPart.get(name)
        if (seen === undefined) return model.readRegion(name, region, into)
        if (into.length === 0) return Effect.void
        const { part, weight: own } = seen
        const known = isOneForAll(own) ? amaxOf(own) : Effect.succeed(undefined)
        return Effect.flatMap(known, (amax) => readPart(engine, model, own, part, region, amax, into, mostBytes)).pipe(
          Effect.catchTag("TensorError", (error) =>
            Effect.fail(modelError("Unsupported", { ...error.reason, paramName: name }))
          )
        )
      }
    }
  })

/** The tensors of a model with codes and scales in the place of weights. */
export const quantizedTensors = (
  tensors: ReadonlyArray<ModelTensor>,
  weights: Members,
  bySource: ReadonlyMap<string, QuantizedWeight> = new Map(weights.map((weight) => [weight.source.name, weight]))
): ReadonlyArray<ModelTensor> =>
  tensors.flatMap((tensor) => {
    const weight = bySource.get(tensor.name)
    if (weight === undefined) return [tensor]
    const { codes, global, scales } = weight
    return [codes, scales, ...(global === undefined ? [] : [global])]
  })
