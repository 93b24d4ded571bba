// SPDX-License-Identifier: Apache-2.0
/**
 * What the quantize transform allocates for one rank's plan, for estimates made before anything runs. Pure.
 */
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, type Region, regionShape, type Shape } from "@tensorferry/core/base/Region"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import { globMatches } from "@tensorferry/core/layout/ShardingRules"
import {
  codesPerByte,
  layoutOf,
  mxfp8Recipe,
  type QuantizationRecipe,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { isAligned } from "@tensorferry/core/transform/QuantizedRegion"
import type { QuantizeOptions } from "@tensorferry/core/transform/QuantizeWork"

/** What the plan does not say about a rank's destinations. */
export interface QuantizeHoldings {
  /** The recipe of the rank's destination of this name; undefined where it is not quantized. That of the options by default. */
  readonly destinationRecipe?: (paramName: string) => QuantizationRecipe | undefined
}

const elementsOf = (region: Region): number => elementCount(regionShape(region))

const scaleBytes = (recipe: QuantizationRecipe, shape: Shape): number =>
  byteLengthOf(scaleTypesOf(recipe)[0]!, elementCount(scaleShapeOf(recipe, shape) ?? [0]))

const quantizedBytes = (recipe: QuantizationRecipe, shape: Shape): number =>
  Math.ceil(elementCount(shape) / codesPerByte(recipe)) + scaleBytes(recipe, shape)

/** Bytes of a rank's destinations where those of these names, patterns with `*`, are stored by the recipe. */
export const quantizedDestinationBytes =
  (recipe: QuantizationRecipe, parameters: ReadonlyArray<string>) =>
  ({ destinationTensors }: ReshardPlan): number =>
    destinationTensors.reduce((bytes, { name, dtype, shape }) => {
      const isQuantized = parameters.some((pattern) => globMatches(pattern, name))
      return bytes + (isQuantized ? quantizedBytes(recipe, shape) : byteLengthOf(dtype, elementCount(shape)))
    }, 0)

/** Sources are taken as not quantized, and maxima as not given. */
export const quantizeBufferBytes =
  (options: QuantizeOptions = {}, holdings: QuantizeHoldings = {}) =>
  (plan: ReshardPlan): number => {
    const wire: DType = options.wireDtype ?? "bfloat16"
    const patterns = options.parameters ?? ["*"]
    const isChosen = ({ paramName }: { readonly paramName: string }) =>
      patterns.some((pattern) => globMatches(pattern, paramName))
    const sent = options.recipe ?? mxfp8Recipe()
    const recipeOf = holdings.destinationRecipe ?? (() => sent)
    const isSender = options.side === "sender"
    const held = new Map(plan.sourceTensors.map(({ name, dtype }) => [name, dtype]))
    const shapes = new Map<string, Shape>(plan.destinationTensors.map(({ name, shape }) => [name, shape]))
    let bytes = 0
    for (const { paramName, mySlice } of plan.sendOps.filter(isChosen)) {
      if (isSender) bytes += quantizedBytes(sent, regionShape(mySlice))
      else if (held.get(paramName) !== wire) bytes += byteLengthOf(wire, elementsOf(mySlice))
    }
    const receives = plan.recvOps.filter(isChosen)
    const cut = new Set<string>()
    for (const { paramName, mySlice } of isSender ? [] : receives) {
      const recipe = recipeOf(paramName)
      if (recipe !== undefined && !isAligned(recipe, mySlice, shapes.get(paramName) ?? regionShape(mySlice)))
        cut.add(paramName)
    }
    const gathered = new Set<string>()
    for (const { paramName, mySlice } of receives) {
      const recipe = recipeOf(paramName)
      const isLaidOut = recipe !== undefined && layoutOf(recipe) !== "rowMajor"
      if (recipe === undefined) {
        bytes += isSender ? quantizedBytes(sent, regionShape(mySlice)) : byteLengthOf(wire, elementsOf(mySlice))
      } else if (isLaidOut || cut.has(paramName)) {
        if (gathered.has(paramName)) continue
        gathered.add(paramName)
        const whole = shapes.get(paramName) ?? regionShape(mySlice)
        bytes += (isLaidOut ? scaleBytes(recipe, whole) : 0) + (isSender ? 0 : byteLengthOf(wire, elementCount(whole)))
      } else if (!isSender) bytes += byteLengthOf(wire, elementsOf(mySlice))
    }
    return bytes
  }
