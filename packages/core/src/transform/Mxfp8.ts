// SPDX-License-Identifier: Apache-2.0
/**
 * Quantizes to MXFP8 on the way, or back: weights travel wide and the receiver quantizes (`receiver`), or the sender
 * quantizes and half the bytes travel (`sender`). Both give the same bytes, and so does any cutting into transfers.
 *
 * - A destination with row-major scales is written region by region; a region that cuts a block is refused.
 * - A destination with swizzled scales, which have no regions, is gathered and converted once, after the last transfer.
 *   What is gathered is bounded by `accumulatorLimit` and freed with the update.
 * - Destinations that are not quantized get the values that the blocks stand for; sources that are quantized are read as
 *   such. A quantized source by the sender's own rule travels as it is.
 * - Destinations are written in place: their addresses stay.
 * - Rules are part of what travels: in the `sender` form the last part of a transfer is empty, and its shape states the
 *   rule, so that two ends that name different rules do not match, and nothing moves.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { byteLengthOf, type DType } from "../base/DType.ts"
import { elementCount, type Region, regionShape, type Shape } from "../base/Region.ts"
import { globMatches } from "../layout/ShardingRules.ts"
import { TensorEngine, type TensorError } from "../service/TensorEngine.ts"
import type { Device } from "../tensor/Device.ts"
import {
  isQuantized,
  layoutOf,
  mxfp8Recipe,
  type QuantizedTensor,
  type ScaleRule,
  scaleRules,
  scaleShapeOf
} from "../tensor/QuantizedTensor.ts"
import type { Move, Tensor } from "../tensor/Tensor.ts"
import { makeGatherings } from "./Gathering.ts"
import {
  blockHull,
  checkAligned,
  quantizedRegion,
  quantizedTensorFault,
  scaleRegion,
  wholeRegion
} from "./QuantizedRegion.ts"
import {
  fromTensorError,
  plainRegion,
  type ReshardTransform,
  regionOf,
  type TransformError,
  type TransformOp
} from "./ReshardTransform.ts"
import { swizzleMoves, unswizzleMoves } from "./ScaleSwizzle.ts"

/** Who quantizes, by which rule, and which parameters. */
export interface Mxfp8Options {
  /** Who quantizes. `receiver` by default. */
  readonly side?: "sender" | "receiver"
  /** How scales are made. By default the destination's own rule; the sender, who does not see it, takes `rceil`. */
  readonly rule?: ScaleRule
  /** What travels in the `receiver` form; bfloat16 by default, which holds every value that a block stands for. */
  readonly wireDtype?: "bfloat16" | "float16" | "float32"
  /** Globs over parameter names; all parameters by default. */
  readonly parameters?: ReadonlyArray<string>
  /** Bytes of tensors with swizzled scales that may be gathered at one time in this process. 8 GiB by default. */
  readonly accumulatorLimit?: number
}

const defaultAccumulatorLimit = 2 ** 33

/** What the transfers of one tensor with swizzled scales are gathered in. */
interface Accumulator {
  /** Receiver form: the whole tensor, wide. Sender form: its scales in rows. */
  readonly wide?: Tensor
  readonly scales: Tensor
}

type Work<A> = Effect.Effect<A, TransformError, TensorEngine | Scope.Scope>

