// SPDX-License-Identifier: Apache-2.0
/** What is said to people of weights that are quantized. */
import { elementCount } from "@tensorferry/core/base/Region"
import { type ConversionNote, counting } from "../values/conversionNotes.ts"
import type { QuantizedWeight } from "./selection.ts"

/** Notes on weights that are quantized, with the rule whose bits they get. */
export const quantizedNotes = (weights: ReadonlyArray<QuantizedWeight>): ReadonlyArray<ConversionNote> => {
  const { add, notes } = counting()
  for (const { recipe, source } of weights) {
    const size = recipe.name === "fp8" ? ` ${recipe.block.map((one) => one || "all").join("x")}` : ""
    const to = `${recipe.name}${size} by ${recipe.rule}`
    add({ what: "quantized", from: source.dtype, to, isLossy: true, example: source.name }, elementCount(source.shape))
  }
  return [...notes.values()]
}
