// SPDX-License-Identifier: Apache-2.0
/**
 * Quantizes on the way, or back: weights travel wide and the receiver quantizes (`receiver`), or the sender quantizes and
 * fewer bytes travel (`sender`). Both give the same bytes, and so does any cutting into transfers.
 *
 * - A destination with row-major scales is written region by region where all regions are of whole blocks. Where one cuts a
 *   block, the receiver gathers the tensor wide and quantizes it once; a sender refuses such a cut, unless it is told the
 *   largest magnitudes of the blocks.
 * - A destination whose scales have no regions, as swizzled ones, is gathered and converted once, after the last transfer.
 *   What is gathered is bounded by `accumulatorLimit` and freed with the update.
 * - What shares a scale beyond one rank's tensor, as all of it under a global scale, is known by `maxima` alone: a rank never
 *   takes the largest of its part for that of the whole.
 * - Destinations that are not quantized get the values that the codes stand for; sources that are quantized are read as
 *   such. A quantized source by the sender's own recipe travels as it is.
 * - Destinations are written in place: their addresses stay.
 * - Recipes are part of what travels: in the `sender` form the last part of a transfer is empty, and its shape states the
 *   recipe, so that two ends that name different ones do not match, and nothing moves.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { byteLengthOf, type DType } from "../base/DType.ts"
import { elementCount, formatShape, type Region, regionShape, type Shape } from "../base/Region.ts"
import { globMatches } from "../layout/ShardingRules.ts"
import { type KnownScales, TensorEngine, type TensorError } from "../service/TensorEngine.ts"
import type { Device } from "../tensor/Device.ts"
import {
  codeShapeOf,
  codeTypeOf,
  hasGlobal,
  isQuantized,
  layoutOf,
  mxfp8Recipe,
  type QuantizationRecipe,
  type QuantizedTensor,
  ruleNumberOf,
  type ScaleRule,
  scaleShapeOf,
  scaleTypesOf,
  shapeOfValues,
  sharesBeyond
} from "../tensor/QuantizedTensor.ts"
import type { Move, Tensor } from "../tensor/Tensor.ts"
import { makeGatherings } from "./Gathering.ts"
import {
  blockHull,
  checkAligned,
  codeRegion,
  isAligned,
  quantizedRegion,
  quantizedTensorFault,
  scaleHull,
  wholeRegion
} from "./QuantizedRegion.ts"
import {
  fromTensorError,
  plainRegion,
  type ReshardTransform,
  regionOf,
  type TransformError,
  type TransformOp,
  transformError
} from "./ReshardTransform.ts"
import { inRowsMoves, layOutMoves } from "./ScaleLayouts.ts"

/** The largest magnitudes of the blocks that a region touches, over all elements of each. */
export interface RegionMaxima {
  /** Row and column at which the region begins within its first block; 0 and 0 by default. */
  readonly origin?: readonly [row: number, column: number]
  /** Row-major, one per block; under a global scale one for all. */
  readonly values: Float32Array
}

/**
 * What is known of blocks beyond a rank's own tensor, by parameter and region of the rank's tensor; undefined where all that
 * shares a scale lies in the tensor itself. `surveyMaxima` asks the ranks for it.
 */
export type KnownMaxima = (
  paramName: string,
  region: Region,
  side: "source" | "destination"
) => RegionMaxima | undefined

/** States that every rank's tensor is all that shares its scales: no parameter is cut within a block. */
export const ownMaxima: KnownMaxima = () => undefined

/** Who quantizes, what it quantizes to, and which parameters. */
export interface QuantizeOptions {
  /** Who quantizes. `receiver` by default. */
  readonly side?: "sender" | "receiver"
  /** What the sender makes, and what quantized destinations must be. By default the receiver takes the destination's own. */
  readonly recipe?: QuantizationRecipe
  /** What travels in the `receiver` form; bfloat16 by default. */
  readonly wireDtype?: "bfloat16" | "float16" | "float32"
  /** Globs over parameter names; all parameters by default. */
  readonly parameters?: ReadonlyArray<string>
  /** Bytes of tensors that may be gathered at one time in this process. 8 GiB by default. */
  readonly accumulatorLimit?: number
  /** Needed by forms with a global scale, and where a scale is that of a row or tensor. */
  readonly maxima?: KnownMaxima
}

