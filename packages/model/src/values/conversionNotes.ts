// SPDX-License-Identifier: Apache-2.0
/** What a conversion does to a model's tensors, counted for people: what is dequantized, what loses bits, what is kept. */
import { kindOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import { type Conversion, castType, hasNarrowMatrices, isQuantized, keepsType, typeRuleOf } from "../conversion.ts"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import type { WrittenType } from "./codes.ts"
import { isLossy } from "./lossyCasts.ts"
import type { Weight } from "./ValueForm.ts"

/** Tensors that share a fate. */
export interface ConversionNote {
  readonly what: "dequantized" | "cast" | "kept" | "quantized"
  readonly from: string
  readonly to: string
  /** Whether values may be lost. */
  readonly isLossy: boolean
  readonly tensors: number
  readonly elements: number
  /** One of them. */
  readonly example: string
}

/** Notes that share a key become one. */
export const counting = () => {
  const notes = new Map<string, ConversionNote>()
  const add = (note: Omit<ConversionNote, "tensors" | "elements">, elements: number): void => {
    const key = `${note.what} ${note.from} ${note.to}`
    const before = notes.get(key)
    notes.set(key, {
      ...note,
      example: before?.example ?? note.example,
      tensors: (before?.tensors ?? 0) + 1,
      elements: (before?.elements ?? 0) + elements
    })
  }
  return { add, notes }
}

/** Notes on a model before the conversion; `dequantized` are weights whose values are taken, `others` have notes of their own. */
export const conversionNotes = (
  tensors: ReadonlyArray<ModelTensor>,
  conversion: Conversion,
  dequantized: ReadonlyMap<Weight, WrittenType>,
  others: ReadonlyArray<string> = []
): ReadonlyArray<ConversionNote> => {
  const { add, notes } = counting()
  const parts = new Set([...[...dequantized.keys()].flatMap((weight) => weight.parts), ...others])
  for (const [{ name, shape, text }, to] of dequantized) {
    add({ what: "dequantized", from: text, to, isLossy: to !== "float32", example: name }, elementCount(shape))
  }
  const isMixed = hasNarrowMatrices(tensors)
  for (const tensor of tensors) {
    if (parts.has(tensor.name) || isQuantized(conversion, tensor)) continue
    const { dtype, name, shape } = tensor
    const to = castType(conversion, tensor, isMixed)
    if (to !== dtype) {
      add({ what: "cast", from: dtype, to, isLossy: isLossy(dtype, to), example: name }, elementCount(shape))
    } else if (conversion.dtype !== null && conversion.dtype !== dtype && kindOf(dtype) === "float") {
      if (keepsType(tensor, isMixed) || typeRuleOf(conversion, name) === "keep") {
        add({ what: "kept", from: dtype, to: dtype, isLossy: false, example: name }, elementCount(shape))
      }
    }
  }
  return [...notes.values()]
}

const counted = (count: number, what: string): string => `${count} ${what}${count === 1 ? "" : "s"}`

/** One line for people. */
export const describeNote = ({ elements, example, from, isLossy, tensors, to, what }: ConversionNote): string => {
  const size = `${counted(tensors, "tensor")}, ${counted(elements, "element")}, as ${example}`
  switch (what) {
    case "kept":
      return `kept: ${from} (${size}); --type 'PATTERN=DTYPE' casts them too`
    case "quantized":
      return `quantized: ${from} → ${to} (${size})`
    case "dequantized":
      return `dequantized: ${from} → ${to} (${size})`
    default:
      return `${isLossy ? "lossy cast" : "cast"}: ${from} → ${to} (${size})`
  }
}
