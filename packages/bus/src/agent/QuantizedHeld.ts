// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors of a batch that one side holds in a quantized form: which codes and scales belong together, where the form fits, and
 * the transform that fills them.
 *
 * Invariant: whether a tensor is quantized on its way follows from what all ranks stated, so every rank finds the same.
 */
import { equalShapes, formatShape } from "@tensorferry/core/base/Region"
import type { MeshLayout } from "@tensorferry/core/layout/Placement"
import { localShard } from "@tensorferry/core/layout/ShardIntervals"
import {
  blockSizesOf,
  codeTypeOf,
  isQuantized,
  mxfp8Recipe,
  type QuantizationRecipe,
  type QuantizedTensor,
  quantizationRules,
  recipeId,
  type ScaleRule,
  scaleRules,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { isContiguous, type Tensor } from "@tensorferry/core/tensor/Tensor"
import { quantize } from "@tensorferry/core/transform/Quantize"
import { ownMaxima } from "@tensorferry/core/transform/QuantizeWork"
import type { ReshardTransform } from "@tensorferry/core/transform/ReshardTransform"
import { parseQuantize, recipeOf } from "@tensorferry/model/quantized/choice"
import * as Result from "effect/Result"
import { type BusError, busError } from "../BusError.ts"
import type { OpenTensor } from "./openTensor.ts"

/** A tensor of a batch as this rank holds it. */
export interface HeldTensor extends Omit<OpenTensor, "tensor"> {
  readonly pair: string
  readonly value: Tensor | QuantizedTensor
}

/** In which type values travel to and from codes. */
export const formWire = "bfloat16"

/** What names of scales end in, after the name of what they scale. */
const scaleEndings = ["_scale_inv", "_scale"] as const

const op = "RegisterTensors"

const refused = (batch: string, detail: string, remedy: string, paramName?: string) =>
  Result.fail(
    busError("UnsupportedTensor", {
      op,
      ...(paramName === undefined ? {} : { paramName }),
      detail: `Batch ${batch}: ${detail}`,
      remedy
    })
  )

/** `fp8-block[-RxC][:rule]`, `fp8-channel[:rule]`, `fp8-tensor[:rule]` or `mxfp8[:rule]`. */
export const parseForm = (batch: string, text: string): Result.Result<QuantizationRecipe, BusError> => {
  const invalid = (detail: string) =>
    Result.fail(
      busError("InvalidCommand", {
        op,
        detail: `Batch ${batch}: ${detail}`,
        remedy: "State fp8-block, fp8-block-64x64, fp8-channel, fp8-tensor or mxfp8, and a rule after a colon."
      })
    )
  const [name, rule = "rceil", ...rest] = text.slice(0, 80).split(":")
  if (name === "mxfp8") {
    return rest.length === 0 && (scaleRules as ReadonlyArray<string>).includes(rule)
      ? Result.succeed(mxfp8Recipe(rule as ScaleRule))
      : invalid(`mxfp8 has no rule "${rule}", only ${quantizationRules.mxfp8.join(", ")}.`)
  }
  const choice = parseQuantize(text.slice(0, 80))
  if (Result.isFailure(choice)) return invalid(choice.failure)
  return choice.success.form === "fp8"
    ? Result.succeed(recipeOf(choice.success))
    : invalid(`${choice.success.form} needs more than one rank knows of a weight.`)
}

/** What of codes and scales is not as the recipe has it, in words. */
const formFault = (recipe: QuantizationRecipe, codes: Tensor, scale: Tensor): string | undefined => {
  const shape = scaleShapeOf(recipe, codes.shape)
  if (shape === undefined || codes.shape.length < 2)
    return `${formatShape(codes.shape)} has no whole blocks of ${recipeId(recipe)}`
  if (!equalShapes(scale.shape, shape))
    return `its scales are ${formatShape(scale.shape)}, and ${recipeId(recipe)} has ${formatShape(shape)} of them`
  if (!scaleTypesOf(recipe).includes(scale.dtype))
    return `its scales are ${scale.dtype}, and those of ${recipeId(recipe)} are ${scaleTypesOf(recipe).join(" or ")}`
  return isContiguous(codes) && isContiguous(scale) ? undefined : "its codes or scales do not lie densely"
}

/** Joins codes and scales by their names. Without a recipe tensors are what they are. */
export const heldTensors = (
  batch: string,
  pairs: ReadonlyArray<string>,
  opened: ReadonlyArray<OpenTensor>,
  recipe: QuantizationRecipe | undefined
): Result.Result<ReadonlyArray<HeldTensor>, BusError> => {
  const plain = opened.map(({ tensor, ...rest }, at): HeldTensor => ({ ...rest, pair: pairs[at]!, value: tensor }))
  if (recipe === undefined) return Result.succeed(plain)
  const keyOf = (pair: string, name: string) => JSON.stringify([pair, name])
  const byName = new Map(plain.map((held) => [keyOf(held.pair, held.name ?? ""), held]))
  const scales = new Set<HeldTensor>()
  const held = new Map<HeldTensor, HeldTensor>()
  for (const one of plain) {
    const { pair, name } = one
    if (name === null) return refused(batch, "Codes and scales are told by names.", "Name every tensor of the batch.")
    const codes = one.value as Tensor
    if (codes.dtype !== codeTypeOf(recipe)) continue
    const scale = scaleEndings.map((ending) => byName.get(keyOf(pair, `${name}${ending}`))).find((found) => found)
    if (scale === undefined)
      return refused(
        batch,
        `${name} has codes, and no scales are registered with it.`,
        `Register ${scaleEndings.map((ending) => name + ending).join(" or ")} with it.`,
        name
      )
    const fault =
      JSON.stringify(scale.placements) === JSON.stringify(one.placements)
        ? formFault(recipe, codes, scale.value as Tensor)
        : "its codes and scales lie in different ways on the mesh"
    if (fault !== undefined)
      return refused(batch, `${name}: ${fault}.`, "State the form that the tensors have, or leave it out.", name)
    scales.add(scale)
    held.set(one, {
      ...one,
      value: { _tag: "QuantizedTensor", data: codes, scale: scale.value as Tensor, recipe }
    })
  }
  if (held.size === 0)
    return refused(
      batch,
      `no tensor has codes of ${recipeId(recipe)}, which are ${codeTypeOf(recipe)}.`,
      "Register the engine's own codes and scales, or leave the form out."
    )
  return Result.succeed(plain.flatMap((one) => (scales.has(one) ? [] : [held.get(one) ?? one])))
}

/** Why ranks cannot quantize their parts of a tensor by themselves, in words. */
export const cutFault = (
  { block }: Pick<QuantizationRecipe, "block">,
  layout: MeshLayout,
  shape: ReadonlyArray<number>
): string | undefined => {
  const sizes = blockSizesOf(block, shape.length)
  for (const [position, rank] of layout.mesh.ranks.entries()) {
    const shard = localShard(layout, shape, rank)
    if (Result.isFailure(shard)) return shard.failure.message
    for (const [dim, held] of shard.success.intervals.entries()) {
      const [length, size] = [shape[dim]!, sizes[dim]!]
      const isWhole = ([start, stop]: readonly [number, number]) =>
        size === 0 ? start === 0 && stop === length : start % size === 0 && (stop % size === 0 || stop === length)
      const odd = held.find((interval) => !isWhole(interval))
      if (odd !== undefined)
        return `place ${position} of its mesh has [${odd.join(", ")}) of dimension ${dim}, which parts a block of ${size === 0 ? "all" : size}`
    }
  }
  return undefined
}

/**
 * Why a rank of a system cannot quantize its tensors by themselves, in words: it does not see where others cut the whole. Blocks
 * that all ranks fill are never parted, since systems cut in equal parts.
 */
export const namedCutFault = (
  held: ReadonlyArray<HeldTensor>,
  ranks: number
): readonly [string, string] | undefined => {
  if (ranks === 1) return undefined
  for (const { name, value } of held) {
    if (!isQuantized(value)) continue
    const { recipe, data } = value
    const sizes = blockSizesOf(recipe.block, data.shape.length)
    const odd = sizes.findIndex((size, dim) => size === 0 || data.shape[dim]! % size !== 0)
    if (odd >= 0)
      return [
        name!,
        sizes[odd] === 0
          ? `a scale of ${recipeId(recipe)} may be that of more than one rank holds`
          : `dimension ${odd} of ${formatShape(data.shape)} is no whole number of blocks of ${sizes[odd]}, so that a cut may part one`
      ]
  }
  return undefined
}

/** Quantizes the parameters of these names where they arrive, and reads codes where they are sent. */
export const formTransform = (names: ReadonlySet<string>): ReshardTransform => ({
  ...quantize({ wireDtype: formWire, maxima: ownMaxima }),
  shouldTransform: (paramName) => names.has(paramName)
})
