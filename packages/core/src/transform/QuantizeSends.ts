// SPDX-License-Identifier: Apache-2.0
/** The sending end of a quantizing transform: wide values, or codes with their scales. */
import * as Effect from "effect/Effect"
import { regionShape } from "../base/Region.ts"
import { isQuantized, scaleShapeOf, shapeOfValues } from "../tensor/QuantizedTensor.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { blockHull, checkAligned, quantizedRegion } from "./QuantizedRegion.ts"
import type { QuantizeWork, Work } from "./QuantizeWork.ts"
import { plainRegion, type TransformOp } from "./ReshardTransform.ts"

/** What `prepareSend` does in either form. */
export const makeQuantizeSends = (work: QuantizeWork) => {
  const { allocate, checked, copy, emptyQuantized, inRows, knownOf, noBlocks, partsOf, region, run, sent, wire } = work

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

  return { wide: sendWide, quantized: sendQuantized }
}
