// SPDX-License-Identifier: Apache-2.0
/**
 * Conversions that come again: their programs stay on the device, and what they read there they read anew. What is right is
 * told by the host's backend.
 */
import { assert, describe, it } from "@effect/vitest"
import { descriptor as hostBackend } from "@tensorferry/backend-torch-copy"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import {
  codeShapeOf,
  codeTypeOf,
  type QuantizationRecipe,
  type QuantizedTensor,
  quantizationRecipe,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { assertClean, resetSimulator, simulator } from "@tensorferry/simulators/gpu"
import { engineOptions } from "@tensorferry/simulators/gpuEngine"
import { makeRandom } from "@tensorferry/testing/transfers/randomTransfers"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { afterEach, beforeEach } from "vitest"
import * as DeviceEngine from "../src/TensorEngine.ts"

beforeEach(() => resetSimulator("seed=1"))
afterEach(() => assertClean())

const engines = Effect.all([
  Effect.map(Layer.build(DeviceEngine.layer(engineOptions)), Context.get(TensorEngine)),
  Effect.map(Layer.build(hostBackend.tensorEngine!({})), Context.get(TensorEngine))
])

const write = Effect.fnUntraced(function* (engine: TensorEngineShape, to: Tensor, bytes: Uint8Array) {
  const src = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), to.dtype, to.shape))
  yield* engine.copy([{ dst: to, src }])
})

const bytesOf = Effect.fnUntraced(function* (engine: TensorEngineShape, src: Tensor) {
  const bytes = new Uint8Array(src.storage.byteLength)
  const dst = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), src.dtype, src.shape))
  yield* engine.copy([{ dst, src }])
  return bytes
})

const allocated = Effect.fnUntraced(function* (
  engine: TensorEngineShape,
  recipe: QuantizationRecipe,
  shape: ReadonlyArray<number>
) {
  const plain = yield* engine.allocate("bfloat16", shape)
  const data = yield* engine.allocate(codeTypeOf(recipe), codeShapeOf(recipe, shape))
  const scale = yield* engine.allocate(scaleTypesOf(recipe)[0]!, scaleShapeOf(recipe, shape)!)
  const global = yield* engine.allocate("float32", [1])
  return { plain, data, scale, global }
})

/** Copies that the driver was asked for while an effect ran. */
const copiesOf = <E>(effect: Effect.Effect<void, E>) => {
  const asked = () => simulator.report().calls.cudaMemcpyAsync ?? 0
  return Effect.suspend(() => {
    const before = asked()
    return Effect.map(effect, () => asked() - before)
  })
}

/** Bytes of bfloat16 as weights have them. */
const weights = (count: number): Uint8Array => {
  const random = makeRandom(71)
  return Uint8Array.from({ length: 2 * count }, (_, at) =>
    at % 2 === 0 ? random.below(256) : (random.below(2) << 7) | (0x3a + random.below(5))
  )
}

describe("a conversion that comes again", () => {
  it.live("is uploaded no third time where its global scale is kept, and reads that anew", () =>
    Effect.gen(function* () {
      const recipe = quantizationRecipe("nvfp4", "te_1x16")
      const shape = [3, 4, 64]
      const values = weights(3 * 4 * 64)
      const made: Array<ReadonlyArray<Uint8Array>> = []
      const copies: Array<number> = []
      for (const engine of yield* engines) {
        const { plain, global, ...parts } = yield* allocated(engine, recipe, shape)
        yield* write(engine, plain, values)
        const quantized: QuantizedTensor = { _tag: "QuantizedTensor", ...parts, global, recipe }
        const bytes: Array<Uint8Array> = []
        for (const stated of [1.5, 3, 0.25, 700]) {
          yield* write(engine, global, new Uint8Array(Float32Array.of(stated).buffer))
          copies.push(yield* copiesOf(engine.quantize(plain, quantized, { keepsGlobal: true })))
          bytes.push(yield* bytesOf(engine, parts.data), yield* bytesOf(engine, parts.scale))
        }
        made.push(bytes)
      }
      assert.deepStrictEqual(made[0], made[1])
      assert.notDeepEqual(made[0]![0], made[0]![6], "the global scale matters")
      // The first was done for once, the second to be kept.
      assert.deepStrictEqual(copies.slice(0, 4), [1, 1, 0, 0])
    }).pipe(Effect.scoped)
  )

  it.live("is another one where the global scale is not kept", () =>
    Effect.gen(function* () {
      const recipe = quantizationRecipe("nvfp4", "modelopt")
      const shape = [8, 64]
      const made: Array<Uint8Array> = []
      for (const engine of yield* engines) {
        const { plain, global, ...parts } = yield* allocated(engine, recipe, shape)
        yield* write(engine, plain, weights(8 * 64))
        const quantized: QuantizedTensor = { _tag: "QuantizedTensor", ...parts, global, recipe }
        for (const known of [{ keepsGlobal: true }, {}, { keepsGlobal: true }, {}, {}]) {
          yield* write(engine, global, new Uint8Array(Float32Array.of(0.5).buffer))
          yield* engine.quantize(plain, quantized, known)
          made.push(yield* bytesOf(engine, global), yield* bytesOf(engine, parts.data))
        }
      }
      assert.deepStrictEqual(made.slice(0, 10), made.slice(10))
      assert.deepStrictEqual(made[4], new Uint8Array(Float32Array.of(0.5).buffer), "kept")
      assert.notDeepEqual(made[6], made[4], "not kept")
    }).pipe(Effect.scoped)
  )

  it.live("of a matrix needs no table on the device at all", () =>
    Effect.gen(function* () {
      const [device] = yield* engines
      const recipe = quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", [128, 128])
      const { plain, data, scale } = yield* allocated(device, recipe, [256, 256])
      yield* write(device, plain, weights(256 * 256))
      const quantized: QuantizedTensor = { _tag: "QuantizedTensor", data, scale, recipe }
      assert.strictEqual(yield* copiesOf(device.quantize(plain, quantized)), 0)
      assert.isTrue((yield* bytesOf(device, data)).some((byte) => byte !== 0))
    }).pipe(Effect.scoped)
  )
})