const defaultAccumulatorLimit = 2 ** 33

/** What the transfers of one tensor are gathered in. */
interface Accumulator {
  /** Receiver form: the whole tensor, wide. */
  readonly wide?: Tensor
  /** The scales in rows, where the destination has them otherwise. */
  readonly scales?: Tensor
}

type Work<A> = Effect.Effect<A, TransformError, TensorEngine | Scope.Scope>

/** The transform of these options; options left out have the defaults named there. */
export const quantize = (options: QuantizeOptions = {}): ReshardTransform => {
  const isSender = options.side === "sender"
  const wire = options.wireDtype ?? "bfloat16"
  const sent: QuantizationRecipe = { ...(options.recipe ?? mxfp8Recipe()), layout: "rowMajor" }
  const patterns = options.parameters ?? ["*"]
  const gatherings = makeGatherings<Accumulator>(options.accumulatorLimit ?? defaultAccumulatorLimit)
  /** Destinations of the update under way of which some region cuts a block. */
  const cut = new WeakSet<QuantizedTensor>()

  const allocate = (op: TransformOp, dtype: DType, shape: Shape, device: Device): Work<Tensor> =>
    Effect.flatMap(TensorEngine, (engine) =>
      Effect.mapError(engine.allocate(dtype, shape, device), (error) => fromTensorError(op.paramName, error))
    )
  const run = <A, R>(
    op: TransformOp,
    work: (engine: TensorEngine["Service"]) => Effect.Effect<A, TensorError, R>
  ): Effect.Effect<A, TransformError, TensorEngine | R> =>
    Effect.flatMap(TensorEngine, (engine) =>
      Effect.mapError(work(engine), (error) => fromTensorError(op.paramName, error))
    )
  const copy = (op: TransformOp, moves: ReadonlyArray<Move>) => run(op, (engine) => engine.copy(moves))
  const region = (op: TransformOp, tensor: Tensor, part: Region) => regionOf(op.paramName, tensor, part)

  /** What is known of the blocks of a region, on its device. */
  const knownOf = (
    op: TransformOp,
    recipe: QuantizationRecipe,
    part: Region,
    side: "source" | "destination",
    device: Device
  ): Work<KnownScales> =>
    Effect.gen(function* () {
      if (options.maxima === undefined && sharesBeyond(recipe)) {
        return yield* transformError("UnsupportedTensor", {
          paramName: op.paramName,
          detail: `A scale of ${recipe.rule} is that of more than this rank may hold.`,
          remedy: "Pass maxima: what surveyMaxima finds, or ownMaxima where every rank holds whole tensors."
        })
      }
      const found = options.maxima?.(op.paramName, part, side)
      if (found === undefined) return {}
      const { origin, values } = found
      const shape = hasGlobal(recipe) ? [1] : (scaleShapeOf(recipe, regionShape(part), origin) ?? [0])
      if (elementCount(shape) !== values.length) {
        return yield* transformError("UnsupportedTensor", {
          paramName: op.paramName,
          detail: `${values.length} largest magnitudes are given for ${elementCount(shape)} blocks.`,
          remedy: "Give one for each block that the region touches."
        })
      }
      const maxima = yield* allocate(op, "float32", shape, device)
      const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength)
      const storage = yield* run(op, (engine) => engine.wrapHost(bytes))
      yield* copy(op, [{ dst: maxima, src: { ...maxima, storage, device: storage.device, byteOffset: 0 } }])
      return origin === undefined ? { maxima } : { maxima, origin }
    })

  /** The same tensor with row-major scales; they are copied where they are not. */
  const inRows = (op: TransformOp, source: QuantizedTensor): Work<QuantizedTensor> =>
    Effect.gen(function* () {
      const layout = layoutOf(source.recipe)
      if (layout === "rowMajor") return source
      const shape = scaleShapeOf(source.recipe, shapeOfValues(source))!
      const scale = yield* allocate(op, source.scale.dtype, shape, source.data.device)
      yield* copy(op, inRowsMoves(layout, source.scale, scale))
      return { ...source, scale, recipe: { ...source.recipe, layout: "rowMajor" } }
    })

  const checked = (
    op: TransformOp,
    tensor: QuantizedTensor,
    wanted: QuantizationRecipe | undefined
  ): Work<QuantizedTensor> => {
    const fault = quantizedTensorFault(op.paramName, tensor, wanted)
    return fault === undefined ? Effect.succeed(tensor) : Effect.fail(fault)
  }

  const noBlocks = ({ paramName, region: part }: TransformOp) =>
    transformError("UnsupportedTensor", {
      paramName,
      detail: `${formatShape(regionShape(part))} is no whole number of blocks of ${sent.rule}.`,
      remedy: "Leave the parameter wide, or choose a rule that has blocks cut at the edge."
    })

  const emptyQuantized = (op: TransformOp, shape: Shape, device: Device, scales: Shape): Work<QuantizedTensor> =>
    Effect.gen(function* () {
      const data = yield* allocate(op, codeTypeOf(sent), codeShapeOf(sent, shape), device)
      const scale = yield* allocate(op, scaleTypesOf(sent)[0]!, scales, device)
      const global = hasGlobal(sent) ? { global: yield* allocate(op, "float32", [1], device) } : {}
      return { _tag: "QuantizedTensor", data, scale, ...global, recipe: sent }
    })

  /** Codes, scales, the global scale where there is one, and the recipe as the shape of nothing. */
  const partsOf = (op: TransformOp, { data, scale, global }: QuantizedTensor): Work<ReadonlyArray<Tensor>> =>
    Effect.map(
      allocate(op, "uint8", [0, 1 + ruleNumberOf(sent), 1 + sent.block[0], 1 + sent.block[1]], data.device),
      (tag) => [data, scale, ...(global === undefined ? [] : [global]), tag]
    )

  /** A region of wide values. */
  const sendWide = (op: TransformOp): Work<ReadonlyArray<Tensor>> =>
    Effect.gen(function* () {
      if (isQuantized(op.tensor)) {
        // What lies around the region up to whole blocks is dequantized with it.
        const source = yield* inRows(op, yield* checked(op, op.tensor, undefined))
        const hull = blockHull(source.recipe, op.region, shapeOfValues(source))
        const part = yield* quantizedRegion(op.paramName, source, hull)
        const values = yield* allocate(op, wire, regionShape(hull), source.data.device)
        yield* run(op, (engine) => engine.dequantize(part, values))
        const within = op.region.map(([start, end], dim): readonly [number, number] => [
          start - hull[dim]![0],
          end - hull[dim]![0]
        ])
        return [yield* region(op, values, within)]
      }
      const view = yield* plainRegion(op)
      if (view.dtype === wire) return [view]
      const dst = yield* allocate(op, wire, view.shape, view.device)
      yield* copy(op, [{ dst, src: view }])
      return [dst]
    })

  const sendQuantized = (op: TransformOp): Work<ReadonlyArray<Tensor>> =>
    Effect.gen(function* () {
      if (isQuantized(op.tensor)) {
        const source = yield* inRows(op, yield* checked(op, op.tensor, sent))
        return yield* partsOf(op, yield* quantizedRegion(op.paramName, source, op.region))
      }
      const view = yield* plainRegion(op)
      const known = yield* knownOf(op, sent, op.region, "source", view.device)
      if (known.origin === undefined) yield* checkAligned(op.paramName, sent, op.region, op.tensor.shape)
      const scales = scaleShapeOf(sent, view.shape, known.origin)
      if (scales === undefined) return yield* noBlocks(op)
      const made = yield* emptyQuantized(op, view.shape, view.device, scales)
      yield* run(op, (engine) => engine.quantize(view, made, known))
      return yield* partsOf(op, made)
    })

  /** Whether regions of a destination are written one by one, each when its update ends. */
  const isDirect = (recipe: QuantizationRecipe, op: TransformOp, shape: Shape): boolean =>
    isAligned(recipe, op.region, shape) ||
    (!hasGlobal(recipe) && options.maxima?.(op.paramName, op.region, "destination") !== undefined)

  /** Whether transfers of a destination are brought together first. */
  const isGathered = (tensor: QuantizedTensor): boolean => layoutOf(tensor.recipe) !== "rowMajor" || cut.has(tensor)

  const accumulate = (op: TransformOp, tensor: QuantizedTensor): Work<Accumulator> => {
    const { data, recipe, scale } = tensor
    const shape = shapeOfValues(tensor)
    const scaleShape = layoutOf(recipe) === "rowMajor" ? undefined : scaleShapeOf(recipe, shape)!
    const scaleBytes = scaleShape === undefined ? 0 : byteLengthOf(scale.dtype, elementCount(scaleShape))
    const byteLength = scaleBytes + (isSender ? 0 : byteLengthOf(wire, elementCount(shape)))
    const make = Effect.gen(function* (): Effect.fn.Return<Accumulator, TransformError, TensorEngine | Scope.Scope> {
      const scales =
        scaleShape === undefined ? {} : { scales: yield* allocate(op, scale.dtype, scaleShape, data.device) }
      return isSender ? scales : { ...scales, wide: yield* allocate(op, wire, shape, data.device) }
    })
    return gatherings.join(op, byteLength, make)
  }

  const receiveWide = (op: TransformOp): Work<ReadonlyArray<Tensor>> =>
    Effect.gen(function* () {
      if (!isQuantized(op.tensor)) {
        const view = yield* plainRegion(op)
        return [view.dtype === wire ? view : yield* allocate(op, wire, view.shape, view.device)]
      }
      const destination = yield* checked(op, op.tensor, options.recipe)
      if (isGathered(destination)) {
        const { wide } = yield* accumulate(op, destination)
        return [yield* region(op, wide!, op.region)]
      }
      const shape = shapeOfValues(destination)
      if (!isDirect(destination.recipe, op, shape)) {
        yield* checkAligned(op.paramName, destination.recipe, op.region, shape)
      }
      return [yield* allocate(op, wire, regionShape(op.region), destination.data.device)]
    })

  const receiveQuantized = (op: TransformOp): Work<ReadonlyArray<Tensor>> =>
    Effect.gen(function* () {
      const origin = options.maxima?.(op.paramName, op.region, "destination")?.origin
      const scales = scaleShapeOf(sent, regionShape(op.region), origin)
      if (origin === undefined || scales === undefined) {
        yield* checkAligned(op.paramName, sent, op.region, shapeOfValues(op.tensor))
      }
      const made = (shape: Shape, device: Device) => emptyQuantized(op, shape, device, scales ?? [0])
      if (!isQuantized(op.tensor)) {
        const view = yield* plainRegion(op)
        return yield* partsOf(op, yield* made(view.shape, view.device))
      }
      const destination = yield* checked(op, op.tensor, sent)
      const { device } = destination.data
      const data = yield* region(op, destination.data, codeRegion(sent, op.region))
      const global = hasGlobal(sent) ? { global: yield* allocate(op, "float32", [1], device) } : {}
      const rows = isGathered(destination) ? (yield* accumulate(op, destination)).scales! : destination.scale
      // Transfers that touch one block bring its scale more than once.
      const scale =
        origin === undefined && rows.dtype === scaleTypesOf(sent)[0]
          ? yield* region(op, rows, scaleHull(sent, op.region))
          : yield* allocate(op, scaleTypesOf(sent)[0]!, scales ?? [0], device)
      return yield* partsOf(op, { ...destination, data, scale, ...global })
    })

  /** Once per tensor whose transfers were gathered. */
  const convert = (op: TransformOp, destination: QuantizedTensor, { wide, scales }: Accumulator) =>
    Effect.scoped(
      Effect.gen(function* () {
        const { recipe, scale } = destination
        if (wide !== undefined) {
          const whole = wholeRegion(wide.shape)
          const known = yield* knownOf(op, recipe, whole, "destination", wide.device)
          const made: QuantizedTensor =
            scales === undefined
              ? destination
              : { ...destination, scale: scales, recipe: { ...recipe, layout: "rowMajor" } }
          yield* run(op, (engine) => engine.quantize(wide, made, known))
        }
        if (scales === undefined) return
        yield* run(op, (engine) => engine.fill(scale, 0))
        yield* copy(op, layOutMoves(layoutOf(recipe), scales, scale))
      })
    )

  const finishQuantized = (op: TransformOp, buffers: ReadonlyArray<Tensor>) =>
    Effect.gen(function* () {
      const { tensor } = op
      const [data, scale, third] = buffers
      const global = hasGlobal(sent) ? { global: third! } : {}
      const source: QuantizedTensor = { _tag: "QuantizedTensor", data: data!, scale: scale!, ...global, recipe: sent }
      const origin = options.maxima?.(op.paramName, op.region, "destination")?.origin
      if (!isQuantized(tensor)) {
        const dst = yield* plainRegion(op)
        return yield* run(op, (engine) => engine.dequantize(source, dst, origin))
      }
      if (tensor.global !== undefined && global.global !== undefined) {
        const { shape, strides } = tensor.global
        yield* copy(op, [{ dst: tensor.global, src: { ...global.global, shape, strides } }])
      }
      const rows = isGathered(tensor) ? gatherings.of(op)?.scales : tensor.scale
      if (rows !== undefined && scale!.storage !== rows.storage) {
        const dst = yield* region(op, rows, scaleHull(sent, op.region))
        yield* copy(op, [{ dst, src: scale! }])
      }
      if (isGathered(tensor)) {
        yield* gatherings.arrive(op, shapeOfValues(tensor), (gathered) => convert(op, tensor, gathered))
      }
    })

  const finishWide = (op: TransformOp, buffers: ReadonlyArray<Tensor>) =>
    Effect.scoped(
      Effect.gen(function* () {
        const { tensor } = op
        if (!isQuantized(tensor)) {
          const dst = yield* plainRegion(op)
          return dst.dtype === wire ? undefined : yield* copy(op, [{ dst, src: buffers[0]! }])
        }
        if (isGathered(tensor)) {
          return yield* gatherings.arrive(op, shapeOfValues(tensor), (gathered) => convert(op, tensor, gathered))
        }
        const known = yield* knownOf(op, tensor.recipe, op.region, "destination", tensor.data.device)
        const data = yield* region(op, tensor.data, codeRegion(tensor.recipe, op.region))
        const scale = yield* region(op, tensor.scale, scaleHull(tensor.recipe, op.region))
        yield* run(op, (engine) => engine.quantize(buffers[0]!, { ...tensor, data, scale }, known))
      })
    )

  const what = options.recipe === undefined ? "by the destination's recipe" : `${sent.name}/${sent.rule}`
  return {
    name: `quantize ${what}, by the ${isSender ? "sender" : "receiver"}`,
    shouldTransform: (paramName) => patterns.some((pattern) => globMatches(pattern, paramName)),
    parts: isSender ? (hasGlobal(sent) ? 4 : 3) : 1,
    needsQuantized: !isSender,
    begin: (receives) => {
      for (const { tensor } of receives) if (isQuantized(tensor)) cut.delete(tensor)
      if (isSender) return
      for (const op of receives) {
        const { tensor } = op
        if (isQuantized(tensor) && !isDirect(tensor.recipe, op, shapeOfValues(tensor))) cut.add(tensor)
      }
    },
    prepareSend: isSender ? sendQuantized : sendWide,
    prepareRecv: isSender ? receiveQuantized : receiveWide,
    finalizeRecv: isSender ? finishQuantized : finishWide
  }
}

