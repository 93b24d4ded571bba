// SPDX-License-Identifier: Apache-2.0
/** Flags that say what becomes of a model's tensors on the way, and the model as such a conversion reads it. */
import { scaleRules } from "@tensorferry/core/tensor/QuantizedTensor"
import { type Conversion, castTypes, parseTransform, type TypeRule } from "@tensorferry/model/conversion"
import { readQuantizationHint } from "@tensorferry/model/inputs/ConfigFile"
import type { Model } from "@tensorferry/model/Model"
import { chooseQuantized, planQuantized } from "@tensorferry/model/quantized/applyQuantize"
import { parseQuantize, quantizeForms } from "@tensorferry/model/quantized/choice"
import { quantizedNotes } from "@tensorferry/model/quantized/quantizedNotes"
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
  readonly preset: Option.Option<string>
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
      "Quantize on the way: fp8-block[-RxC], fp8-channel, fp8-tensor, nvfp4, mxfp4 (projections, as engines read them) or mxfp8[:sender|receiver] (all matrices; scales under NAME_scale); a rule follows a colon"
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
  const fromLayout = Option.isNone(flags.layout) ? undefined : (yield* readLayoutFile(flags.layout.value)).types
  const types = [...flags.type, ...(fromLayout ?? [])]
  if (Option.isNone(flags.transform) && Option.isNone(flags.dtype) && types.length === 0) return undefined
  const stated = { dtype: Option.getOrNull(flags.dtype), ...(types.length === 0 ? {} : { types }) }
  const text = Option.getOrUndefined(flags.transform)
  if (text !== undefined && !text.startsWith("mxfp8")) {
    const parsed = parseQuantize(text)
    if (Result.isFailure(parsed)) {
      return yield* usage(
        parsed.failure,
        `Say mxfp8 or one of ${quantizeForms.join(", ")}, and a rule behind a colon: docs/transforms.md lists them.`
      )
    }
    const preset = Option.getOrUndefined(flags.preset)
    return {
      ...stated,
      transform: null,
      quantize: { ...parsed.success, ...(preset === undefined ? {} : { preset }) }
    } satisfies Conversion
  }
  const parsed = text === undefined ? Result.succeed(null) : parseTransform(text)
  if (Result.isFailure(parsed)) {
    const rules = scaleRules.join("|")
    return yield* usage(parsed.failure, `Say mxfp8[:${rules}][:sender|receiver].`)
  }
  return { ...stated, transform: parsed.success } satisfies Conversion
})

/** The model as the conversion reads it, and what it does to the tensors, in words. */
export const convertModel = Effect.fnUntraced(function* (model: Model, conversion: Conversion | undefined) {
  if (conversion === undefined) return { model, notes: [] }
  const hint = yield* readQuantizationHint(model)
  const dequantized = yield* dequantizedTypes(model.tensors, conversion, hint)
  const dense = yield* denseModel(model, conversion, hint)
  const quantized = yield* chooseQuantized(dense, conversion)
  return {
    model: yield* planQuantized(dense, quantized),
    notes: [
      ...conversionNotes(
        model.tensors,
        conversion,
        dequantized,
        (quantized?.selection.weights ?? []).map(({ source }) => source.name)
      ),
      ...quantizedNotes(quantized?.selection.weights ?? [])
    ]
  }
})
