// SPDX-License-Identifier: Apache-2.0
/**
 * Compares what an engine makes of recorded matrices, and of the codes that it made, with what the reference of each rule
 * made of them: codes, scales and global scales, bit by bit. Of a NaN only that it is one is compared.
 *
 * What a reference refuses, or leaves undefined, is left out: an engine has bytes for that, which nobody recorded.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { TensorEngine, type TensorEngineShape, type TensorError } from "@tensorferry/core/service/TensorEngine"
import {
  codeShapeOf,
  codesPerByte,
  codeTypeOf,
  hasGlobal,
  type QuantizationRecipe,
  type QuantizedForm,
  type QuantizedTensor,
  quantizationRecipe,
  quantizationRules,
  scaleShapeOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { toFloats } from "@tensorferry/model/values/codes"
import type { CaseFailure } from "@tensorferry/testing/conformance/Case"
import { gatherElements, loadBytes, place, setElements } from "@tensorferry/testing/conformance/memory"
import * as Effect from "effect/Effect"
import { faultOf, inMemory, type RecordedCase, resolver, type Verdict } from "./quantizedValues.ts"
import { byteFault, e4m3Fault, floatFault } from "./quantizers.ts"

/** The recorded sets, and the form that each is about. */
export const formSets: Readonly<Record<string, QuantizedForm>> = {
  fp8_block: "fp8",
  nvfp4: "nvfp4",
  mxfp4: "mxfp4",
  mxfp8_ct: "mxfp8"
}

interface Made {
  readonly data: Uint8Array
  readonly scales: Uint8Array
  readonly global: Uint8Array | undefined
  readonly values: Float32Array | undefined
}

const convert = Effect.fnUntraced(function* (
  recipe: QuantizationRecipe,
  { dtype, input, shape, ...recorded }: RecordedCase,
  scaleType: DType,
  form: "dense" | "padded"
) {
  const engine = yield* TensorEngine
  const source = yield* place(dtype, shape, form)
  yield* setElements(source, inMemory(input, dtype))
  const data = yield* place(codeTypeOf(recipe), codeShapeOf(recipe, shape), form)
  const scale = yield* place(scaleType, scaleShapeOf(recipe, shape)!, form)
  const global = hasGlobal(recipe) ? yield* place("float32", [1]) : undefined
  // Scales in the type of the source are read into that type.
  const values = yield* place(scaleType === "bfloat16" || scaleType === "float16" ? dtype : "float32", shape, form)
  const quantized: QuantizedTensor = {
    _tag: "QuantizedTensor",
    data: data.tensor,
    scale: scale.tensor,
    ...(global === undefined ? {} : { global: global.tensor }),
    recipe
  }
  const amax = (recorded as { readonly given_amax?: string }).given_amax
  if (amax === undefined) {
    yield* engine.quantize(source.tensor, quantized)
  } else {
    const maxima = yield* place("float32", [1])
    yield* setElements(maxima, inMemory(amax, "float32"))
    yield* engine.quantize(source.tensor, quantized, { maxima: maxima.tensor })
  }
  yield* engine.dequantize(quantized, values.tensor)
  const elementsOf = (placed: typeof data) =>
    Effect.map(loadBytes(placed.whole), (whole) => gatherElements(placed.tensor, whole))
  return {
    data: yield* elementsOf(data),
    scales: yield* elementsOf(scale),
    global: global === undefined ? undefined : yield* elementsOf(global),
    values: values.tensor.dtype === "float32" ? toFloats("float32", yield* elementsOf(values)) : undefined
  } satisfies Made
})

/** Bytes of blocks that the reference leaves undefined become the recorded ones. */
const patch = (bytes: Uint8Array, recorded: unknown, blocks: ReadonlyArray<number>, width: number): Uint8Array => {
  const patched = bytes.slice()
  const wanted = Buffer.from(String(recorded), "hex")
  for (const block of blocks) patched.set(wanted.subarray(block * width, (block + 1) * width), block * width)
  return patched
}

const verdictOf = (
  recipe: QuantizationRecipe,
  made: Made,
  scaleType: DType,
  get: (field: string) => unknown
): string | undefined => {
  const undefinedBlocks = get("undefined_blocks")
  const blocks = Array.isArray(undefinedBlocks) ? (undefinedBlocks as ReadonlyArray<number>) : []
  const data = patch(made.data, get("data"), blocks, 32 / codesPerByte(recipe))
  const scaleFault = () =>
    recipe.name === "fp8"
      ? floatFault("scale", toFloats(scaleType, made.scales), get("scale"), scaleType)
      : (recipe.name === "nvfp4" ? e4m3Fault : byteFault)(
          "scale",
          patch(made.scales, get("scale"), blocks, 1),
          get("scale")
        )
  return (
    (made.global === undefined
      ? undefined
      : floatFault("global scale", toFloats("float32", made.global), get("global"), "float32")) ??
    scaleFault() ??
    (codesPerByte(recipe) === 1 ? e4m3Fault : byteFault)("code", data, get("data")) ??
    // Readers of Triton make zero or the largest number of the scales at both ends.
    (made.values === undefined || blocks.length > 0 || recipe.rule.startsWith("triton")
      ? undefined
      : faultOf(made.values, {}, get))
  )
}

/** One verdict per case, rule and form of memory. `set` is one of `formSets`, `data` its recording. */
export const checkEngineForms = (
  engine: TensorEngineShape,
  set: string,
  data: unknown
): Effect.Effect<ReadonlyArray<Verdict>, TensorError | CaseFailure> =>
  Effect.gen(function* () {
    const name = formSets[set]!
    const rules: ReadonlyArray<string> = quantizationRules[name]
    const verdicts: Array<Verdict> = []
    for (const recorded of (data as { readonly cases: ReadonlyArray<RecordedCase> }).cases) {
      for (const rule of Object.keys(recorded.outputs)) {
        const get = resolver(recorded.outputs, rule)
        const isLeftOut = ["error", "deq_error", "passthrough", "undefined"].some((field) => get(field) !== undefined)
        if (isLeftOut || !rules.includes(rule)) continue
        const recipe = quantizationRecipe(name, rule, "rowMajor", recorded.block)
        // Engines have whole blocks only in some forms.
        if (scaleShapeOf(recipe, recorded.shape) === undefined) continue
        const scaleTypes = { fp8: get("scale_dtype") ?? "float32", nvfp4: "float8_e4m3fn" } as const
        const scaleType = (name === "fp8" || name === "nvfp4" ? scaleTypes[name] : "float8_e8m0fnu") as DType
        for (const form of ["dense", "padded"] as const) {
          const made = yield* Effect.scoped(convert(recipe, recorded, scaleType, form))
          const fault = verdictOf(recipe, made, scaleType, get)
          verdicts.push({ name: `${recorded.id} ${recorded.title}, ${rule}, ${form}`, fault })
        }
      }
    }
    return verdicts
  }).pipe(Effect.provideService(TensorEngine, engine))
