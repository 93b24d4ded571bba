// SPDX-License-Identifier: Apache-2.0
/**
 * Quantized bytes are what the recipe says, whoever made them: what the device quantized is read by the host's backend and
 * the other way round, and both make the same bytes of the same values.
 */

import { assert, describe, it } from "@effect/vitest"
import { descriptor as hostBackend } from "@tensorferry/backend-torch-copy"
import type { DType } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import {
  type BlockSize,
  codeShapeOf,
  codeTypeOf,
  hasGlobal,
  mxfp8Recipe,
  type QuantizedTensor,
  quantizationRecipe,
  quantizationRules,
  quantizedForms,
  recipeId,
  type ScaleRule,
  scaleRules,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { engineOptions as testOptions } from "@tensorferry/simulators/gpuEngine"
import { makeRandom } from "@tensorferry/testing/transfers/randomTransfers"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { afterEach, beforeEach } from "vitest"
import * as DeviceEngine from "../src/TensorEngine.ts"

const engineOf = <E, R>(layer: Layer.Layer<TensorEngine, E, R>) =>
  Effect.map(Layer.build(layer), Context.get(TensorEngine))

/** Tiles, also of more than a thread holds at once; a row's and the tensor's; one that no tile path takes. */
const fp8Blocks: ReadonlyArray<BlockSize> = [
  [128, 128],
  [64, 256],
  [1, 128],
  [1, 0],
  [0, 0],
  [16, 8]
]

const poisoned = (engine: TensorEngineShape, dtype: DType, shape: Shape) =>
  Effect.tap(engine.allocate(dtype, shape), (tensor) => engine.fill(tensor, 0xd7))

const quantizedOn = Effect.fnUntraced(function* (engine: TensorEngineShape, shape: Shape, rule: ScaleRule) {
  const data = yield* poisoned(engine, "float8_e4m3fn", shape)
  const scale = yield* poisoned(engine, "float8_e8m0fnu", scaleShapeOf(mxfp8Recipe(), shape)!)
  return { _tag: "QuantizedTensor", data, scale, recipe: mxfp8Recipe(rule) } satisfies QuantizedTensor
})

/** The bytes of a dense tensor, wherever it is. */
const bytesOf = Effect.fnUntraced(function* (engine: TensorEngineShape, { dtype, shape, ...tensor }: Tensor) {
  const bytes = new Uint8Array(tensor.storage.byteLength)
  const dst = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), dtype, shape))
  yield* engine.copy([{ dst, src: { dtype, shape, ...tensor } }])
  return bytes
})

const write = Effect.fnUntraced(function* (engine: TensorEngineShape, to: Tensor, bytes: Uint8Array) {
  const src = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), to.dtype, to.shape))
  yield* engine.copy([{ dst: to, src }])
})

/** Quantized by one engine, carried over as bytes, read by the other. */
const carry = Effect.fnUntraced(function* (
  from: TensorEngineShape,
  to: TensorEngineShape,
  dtype: DType,
  shape: Shape,
  rule: ScaleRule,
  values: Uint8Array
) {
  const plain = yield* from.allocate(dtype, shape)
  yield* write(from, plain, values)
  const made = yield* quantizedOn(from, shape, rule)
  yield* from.quantize(plain, made)
  const carried = yield* quantizedOn(to, shape, rule)
  const [data, scale] = [yield* bytesOf(from, made.data), yield* bytesOf(from, made.scale)]
  yield* write(to, carried.data, data)
  yield* write(to, carried.scale, scale)
  const read = yield* poisoned(to, dtype, shape)
  yield* to.dequantize(carried, read)
  return { data, scale, read: yield* bytesOf(to, read) }
})

beforeEach(() => resetSimulator("seed=1"))
afterEach(() => assertClean())

