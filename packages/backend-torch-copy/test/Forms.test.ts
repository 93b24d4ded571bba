// SPDX-License-Identifier: Apache-2.0
/**
 * Every quantized form has the recorded bits of every rule, and those of the reference engine over sizes that take more than
 * one thread and two passes. Run again with narrower kernels.
 */
import { assert, describe, it } from "@effect/vitest"
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import {
  codeShapeOf,
  codeTypeOf,
  hasGlobal,
  type QuantizationRecipe,
  type QuantizedTensor,
  quantizationRecipe,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { checkEngineForms, formSets } from "@tensorferry/golden/engineForms"
import { readGolden } from "@tensorferry/golden/readGolden"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import { makeEngine, makeRandom } from "./support.ts"

const allocate = Effect.fnUntraced(function* (engine: TensorEngineShape, recipe: QuantizationRecipe, shape: Shape) {
  const data = yield* engine.allocate(codeTypeOf(recipe), codeShapeOf(recipe, shape))
  const scale = yield* engine.allocate(scaleTypesOf(recipe)[0]!, scaleShapeOf(recipe, shape)!)
  const global = hasGlobal(recipe) ? { global: yield* engine.allocate("float32", [1]) } : {}
  return { _tag: "QuantizedTensor", data, scale, ...global, recipe } satisfies QuantizedTensor
})

describe("quantized forms", () => {
  for (const [set, form] of Object.entries(formSets)) {
    it.live(`${form} of ${set}: recorded results, bit by bit`, () =>
      Effect.gen(function* () {
        const { engine } = yield* makeEngine()
        const verdicts = yield* checkEngineForms(engine, set, readGolden(set))
        assert.isAbove(verdicts.length, 100)
        assert.deepStrictEqual(
          verdicts.filter(({ fault }) => fault !== undefined),
          []
        )
      })
    )
  }

  const large: ReadonlyArray<readonly [QuantizationRecipe, DType, Shape]> = [
    [quantizationRecipe("fp8", "deepgemm_fp32"), "bfloat16", [640, 2048]],
    [quantizationRecipe("fp8", "compressed_tensors", "rowMajor", [0, 0]), "bfloat16", [3, 512, 1100]],
    [quantizationRecipe("fp8", "te_fp32", "rowMajor", [1, 0]), "float16", [300, 4100]],
    [quantizationRecipe("fp8", "deepseek_v3_fp32", "rowMajor", [0, 1]), "float32", [1300, 700]],
    [quantizationRecipe("nvfp4", "modelopt"), "bfloat16", [1300, 1024]],
    [quantizationRecipe("nvfp4", "te_16x16"), "float16", [520, 2080]],
    [quantizationRecipe("nvfp4", "te_4over6"), "bfloat16", [300, 2080]],
    [quantizationRecipe("mxfp4", "triton_up"), "float32", [700, 1056]],
    [quantizationRecipe("mxfp8", "modelopt"), "bfloat16", [1300, 1024]]
  ]
  for (const [recipe, dtype, shape] of large) {
    it.live(`${recipe.name} by ${recipe.rule} of ${dtype}[${shape}]: as the reference engine`, () =>
      Effect.gen(function* () {
        const { engine } = yield* makeEngine({ threads: 2 })
        const reference = ReferenceEngine.make()
        const random = makeRandom(shape.length + shape[0]!)
        const [mine, theirs] = [yield* engine.allocate(dtype, shape), yield* reference.allocate(dtype, shape)]
        const bytes = theirs.storage.bytes!
        const size = bitsOf(dtype) / 8
        // Small magnitudes of any mantissa, and no NaN: exponents of float32 have one more bit in the upper byte.
        for (let at = 0; at < bytes.length; at++) {
          bytes[at] = at % size === size - 1 ? (random.below(2) << 7) | (0x38 + random.below(4)) : random.below(256)
        }
        mine.storage.bytes!.set(bytes)
        const [to, wanted] = [yield* allocate(engine, recipe, shape), yield* allocate(reference, recipe, shape)]
        yield* engine.quantize(mine, to)
        yield* reference.quantize(theirs, wanted)
        for (const part of ["data", "scale", "global"] as const) {
          const [found, expected] = [to[part]?.storage.bytes, wanted[part]?.storage.bytes]
          assert.isTrue(Buffer.compare(found ?? new Uint8Array(), expected ?? new Uint8Array()) === 0, part)
        }
        const [read, values] = [yield* engine.allocate(dtype, shape), yield* reference.allocate(dtype, shape)]
        yield* engine.dequantize(to, read)
        yield* reference.dequantize(wanted, values)
        assert.isTrue(Buffer.compare(read.storage.bytes!, values.storage.bytes!) === 0, "values")
      })
    )
  }
})
