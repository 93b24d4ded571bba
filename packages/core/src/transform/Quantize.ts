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
import { globMatches } from "../layout/ShardingRules.ts"
import { TensorEngine } from "../service/TensorEngine.ts"
import {
  hasGlobal,
  mxfp8Recipe,
  type QuantizedTensor,
  type ScaleRule,
  shapeOfValues
} from "../tensor/QuantizedTensor.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { wholeRegion } from "./QuantizedRegion.ts"
import { makeQuantizeReceives } from "./QuantizeReceives.ts"
import { makeQuantizeSends } from "./QuantizeSends.ts"
import { type KnownMaxima, makeQuantizeWork, type QuantizeOptions } from "./QuantizeWork.ts"
import { fromTensorError, type ReshardTransform, type TransformOp } from "./ReshardTransform.ts"

/** The transform of these options; options left out have the defaults named there. */
export const quantize = (options: QuantizeOptions = {}): ReshardTransform => {
  const work = makeQuantizeWork(options)
  const { sent } = work
  const [sends, receives] = [makeQuantizeSends(work), makeQuantizeReceives(work)]
  const isSender = options.side === "sender"
  const patterns = options.parameters ?? ["*"]
  const what = options.recipe === undefined ? "by the destination's recipe" : `${sent.name}/${sent.rule}`
  return {
    name: `quantize ${what}, by the ${isSender ? "sender" : "receiver"}`,
    shouldTransform: (paramName) => patterns.some((pattern) => globMatches(pattern, paramName)),
    parts: isSender ? (hasGlobal(sent) ? 4 : 3) : 1,
    needsQuantized: !isSender,
    begin: receives.begin,
    prepareSend: isSender ? sends.quantized : sends.wide,
    prepareRecv: isSender ? receives.quantized.prepare : receives.wide.prepare,
    finalizeRecv: isSender ? receives.quantized.finish : receives.wide.finish
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
