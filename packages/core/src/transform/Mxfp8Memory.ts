// SPDX-License-Identifier: Apache-2.0
/**
 * What the mxfp8 transform allocates for one rank's plan, for estimates made before anything runs. Pure.
 */
import { byteLengthOf, type DType } from "../base/DType.ts"
import { elementCount, type Region, regionShape, type Shape } from "../base/Region.ts"
import type { ReshardPlan } from "../ir/ReshardPlan.ts"
import { globMatches } from "../layout/ShardingRules.ts"
import { mxBlockSize, type ScaleLayout } from "../tensor/QuantizedTensor.ts"
import type { Mxfp8Options } from "./Mxfp8.ts"

/** What the plan does not say about a rank's destinations. */
export interface Mxfp8Holdings {
  /** How the rank holds its destination of this name; undefined where it is not quantized. Row-major by default. */
  readonly destinationLayout?: (paramName: string) => ScaleLayout | undefined
}

const elementsOf = (region: Region): number => elementCount(regionShape(region))
const quantizedBytes = (elements: number): number => elements + Math.ceil(elements / mxBlockSize)

/** Sources are taken as not quantized. */
export const mxfp8BufferBytes =
  (options: Mxfp8Options = {}, holdings: Mxfp8Holdings = {}) =>
  (plan: ReshardPlan): number => {
    const wire: DType = options.wireDtype ?? "bfloat16"
    const patterns = options.parameters ?? ["*"]
    const isChosen = (name: string) => patterns.some((pattern) => globMatches(pattern, name))
    const layoutOf = holdings.destinationLayout ?? ((): ScaleLayout => "rowMajor")
    const isSender = options.side === "sender"
    const held = new Map(plan.sourceTensors.map(({ name, dtype }) => [name, dtype]))
    const shapes = new Map<string, Shape>(plan.destinationTensors.map(({ name, shape }) => [name, shape]))
    let bytes = 0
    for (const { paramName, mySlice } of plan.sendOps) {
      if (!isChosen(paramName)) continue
      if (isSender) bytes += quantizedBytes(elementsOf(mySlice))
      else if (held.get(paramName) !== wire) bytes += byteLengthOf(wire, elementsOf(mySlice))
    }
    const gathered = new Set<string>()
    for (const { paramName, mySlice } of plan.recvOps) {
      if (!isChosen(paramName)) continue
      const layout = layoutOf(paramName)
      const elements = elementsOf(mySlice)
      if (layout === "swizzled") {
        if (gathered.has(paramName)) continue
        gathered.add(paramName)
        const whole = elementCount(shapes.get(paramName) ?? regionShape(mySlice))
        bytes += whole / mxBlockSize + (isSender ? 0 : byteLengthOf(wire, whole))
      } else if (layout === undefined) bytes += isSender ? quantizedBytes(elements) : byteLengthOf(wire, elements)
      else if (!isSender) bytes += byteLengthOf(wire, elements)
    }
    return bytes
  }