describe("quantized bytes between vendors", () => {
  it.live("mean the same on either side, for every type and rule", () =>
    Effect.gen(function* () {
      const [device, host] = [
        yield* engineOf(DeviceEngine.layer(testOptions)),
        yield* engineOf(hostBackend.tensorEngine!({}))
      ]
      const random = makeRandom(66)
      // Rows of one block, rows that a team of threads shares, and rows that end within a team.
      for (const shape of [
        [5, 32],
        [3, 64 * 32],
        [2, 70 * 32]
      ]) {
        for (const dtype of ["bfloat16", "float16", "float32"] as const) {
          for (const rule of scaleRules.slice(0, 3)) {
            const size = dtype === "float32" ? 4 : 2
            const values = Uint8Array.from({ length: shape[0]! * shape[1]! * size }, () => random.below(256))
            // Most exponents are made smaller: nearly every block of random bits has a NaN.
            for (let at = size - 1; at < values.length; at += size) if (at % 97 !== 0) values[at]! &= 0xbf
            const there = yield* carry(host, device, dtype, shape, rule, values)
            const back = yield* carry(device, host, dtype, shape, rule, values)
            assert.deepStrictEqual(there, back, `${dtype} [${shape}] by ${rule}`)
          }
        }
      }
    }).pipe(Effect.scoped)
  )

  it.live("mean the same on either side, for every form and rule", () =>
    Effect.gen(function* () {
      const [device, host] = [
        yield* engineOf(DeviceEngine.layer(testOptions)),
        yield* engineOf(hostBackend.tensorEngine!({}))
      ]
      const random = makeRandom(67)
      const recipes = quantizedForms.flatMap((form) =>
        quantizationRules[form].flatMap((rule) =>
          (form === "fp8" ? fp8Blocks : [undefined]).map((block) => quantizationRecipe(form, rule, "rowMajor", block))
        )
      )
      const types = ["bfloat16", "float16", "float32"] as const
      for (const [at, recipe] of recipes.entries()) {
        // Each rule meets every type, as its blocks have several sizes or its neighbours are alike.
        for (const dtype of recipe.name === "fp8" ? [types[at % 3]!] : types) {
          // Blocks that all threads take together, rows that teams share, and what ends within either.
          for (const shape of [
            [128, 256],
            [7, 32 * 9]
          ]) {
            if (scaleShapeOf(recipe, shape) === undefined) continue
            const size = dtype === "float32" ? 4 : 2
            const values = Uint8Array.from({ length: shape[0]! * shape[1]! * size }, () => random.below(256))
            // Rows from those of any bits, NaN among them, to those of weights and of signed zeros.
            for (let byte = 0; byte < values.length; byte += size) {
              const row = Math.floor(byte / size / shape[1]!) % 8
              const top = byte + size - 1
              if (row === 1) values[top]! &= 0xbf
              if (row > 1) values[top] = (values[top]! & 0x80) | (0x38 + random.below(4))
              if (row === 7) values.fill(0, byte, top).fill(values[top]! & 0x80, top, top + 1)
            }
            const made: Array<ReadonlyArray<Uint8Array>> = []
            for (const engine of [host, device]) {
              const plain = yield* engine.allocate(dtype, shape)
              yield* write(engine, plain, values)
              const data = yield* poisoned(engine, codeTypeOf(recipe), codeShapeOf(recipe, shape))
              const scale = yield* poisoned(engine, scaleTypesOf(recipe, dtype)[0]!, scaleShapeOf(recipe, shape)!)
              const global = hasGlobal(recipe) ? { global: yield* poisoned(engine, "float32", [1]) } : {}
              const quantized: QuantizedTensor = { _tag: "QuantizedTensor", data, scale, ...global, recipe }
              // A global scale of NaN would leave nothing to compare: one is given.
              const maxima = yield* engine.allocate("float32", [1])
              yield* write(engine, maxima, new Uint8Array(Float32Array.of(1.5).buffer))
              yield* engine.quantize(plain, quantized, hasGlobal(recipe) ? { maxima } : {})
              const read = yield* poisoned(engine, dtype, shape)
              yield* engine.dequantize(quantized, read)
              const parts = [data, scale, ...(hasGlobal(recipe) ? [quantized.global!] : []), read]
              made.push(yield* Effect.forEach(parts, (tensor) => bytesOf(engine, tensor)))
            }
            const other = made[0]!.findIndex((bytes, part) => Buffer.compare(bytes, made[1]![part]!) !== 0)
            const where = made[0]?.[other]?.findIndex((byte, place) => byte !== made[1]![other]![place])
            assert.strictEqual(other, -1, `${dtype} [${shape}] by ${recipeId(recipe)}: part ${other}, byte ${where}`)
          }
        }
      }
    }).pipe(Effect.scoped)
  )

  it.live("are refused where the recipe is not one that both know", () =>
    Effect.gen(function* () {
      const [device, host] = [
        yield* engineOf(DeviceEngine.layer(testOptions)),
        yield* engineOf(hostBackend.tensorEngine!({}))
      ]
      for (const engine of [device, host]) {
        const good = yield* quantizedOn(engine, [2, 64], "rceil")
        const plain = yield* poisoned(engine, "bfloat16", [2, 64])
        for (const recipe of [
          { ...good.recipe, name: "auto" as "mxfp8" },
          { ...good.recipe, name: "qint8" as "mxfp8" },
          { ...good.recipe, name: "" as "mxfp8" },
          { ...good.recipe, block: [1, 128] as const },
          { ...good.recipe, layout: "vendor" as "rowMajor" }
        ]) {
          const error = yield* Effect.flip(engine.dequantize({ ...good, recipe }, plain))
          assert.strictEqual(error.reason._tag, "Unsupported", error.message)
        }
        for (const dtype of ["float8_e4m3fnuz", "qint8", "auto", ""]) {
          const foreign = { ...good, data: { ...good.data, dtype: dtype as "float8_e4m3fn" } }
          const error = yield* Effect.flip(engine.dequantize(foreign, plain))
          assert.strictEqual(error.reason._tag, "InvalidRequest", error.message)
        }
        assert.isTrue((yield* bytesOf(engine, plain)).every((byte) => byte === 0xd7))
      }
    }).pipe(Effect.scoped)
  )
})