/** The transform of these options; options left out have the defaults named there. */
export const mxfp8 = (options: Mxfp8Options = {}): ReshardTransform => {
  const isSender = options.side === "sender"
  const wire = options.wireDtype ?? "bfloat16"
  const senderRule = options.rule ?? "rceil"
  const patterns = options.parameters ?? ["*"]
  const gatherings = makeGatherings<Accumulator>(options.accumulatorLimit ?? defaultAccumulatorLimit)

  const allocate = (op: TransformOp, dtype: DType, shape: Shape, device: Device): Work<Tensor> =>
    Effect.flatMap(TensorEngine, (engine) =>
      Effect.mapError(engine.allocate(dtype, shape, device), (error) => fromTensorError(op.paramName, error))
    )
  const run = (
    op: TransformOp,
    work: (engine: TensorEngine["Service"]) => Effect.Effect<void, TensorError>
  ): Effect.Effect<void, TransformError, TensorEngine> =>
    Effect.flatMap(TensorEngine, (engine) =>
      Effect.mapError(work(engine), (error) => fromTensorError(op.paramName, error))
    )
  const copy = (op: TransformOp, moves: ReadonlyArray<Move>) => run(op, (engine) => engine.copy(moves))
  const region = (op: TransformOp, tensor: Tensor, part: Region) => regionOf(op.paramName, tensor, part)

  /** The same tensor with row-major scales; they are copied where they are not. */
  const inRows = (op: TransformOp, source: QuantizedTensor): Work<QuantizedTensor> =>
    Effect.gen(function* () {
      if (layoutOf(source.recipe) === "rowMajor") return source
      const shape = scaleShapeOf(source.data.shape)!
      const scale = yield* allocate(op, "float8_e8m0fnu", shape, source.data.device)
      yield* copy(op, unswizzleMoves(source.scale, scale))
      return { ...source, scale, recipe: mxfp8Recipe(source.recipe.rule) }
    })

  const checked = (op: TransformOp, tensor: QuantizedTensor, rule: ScaleRule | undefined): Work<QuantizedTensor> => {
    const fault = quantizedTensorFault(op.paramName, tensor, rule)
    return fault === undefined ? Effect.succeed(tensor) : Effect.fail(fault)
  }

  const emptyQuantized = (op: TransformOp, shape: Shape, device: Device, rule: ScaleRule): Work<QuantizedTensor> =>
    Effect.gen(function* () {
      const data = yield* allocate(op, "float8_e4m3fn", shape, device)
      const scale = yield* allocate(op, "float8_e8m0fnu", scaleShapeOf(shape) ?? [0], device)
      return { _tag: "QuantizedTensor", data, scale, recipe: mxfp8Recipe(rule) }
    })

  /** Data, scales, and the rule as the shape of nothing. */
  const partsOf = (op: TransformOp, { data, scale }: QuantizedTensor, rule: ScaleRule): Work<ReadonlyArray<Tensor>> =>
    Effect.map(allocate(op, "uint8", [0, 1 + scaleRules.indexOf(rule)], data.device), (tag) => [data, scale, tag])

  /** A region of wide values. */
  const sendWide = (op: TransformOp): Work<ReadonlyArray<Tensor>> =>
    Effect.gen(function* () {
      if (isQuantized(op.tensor)) {
        // What lies around the region up to whole blocks is dequantized with it.
        const source = yield* inRows(op, yield* checked(op, op.tensor, undefined))
        const hull = blockHull(op.region)
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
        const source = yield* inRows(op, yield* checked(op, op.tensor, senderRule))
        return yield* partsOf(op, yield* quantizedRegion(op.paramName, source, op.region), senderRule)
      }
      yield* checkAligned(op.paramName, op.region)
      const view = yield* plainRegion(op)
      const made = yield* emptyQuantized(op, view.shape, view.device, senderRule)
      yield* run(op, (engine) => engine.quantize(view, made))
      return yield* partsOf(op, made, senderRule)
    })

  const accumulate = (op: TransformOp, { data }: QuantizedTensor): Work<Accumulator> => {
    const scaleShape = scaleShapeOf(data.shape)!
    const byteLength = elementCount(scaleShape) + (isSender ? 0 : byteLengthOf(wire, elementCount(data.shape)))
    const make = Effect.gen(function* (): Effect.fn.Return<Accumulator, TransformError, TensorEngine | Scope.Scope> {
      const scales = yield* allocate(op, "float8_e8m0fnu", scaleShape, data.device)
      return isSender ? { scales } : { scales, wide: yield* allocate(op, wire, data.shape, data.device) }
    })
    return gatherings.join(op, byteLength, make)
  }

  const receiveWide = (op: TransformOp): Work<ReadonlyArray<Tensor>> =>
    Effect.gen(function* () {
      if (!isQuantized(op.tensor)) {
        const view = yield* plainRegion(op)
        return [view.dtype === wire ? view : yield* allocate(op, wire, view.shape, view.device)]
      }
      const destination = yield* checked(op, op.tensor, options.rule)
      if (layoutOf(destination.recipe) === "swizzled") {
        const { wide } = yield* accumulate(op, destination)
        return [yield* region(op, wide!, op.region)]
      }
      yield* quantizedRegion(op.paramName, destination, op.region)
      return [yield* allocate(op, wire, regionShape(op.region), destination.data.device)]
    })

  const receiveQuantized = (op: TransformOp): Work<ReadonlyArray<Tensor>> =>
    Effect.gen(function* () {
      yield* checkAligned(op.paramName, op.region)
      if (!isQuantized(op.tensor)) {
        const view = yield* plainRegion(op)
        return yield* partsOf(op, yield* emptyQuantized(op, view.shape, view.device, senderRule), senderRule)
      }
      const destination = yield* checked(op, op.tensor, senderRule)
      if (layoutOf(destination.recipe) === "rowMajor") {
        return yield* partsOf(op, yield* quantizedRegion(op.paramName, destination, op.region), senderRule)
      }
      const { scales } = yield* accumulate(op, destination)
      const scale = yield* region(op, scales, scaleRegion(op.region))
      const data = yield* region(op, destination.data, op.region)
      return yield* partsOf(op, { ...destination, data, scale }, senderRule)
    })

  /** Once per tensor with swizzled scales. */
  const convert = (op: TransformOp, destination: QuantizedTensor, { wide, scales }: Accumulator) =>
    Effect.gen(function* () {
      const rows: QuantizedTensor = { ...destination, scale: scales, recipe: mxfp8Recipe(destination.recipe.rule) }
      if (wide !== undefined) yield* run(op, (engine) => engine.quantize(wide, rows))
      yield* run(op, (engine) => engine.fill(destination.scale, 0))
      yield* copy(op, swizzleMoves(scales, destination.scale))
    })

  return {
    name: `mxfp8 ${options.rule ?? "by the destination's rule"}, quantized by the ${isSender ? "sender" : "receiver"}`,
    shouldTransform: (paramName) => patterns.some((pattern) => globMatches(pattern, paramName)),
    parts: isSender ? 3 : 1,
    needsQuantized: !isSender,
    prepareSend: isSender ? sendQuantized : sendWide,
    prepareRecv: isSender ? receiveQuantized : receiveWide,
    finalizeRecv: Effect.fnUntraced(function* (op, buffers) {
      const { tensor } = op
      if (!isQuantized(tensor)) {
        const dst = yield* plainRegion(op)
        if (isSender) {
          const [data, scale] = buffers
          const source: QuantizedTensor = {
            _tag: "QuantizedTensor",
            data: data!,
            scale: scale!,
            recipe: mxfp8Recipe(senderRule)
          }
          return yield* run(op, (engine) => engine.dequantize(source, dst))
        }
        return dst.dtype === wire ? undefined : yield* copy(op, [{ dst, src: buffers[0]! }])
      }
      if (layoutOf(tensor.recipe) === "swizzled") {
        return yield* gatherings.arrive(op, tensor.data.shape, (gathered) => convert(op, tensor, gathered))
      }
      if (isSender) return
      const part = yield* quantizedRegion(op.paramName, tensor, op.region)
      yield* run(op, (engine) => engine.quantize(buffers[0]!, part))
    })
  }
}

/** Quantizes a whole tensor into a destination of any layout, as a transfer of it would. */
export const quantizeWhole = (paramName: string, source: Tensor, destination: QuantizedTensor) =>
  Effect.scoped(
    Effect.gen(function* () {
      const transform = mxfp8()
      const op: TransformOp = { paramName, region: wholeRegion(destination.data), tensor: destination }
      const engine = yield* TensorEngine
      const [buffer] = yield* transform.prepareRecv(op)
      yield* Effect.mapError(engine.copy([{ dst: buffer!, src: source }]), (error) => fromTensorError(paramName, error))
      yield* transform.finalizeRecv(op, [buffer!])
    })
  )
