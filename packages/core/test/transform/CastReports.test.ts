// SPDX-License-Identifier: Apache-2.0
/** Casts that saturate, the roundings that a plan states, and changes that rounding swallows. */
import { assert, describe, it } from "@effect/vitest"
import { isLossy, lossyCasts } from "@tensorferry/model/values/lossyCasts"
import { roundingReport } from "@tensorferry/model/values/RoundingReport"
import { make } from "@tensorferry/testing/ReferenceEngine"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"
import { type Tensor, tensorView } from "../../src/tensor/Tensor.ts"
import { tensorDict } from "../../src/tensor/TensorDict.ts"
import { cast } from "../../src/transform/Cast.ts"
import { plansOf, rosterOf } from "../reshard/executeSupport.ts"

const engine = make()

const floats = (dtype: "float32" | "bfloat16" | "float16" | "float8_e5m2", values: ReadonlyArray<number>) =>
  Effect.gen(function* () {
    const storage = yield* engine.wrapHost(new Uint8Array(Float32Array.from(values).buffer))
    const wide = Result.getOrThrow(tensorView(storage, "float32", [values.length]))
    const tensor = yield* engine.allocate(dtype, [values.length])
    yield* engine.copy([{ dst: tensor, src: wide }])
    return tensor
  })

const numbers = (tensor: Tensor) =>
  Effect.gen(function* () {
    const wide = yield* engine.allocate("float32", tensor.shape)
    yield* engine.copy([{ dst: wide, src: tensor }])
    return [...new Float32Array(wide.storage.bytes!.slice().buffer)]
  })

const op = (tensor: Tensor) => ({ paramName: "w", region: [[0, tensor.shape[0]!] as const], tensor })

describe("saturation", () => {
  it.effect("what would become infinite becomes the largest number; NaN stays", () =>
    Effect.gen(function* () {
      const values = [1, -70_000, 65_504, 65_519, 1e30, Number.NEGATIVE_INFINITY, Number.NaN, -0]
      const expected = {
        float16: [1, -65_504, 65_504, 65_504, 65_504, -65_504, Number.NaN, -0],
        float8_e5m2: [1, -57_344, 57_344, 57_344, 57_344, -57_344, Number.NaN, -0]
      }
      for (const wireDtype of ["float16", "float8_e5m2"] as const) {
        const source = yield* floats("float32", values)
        const [sent] = yield* cast({ wireDtype, saturate: true }).prepareSend(op(source))
        assert.deepStrictEqual(yield* numbers(sent!), expected[wireDtype], wireDtype)
        const [plain] = yield* cast({ wireDtype }).prepareSend(op(source))
        assert.strictEqual((yield* numbers(plain!))[4], Number.POSITIVE_INFINITY)
      }
      const bf16 = yield* floats("bfloat16", [65_536, -65_536])
      const [sent] = yield* cast({ wireDtype: "float16", saturate: true }).prepareSend(op(bf16))
      assert.deepStrictEqual(yield* numbers(sent!), [65_504, -65_504])
      const [e4m3] = yield* cast({ wireDtype: "float8_e4m3fn", saturate: true }).prepareSend(op(bf16))
      assert.deepStrictEqual(yield* numbers(e4m3!), [448, -448])
    }).pipe(Effect.scoped, Effect.provideService(TensorEngine, engine))
  )
})

describe("lossy casts", () => {
  it("are those that cannot hold every value", () => {
    assert.isTrue(isLossy("float32", "bfloat16"))
    assert.isTrue(isLossy("bfloat16", "float16"))
    assert.isTrue(isLossy("float16", "bfloat16"))
    assert.isTrue(isLossy("int32", "float32"))
    assert.isFalse(isLossy("bfloat16", "float32"))
    assert.isFalse(isLossy("float8_e4m3fn", "bfloat16"))
    assert.isFalse(isLossy("float32", "float32"))
  })

  it("a plan states each of its own", () => {
    const wide = rosterOf(1, { dtype: "float32" })
    const narrow = rosterOf(2, { dtype: "bfloat16", firstRank: 1 })
    const plans = plansOf(wide, narrow, 3)
    assert.deepStrictEqual(lossyCasts(plans[0]!), [
      { paramName: "layers.0.up.weight", from: "float32", to: "bfloat16", elements: 35 },
      { paramName: "layers.1.down.weight", from: "float32", to: "bfloat16", elements: 40 },
      { paramName: "norm.weight", from: "float32", to: "bfloat16", elements: 22 }
    ])
    assert.deepStrictEqual(lossyCasts(plansOf(narrow, wide, 3)[1]!), [])
  })
})

describe("a merged adapter on a coarse grid", () => {
  it.effect("counts the elements whose change is rounded away", () =>
    Effect.gen(function* () {
      // Steps of bfloat16 at 1 are 0.0078125: a thousandth is lost, four thousandths round up.
      const before = yield* floats("bfloat16", [1, 1, 1, 1, Number.NaN])
      const after = yield* floats("float32", [1.001, 1.004, 1, 0.5, Number.NaN])
      assert.deepStrictEqual(yield* roundingReport("w", before, after, "bfloat16"), {
        elements: 5,
        changed: 3,
        unchangedByRounding: 1
      })
      assert.deepStrictEqual(yield* roundingReport("w", before, after, "float32"), {
        elements: 5,
        changed: 3,
        unchangedByRounding: 0
      })
      const kept = yield* engine.allocate("bfloat16", [5])
      yield* engine.copy([{ dst: kept, src: after }])
      assert.deepStrictEqual((yield* numbers(kept)).slice(0, 2), [1, 1.0078125])
    }).pipe(Effect.scoped, Effect.provideService(TensorEngine, engine))
  )

  it.effect("other shapes are refused", () =>
    Effect.gen(function* () {
      const [a, b] = [yield* floats("float32", [1]), yield* floats("float32", [1, 2])]
      const failure = yield* Effect.flip(roundingReport("layers.3.up", a, b, "bfloat16"))
      assert.strictEqual(failure.reason._tag, "UnsupportedTensor")
      assert.strictEqual(failure.reason.paramName, "layers.3.up")
    }).pipe(Effect.scoped, Effect.provideService(TensorEngine, engine))
  )
})

describe("within an update", () => {
  it.live("a saturating cast sends numbers where a plain one sends infinities", () => {
    const roster = (firstRank: number) =>
      rosterOf(1, {
        firstRank,
        tensors: [{ name: "w", dtype: "float32", shape: [2] }],
        rules: { rules: [{ match: "w", shard: "replicate" }] }
      })
    const plans = plansOf(roster(0), roster(1), 2)
    return runCluster({ size: 2 }, (rank) =>
      Effect.gen(function* () {
        const here = yield* TensorEngine
        const tensor = yield* here.allocate("float32", [2])
        const view = new Float32Array(tensor.storage.bytes!.buffer)
        if (rank === 0) view.set([1e9, -2])
        const dict = tensorDict([["w", tensor]])
        const transform = cast({ wireDtype: "float16", saturate: true })
        yield* executeReshardPlan(plans[rank]!, rank === 0 ? dict : undefined, rank === 1 ? dict : undefined, {
          transform
        })
        if (rank === 1) assert.deepStrictEqual([...view], [65_504, -2])
      })
    )
  })
})
