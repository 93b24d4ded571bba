// SPDX-License-Identifier: Apache-2.0
/** Flags that say what becomes of a model's tensors on the way, and the model as such a conversion reads it. */
import { scaleRules } from "@tensorferry/core/tensor/QuantizedTensor"
import { type Conversion, castTypes, parseTransform, type TypeRule } from "@tensorferry/model/conversion"
import { readQuantizationHint } from "@tensorferry/model/inputs/ConfigFile"
import type { Model } from "@tensorferry/model/Model"
import { conversionNotes } from "@tensorferry/model/values/conversionNotes"
import { denseModel, dequantizedTypes } from "@tensorferry/model/values/denseModel"
import * as CliError from "effect/cli/CliError"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import { readLayoutFile } from "../model/LayoutFile.ts"
import { usage } from "./meshFlags.ts"

export interface ConversionFlags {
  readonly layout: Option.Option<string>
  readonly type: ReadonlyArray<TypeRule>
  readonly transform: Option.Option<string>
  readonly dtype: Option.Option<(typeof castTypes)[number]>
}

/** `PATTERN=DTYPE`, as often as there are exceptions. */
const typeRules = Flag.mapEffect(Flag.between(Flag.String("type"), 0, 256), (texts) =>
  Effect.forEach(texts, (text) => {
    const cut = text.lastIndexOf("=")
    const rule = { match: text.slice(0, cut), dtype: text.slice(cut + 1) }
    const known = [...castTypes, "keep"] as const
    return cut > 0 && known.some((one) => one === rule.dtype)
      ? Effect.succeed(rule as TypeRule)
      : Effect.fail(
          new CliError.InvalidValue({
            option: "type",
            value: text,
            expected: `PATTERN=DTYPE with one of ${known.join(", ")}, as in '*.A_log=bfloat16'`,
            kind: "flag"
          })
        )
  })
).pipe(
  Flag.withDescription(
    "Element type of the tensors whose names match, as 'lm_head.weight=float32', or keep (repeatable; the first match counts)"
  )
)

export const conversionConfig = {
  transform: Flag.String("transform").pipe(
    Flag.withDescription(
      "Quantize matrices on the way: mxfp8[:ocp_floor|rceil|rceil_te][:sender|receiver]; data under its name, scales under NAME_scale"
    ),
    Flag.optional
  ),
  dtype: Flag.Literals("dtype", castTypes).pipe(
    Flag.withDescription(
      "Element type to which floats are converted, quantized weights by their values; scales, router biases and the like keep their own"
    ),
    Flag.optional
  ),
  type: typeRules
}

/** What is asked for on the way; undefined where nothing is. */
export const chooseConversion = Effect.fnUntraced(function* (flags: ConversionFlags) {
  const stated = Option.isNone(flags.layout) ? undefined : (yield* readLayoutFile(flags.layout.value)).types
  const types = [...flags.type, ...(stated ?? [])]
  if (Option.isNone(flags.transform) && Option.isNone(flags.dtype) && types.length === 0) return undefined
  const parsed = Option.isNone(flags.transform) ? Result.succeed(null) : parseTransform(flags.transform.value)
  if (Result.isFailure(parsed)) {
    const rules = scaleRules.join("|")
    return yield* usage(parsed.failure, `Say mxfp8[:${rules}][:sender|receiver].`)
  }
  return {
    dtype: Option.getOrNull(flags.dtype),
    transform: parsed.success,
    ...(types.length === 0 ? {} : { types })
  } satisfies Conversion
})

/** The model as the conversion reads it, and what it does to the tensors, in words. */
export const convertModel = Effect.fnUntraced(function* (model: Model, conversion: Conversion | undefined) {
  if (conversion === undefined) return { model, notes: [] }
  const hint = yield* readQuantizationHint(model)
  const dequantized = yield* dequantizedTypes(model.tensors, conversion, hint)
  return {
    model: yield* denseModel(model, conversion, hint),
    notes: conversionNotes(model.tensors, conversion, dequantized)
  }
})
