// SPDX-License-Identifier: Apache-2.0
/**
 * A model whose quantized weights are read as the values that they stand for, in the type that a conversion asks for.
 *
 * Invariant: codes are never cast. A weight is dequantized by its form and its scales are gone, or it stays as it is with
 * all that belongs to it, or the conversion is refused by name.
 */
import type { DType } from "@tensorferry/core/base/DType"
import * as Effect from "effect/Effect"
import { type Conversion, typeRuleOf } from "../conversion.ts"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import type { Model } from "../Model.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { type WrittenType, writeFloats, writtenTypes } from "./codes.ts"
import { readValues } from "./readValues.ts"
import { findWeights, type QuantizationHint, type Weight } from "./ValueForm.ts"

const isStored = ({ form }: Weight): boolean => form.kind === "plain" || form.kind === "opaque"

const isWritten = (dtype: DType | "keep"): dtype is WrittenType => writtenTypes.some((one) => one === dtype)

/** At most five names, and how many there are. */
const someOf = (weights: ReadonlyArray<Weight>): string => {
  const names = weights.slice(0, 5).map(({ name }) => name)
  return weights.length > 5 ? `${names.join(", ")} and ${weights.length - 5} more` : names.join(", ")
}

const refuse = (weights: ReadonlyArray<Weight>, hint: QuantizationHint, detail: string, remedy: string): ModelError =>
  modelError("Unsupported", {
    paramName: weights[0]!.name,
    detail: `${detail}: ${someOf(weights)} (${weights[0]!.text}, quant_method ${hint.method ?? "not stated"}).`,
    remedy
  })

/** What becomes of each quantized weight: the type of its values, or undefined where it stays as it is. */
export const dequantizedTypes = (
  tensors: ReadonlyArray<ModelTensor>,
  conversion: Conversion,
  hint: QuantizationHint
): Effect.Effect<ReadonlyMap<Weight, WrittenType>, ModelError> =>
  Effect.gen(function* () {
    const quantized = findWeights(tensors, hint).filter((weight) => !isStored(weight))
    const targets = new Map<Weight, WrittenType>()
    const refused: { readonly [kind: string]: Array<Weight> } = { unreadable: [], narrow: [], mixed: [] }
    for (const weight of quantized) {
      const stated = typeRuleOf(conversion, weight.name)
      const target = stated ?? conversion.dtype
      if (stated === "keep") continue
      if (target === null) {
        if (conversion.transform !== null) refused.mixed!.push(weight)
      } else if (!isWritten(target)) refused.narrow!.push(weight)
      else if (weight.form.kind === "unreadable") refused.unreadable!.push(weight)
      else targets.set(weight, target)
    }
    const keep = "or state --type 'PATTERN=keep' for them"
    if (refused.unreadable!.length > 0) {
      const detail = "The values of these weights cannot be read"
      return yield* refuse(
        refused.unreadable!,
        hint,
        detail,
        `Dequantize them with the tool that quantized them, ${keep}.`
      )
    }
    if (refused.narrow!.length > 0) {
      const detail = "These weights are quantized already, and their codes are not cast"
      return yield* refuse(refused.narrow!, hint, detail, `Choose one of ${writtenTypes.join(", ")}, ${keep}.`)
    }
    if (refused.mixed!.length > 0) {
      const detail = "These weights are quantized already, and two forms would be mixed"
      return yield* refuse(
        refused.mixed!,
        hint,
        detail,
        `State --dtype bfloat16 too: they are dequantized first. Or ${keep.slice(3)}.`
      )
    }
    return targets
  })

/** The model as a conversion reads it; the same model where nothing in it is to be dequantized. */
export const denseModel = (
  model: Model,
  conversion: Conversion | undefined,
  hint: QuantizationHint
): Effect.Effect<Model, ModelError> =>
  Effect.gen(function* () {
    if (conversion === undefined) return model
    const targets = yield* dequantizedTypes(model.tensors, conversion, hint)
    if (targets.size === 0) return model
    const byName = new Map([...targets].map(([weight, dtype]) => [weight.name, { weight, dtype }]))
    const gone = new Map([...targets.keys()].flatMap((weight) => weight.parts.map((part) => [part, weight] as const)))
    return {
      ...model,
      tensors: model.tensors.flatMap((tensor) => {
        const weight = gone.get(tensor.name)
        if (weight === undefined) return [tensor]
        // The weight stands where the first of its tensors stood.
        if (weight.parts[0] !== tensor.name) return []
        return [{ name: weight.name, dtype: targets.get(weight)!, shape: weight.shape }]
      }),
      digestOf: () => undefined,
      readRegion: (name, region, into) => {
        const found = byName.get(name)
        return found === undefined
          ? model.readRegion(name, region, into)
          : Effect.map(readValues(model, found.weight, region), (values) => writeFloats(found.dtype, values, into))
      }
    }
  })
