// SPDX-License-Identifier: Apache-2.0
/** A conversion takes values, never codes; what a family needs in float32 stays so unless it is named. */
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import { fullRegion, type Region } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import { type Conversion, plannedTensors } from "../../src/conversion.ts"
import type { Model } from "../../src/Model.ts"
import { conversionNotes, describeNote } from "../../src/values/conversionNotes.ts"
import { denseModel, dequantizedTypes } from "../../src/values/denseModel.ts"
import { isLossy } from "../../src/values/lossyCasts.ts"

const conversion = (more: Partial<Conversion>): Conversion => ({ dtype: null, transform: null, ...more })

/** A model in memory of 4x4 codes, each 0x38 (1.0), in two blocks of rows with scales 2 and 3. */
const stored = {
  "m.weight": { dtype: "float8_e4m3fn" as DType, shape: [4, 4], bytes: new Uint8Array(16).fill(0x38) },
  "m.weight_scale_inv": {
    dtype: "float32" as DType,
    shape: [2, 1],
    bytes: new Uint8Array(Float32Array.of(2, 3).buffer)
  },
  "gate.e_score_correction_bias": { dtype: "float32" as DType, shape: [2], bytes: new Uint8Array(8) },
  "norm.weight": { dtype: "float32" as DType, shape: [4], bytes: new Uint8Array(16) },
  "embed.weight": { dtype: "float32" as DType, shape: [4, 4], bytes: new Uint8Array(64) },
  "x.qweight": { dtype: "int32" as DType, shape: [4, 4], bytes: new Uint8Array(64) },
  "x.scales": { dtype: "float16" as DType, shape: [1, 4], bytes: new Uint8Array(8) }
}
type Name = keyof typeof stored

const modelOf = (...names: ReadonlyArray<Name>): Model => ({
  path: "/nowhere",
  tensors: names.map((name) => ({ name, dtype: stored[name].dtype, shape: stored[name].shape })),
  metadata: new Map(),
  sharded: undefined,
  config: undefined,
  digestOf: () => "stated",
  checkFiles: Effect.void,
  files: () => new Map(),
  readRegion: (name, region, into) =>
    Effect.sync(() => {
      const { bytes, shape } = stored[name as Name]
      const width = bytes.length / shape.reduce((product, length) => product * length, 1)
      const [rows, columns] = region.length === 1 ? [[0, 1] as const, region[0]!] : (region as [Region[0], Region[0]])
      let to = 0
      for (let row = rows[0]; row < rows[1]; row++)
        for (let at = (row * shape.at(-1)! + columns[0]) * width; at < (row * shape.at(-1)! + columns[1]) * width; at++)
          into[to++] = bytes[at]!
    })
})

const quantized = modelOf(
  "m.weight",
  "m.weight_scale_inv",
  "gate.e_score_correction_bias",
  "norm.weight",
  "embed.weight"
)

describe("a quantized model under a conversion", () => {
  it.effect("has values in the type that is asked for, and no scales", () =>
    Effect.gen(function* () {
      const dense = yield* denseModel(quantized, conversion({ dtype: "bfloat16" }), { block: [2, 4] })
      assert.deepStrictEqual(
        dense.tensors.map(({ name, dtype }) => `${name} ${dtype}`),
        ["m.weight bfloat16", "gate.e_score_correction_bias float32", "norm.weight float32", "embed.weight float32"]
      )
      const into = new Uint8Array(32)
      yield* dense.readRegion("m.weight", fullRegion([4, 4]), into)
      // 2.0 and 3.0 in bfloat16.
      assert.deepStrictEqual([...new Uint16Array(into.buffer)], [...Array(8).fill(0x4000), ...Array(8).fill(0x4040)])
      assert.isUndefined(dense.digestOf("m.weight", [4, 4], []))
    })
  )

  it.effect("stays as it is where its weights are to be kept, or nothing is asked of them", () =>
    Effect.gen(function* () {
      const keep = conversion({ dtype: "bfloat16", types: [{ match: "m.*", dtype: "keep" }] })
      assert.strictEqual(yield* denseModel(quantized, keep, {}), quantized)
      assert.deepStrictEqual(
        plannedTensors(quantized.tensors, keep).map(({ dtype }) => dtype),
        ["float8_e4m3fn", "float32", "float32", "float32", "bfloat16"]
      )
      assert.strictEqual(yield* denseModel(quantized, undefined, {}), quantized)
    })
  )

  it.effect("is refused by name where its codes would be cast, two forms mixed, or no values are known", () =>
    Effect.gen(function* () {
      const refusal = (model: Model, input: Conversion) =>
        Effect.map(Effect.flip(denseModel(model, input, { method: "awq" })), (error) => {
          assert.strictEqual(error.reason._tag, "Unsupported")
          assert.isAtMost(error.message.split("\n").length, 20)
          return error.message
        })
      const narrow = yield* refusal(quantized, conversion({ dtype: "float8_e5m2" }))
      assert.include(narrow, "m.weight")
      const mixed = yield* refusal(quantized, conversion({ transform: { rule: "rceil", side: "sender" } }))
      assert.include(mixed, "--dtype bfloat16")
      const packed = yield* refusal(modelOf("x.qweight", "x.scales"), conversion({ dtype: "bfloat16" }))
      assert.include(packed, "quant_method awq")
    })
  )
})

describe("types by value", () => {
  const types = (input: Partial<Conversion>, model = quantized) =>
    Object.fromEntries(plannedTensors(model.tensors, conversion(input)).map(({ dtype, name }) => [name, dtype]))

  it("keep router biases, and norms beside narrow matrices, unless they are named", () => {
    assert.deepInclude(types({ dtype: "bfloat16" }), {
      "gate.e_score_correction_bias": "float32",
      "norm.weight": "float32",
      "embed.weight": "bfloat16",
      "m.weight_scale_inv": "float32"
    })
    const named = types({ dtype: "bfloat16", types: [{ match: "*correction_bias", dtype: "float16" }] })
    assert.strictEqual(named["gate.e_score_correction_bias"], "float16")
    const wide = modelOf("norm.weight", "embed.weight", "gate.e_score_correction_bias")
    assert.deepStrictEqual(types({ dtype: "bfloat16" }, wide), {
      "norm.weight": "bfloat16",
      "embed.weight": "bfloat16",
      "gate.e_score_correction_bias": "float32"
    })
  })

  it.effect("are told with counts: what is dequantized, what may lose bits, what is kept", () =>
    Effect.gen(function* () {
      const input = conversion({ dtype: "bfloat16" })
      const dequantized = yield* dequantizedTypes(quantized.tensors, input, { block: [2, 4] })
      const lines = conversionNotes(quantized.tensors, input, dequantized).map(describeNote)
      assert.deepStrictEqual(lines, [
        "dequantized: float8_e4m3fn block 2x4 → bfloat16 (1 tensor, 16 elements, as m.weight)",
        "kept: float32 (2 tensors, 6 elements, as gate.e_score_correction_bias); --type 'PATTERN=DTYPE' casts them too",
        "lossy cast: float32 → bfloat16 (1 tensor, 16 elements, as embed.weight)"
      ])
      assert.isTrue(isLossy("bfloat16", "float16"))
      assert.isFalse(isLossy("bfloat16", "float32"))
      assert.isTrue(isLossy("int64", "bfloat16"))
    })
  )
})