/** Options of `mxfp8`: those of `quantize`, by the name of a rule. */
export interface Mxfp8Options extends Omit<QuantizeOptions, "recipe" | "maxima"> {
  /** How scales are made. By default the destination's own rule; the sender, who does not see it, takes `rceil`. */
  readonly rule?: ScaleRule
}

/** Quantizes to MXFP8 on the way. */
export const mxfp8 = ({ rule, ...options }: Mxfp8Options = {}): ReshardTransform =>
  quantize(rule === undefined ? options : { ...options, recipe: mxfp8Recipe(rule) })

/** Quantizes a whole tensor into a destination of any layout, as a transfer of it would. */
export const quantizeWhole = (paramName: string, source: Tensor, destination: QuantizedTensor, maxima?: KnownMaxima) =>
  Effect.scoped(
    Effect.gen(function* () {
      const transform = quantize(maxima === undefined ? {} : { maxima })
      const op: TransformOp = { paramName, region: wholeRegion(shapeOfValues(destination)), tensor: destination }
      const engine = yield* TensorEngine
      const [buffer] = yield* transform.prepareRecv(op)
      yield* Effect.mapError(engine.copy([{ dst: buffer!, src: source }]), (error) => fromTensorError(paramName, error))
      yield* transform.finalizeRecv(op, [buffer!])
    })
  )
