// SPDX-License-Identifier: Apache-2.0
/**
 * The receiving end of a quantizing transform: where values or codes arrive, and how a destination is written from them.
 *
 * Invariant: a destination whose transfers are gathered is written once, when all of it has come.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { byteLengthOf } from "../base/DType.ts"
import { elementCount, regionShape, type Shape } from "../base/Region.ts"
import type { TensorEngine } from "../service/TensorEngine.ts"
import type { Device } from "../tensor/Device.ts"
import {
  hasGlobal,
  isQuantized,
  layoutOf,
  type QuantizationRecipe,
  type QuantizedTensor,
  scaleShapeOf,
  scaleTypesOf,
  shapeOfValues
} from "../tensor/QuantizedTensor.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { makeGatherings } from "./Gathering.ts"
import { checkAligned, codeRegion, isAligned, scaleHull, wholeRegion } from "./QuantizedRegion.ts"
import type { QuantizeWork, Work } from "./QuantizeWork.ts"
import { plainRegion, type TransformError, type TransformOp } from "./ReshardTransform.ts"
import { layOutMoves } from "./ScaleLayouts.ts"

const defaultAccumulatorLimit = 2 ** 33

/** What the transfers of one tensor are gathered in. */
interface Accumulator {
  /** Receiver form: the whole tensor, wide. */
  readonly wide?: Tensor
  /** The scales in rows, where the destination has them otherwise. */
  readonly scales?: Tensor
}

/** What `begin`, `prepareRecv` and `finalizeRecv` do in either form. */
export const makeQuantizeReceives = (work: QuantizeWork) => {
  const { allocate, checked, copy, emptyQuantized, knownOf, options, partsOf, region, run, sent, wire } = work
  const isSender = options.side === "sender"
  const gatherings = makeGatherings<Accumulator>(options.accumulatorLimit ?? defaultAccumulatorLimit)
  /** Destinations of the update under way of which some region cuts a block. */
  const cut = new WeakSet<QuantizedTensor>()

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

  const begin = (receives: ReadonlyArray<TransformOp>): void => {
    for (const { tensor } of receives) if (isQuantized(tensor)) cut.delete(tensor)
    if (isSender) return
    for (const op of receives) {
      const { tensor } = op
      if (isQuantized(tensor) && !isDirect(tensor.recipe, op, shapeOfValues(tensor))) cut.add(tensor)
    }
  }

  return {
    begin,
    wide: { prepare: receiveWide, finish: finishWide },
    quantized: { prepare: receiveQuantized, finish: finishQuantized }
  }
}
