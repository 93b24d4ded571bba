// SPDX-License-Identifier: Apache-2.0
/**
 * A model read in a quantized form: every region of every part is that of the whole weight quantized by its rule, whatever
 * the regions are; what is quantized, what stays and how it is named follows the family.
 */
import { assert, describe, it } from "@effect/vitest"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, type Region } from "@tensorferry/core/base/Region"
import { scaleTypesOf } from "@tensorferry/core/tensor/QuantizedTensor"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import { quantizeValues } from "@tensorferry/testing/values/quantizing"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Model } from "../../src/Model.ts"
import { parseQuantize, recipeOf } from "../../src/quantized/choice.ts"
import { piecesOf, quantizedModel, quantizedTensors } from "../../src/quantized/QuantizedModel.ts"
import { type Selection, selectWeights } from "../../src/quantized/selection.ts"
import { quantizationConfigOf } from "../../src/quantized/writtenConfig.ts"

const llama = {
  model_type: "llama",
  hidden_size: 64,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  num_hidden_layers: 1
}
const llamaTensors = [
  ["model.embed_tokens.weight", [96, 64]],
  ["model.layers.0.input_layernorm.weight", [64]],
  ["model.layers.0.self_attn.q_proj.weight", [64, 64]],
  ["model.layers.0.self_attn.k_proj.weight", [32, 64]],
  ["model.layers.0.self_attn.v_proj.weight", [32, 64]],
  ["model.layers.0.self_attn.o_proj.weight", [64, 64]],
  ["model.layers.0.post_attention_layernorm.weight", [64]],
  ["model.layers.0.mlp.gate_proj.weight", [160, 64]],
  ["model.layers.0.mlp.up_proj.weight", [160, 64]],
  ["model.layers.0.mlp.down_proj.weight", [64, 160]],
  ["model.norm.weight", [64]],
  ["lm_head.weight", [96, 64]]
] as const
const tensors = llamaTensors.map(([name, shape]) => ({ name, dtype: "bfloat16" as const, shape: [...shape] }))

const bitsAt = (name: string, at: number): number => {
  let state = Math.imul(at + 1 + name.length * 7919, 2654435761)
  state = Math.imul(state ^ (state >>> 15), 2246822519) >>> 0
  return (state & 0x807f) | ((118 + ((state >>> 20) % 8)) << 7)
}

const valueAt = (name: string, at: number) => new Float32Array(Int32Array.of(bitsAt(name, at) << 16).buffer)[0]!

/** Calls `visit` with the place of every element of a region in the tensor, in order. */
const eachPlace = (
  shape: ReadonlyArray<number>,
  region: Region,
  visit: (at: number) => void,
  dim = 0,
  base = 0
): void => {
  if (dim === shape.length) visit(base)
  else
    for (let at = region[dim]![0]; at < region[dim]![1]; at++)
      eachPlace(shape, region, visit, dim + 1, base * shape[dim]! + at)
}

const model = (own = tensors as ReadonlyArray<{ name: string; dtype: "bfloat16"; shape: Array<number> }>): Model => ({
  path: "/nowhere",
  tensors: own,
  metadata: new Map(),
  sharded: undefined,
  config: undefined,
  digestOf: () => undefined,
  checkFiles: Effect.void,
  files: () => new Map(),
  readRegion: (name, region, into) =>
    Effect.sync(() => {
      const view = new DataView(into.buffer, into.byteOffset)
      let to = 0
      eachPlace(own.find((one) => one.name === name)!.shape, region, (at) =>
        view.setUint16(2 * to++, bitsAt(name, at), true)
      )
    })
})

const selected = (text: string, kept: ReadonlyArray<string> = []): Selection =>
  Result.getOrThrow(
    selectWeights(tensors, llama, Result.getOrThrow(parseQuantize(text)), (name) => kept.includes(name))
  )

const read = (from: Model, name: string, region?: Region) =>
  Effect.gen(function* () {
    const { dtype, shape } = from.tensors.find((one) => one.name === name)!
    const whole = region ?? shape.map((length) => [0, length] as const)
    const count = whole.reduce((product, [start, end]) => product * (end - start), 1)
    const bytes = new Uint8Array(byteLengthOf(dtype, count))
    yield* from.readRegion(name, whole, bytes)
    return bytes
  })

const slice = (bytes: Uint8Array, shape: ReadonlyArray<number>, region: Region): Uint8Array => {
  const size = bytes.length / elementCount(shape)
  const found: Array<number> = []
  eachPlace(shape, region, (at) => found.push(...bytes.subarray(at * size, (at + 1) * size)))
  return Uint8Array.from(found)
}

describe("a model read in a quantized form", () => {
  for (const [text, mostBytes] of [
    "fp8-block-32x32",
    "fp8-block-32x32:te_pow2",
    "fp8-block-48x48:slime_offline",
    "fp8-block-32x32:compressed_tensors",
    "fp8-channel",
    "fp8-tensor",
    "nvfp4",
    "nvfp4:modelopt",
    "mxfp4:triton_up"
  ].flatMap((text) => [[text, undefined] as const, [text, 4096] as const])) {
    const at = mostBytes === undefined ? "" : ", some at a time"
    it.effect(`${text}: parts are those of whole weights by the rule, and regions are parts of them${at}`, () =>
      Effect.gen(function* () {
        const choice = Result.getOrThrow(parseQuantize(text))
        const { weights } = selected(text)
        const quantized = yield* quantizedModel(model(), weights, new Map(), mostBytes)
        const maxima = new Map<string, number>()
        for (const { group, source } of weights) {
          let largest = maxima.get(group) ?? 0
          for (let at = 0; at < elementCount(source.shape); at++)
            largest = Math.max(largest, Math.abs(valueAt(source.name, at)))
          maxima.set(group, largest)
        }
        for (const weight of weights) {
          const { codes, global, group, scales, source } = weight
          const values = Float32Array.from({ length: elementCount(source.shape) }, (_, at) => valueAt(source.name, at))
          const isOne = global !== undefined || text.startsWith("fp8-tensor")
          const known = isOne ? { maxima: Float32Array.of(maxima.get(group)!) } : {}
          const scaleType = choice.form === "mxfp4" ? "uint8" : scaleTypesOf(recipeOf(choice), "bfloat16")[0]!
          const wanted = quantizeValues(recipeOf(choice), values, source.shape, "bfloat16", scaleType, known)
          assert.deepStrictEqual(yield* read(quantized, codes.name), wanted.data, codes.name)
          assert.deepStrictEqual(yield* read(quantized, scales.name), wanted.scales, scales.name)
          if (global !== undefined) {
            const number = new Uint8Array(Float32Array.of(wanted.global!).buffer)
            assert.deepStrictEqual(yield* read(quantized, global.name), number)
          }
          const [rows, columns] = codes.shape as readonly [number, number]
          for (const region of [
            [
              [0, 1],
              [0, columns]
            ],
            [
              [7, rows - 3],
              [5, columns - 2]
            ],
            [
              [rows - 1, rows],
              [columns - 1, columns]
            ],
            [
              [3, 3],
              [0, columns]
            ]
          ] as ReadonlyArray<Region>) {
            const found = yield* read(quantized, codes.name, region)
            assert.deepStrictEqual(found, slice(wanted.data, codes.shape, region), `${codes.name} ${region.join(" ")}`)
          }
          if (scales.shape.length === 2 && scales.shape[0]! > 1) {
            const region: Region = [
              [1, scales.shape[0]!],
              [0, scales.shape[1]!]
            ]
            const found = yield* read(quantized, scales.name, region)
            assert.deepStrictEqual(found, slice(wanted.scales, scales.shape, region))
          }
        }
      }).pipe(Effect.provide(ReferenceEngine.layer()))
    )
  }

  it("names parts as those who read them do, and states them in the configuration", () => {
    const names = (text: string) =>
      quantizedTensors(tensors, selected(text).weights)
        .filter(({ name }) => name.includes(".q_proj"))
        .map(({ dtype, name, shape }) => `${name.slice("model.layers.0.self_attn.".length)} ${dtype} ${shape}`)
    assert.deepStrictEqual(names("fp8-block-32x32"), [
      "q_proj.weight float8_e4m3fn 64,64",
      "q_proj.weight_scale_inv float32 2,2"
    ])
    assert.deepStrictEqual(names("nvfp4:modelopt"), [
      "q_proj.weight uint8 64,32",
      "q_proj.weight_scale float8_e4m3fn 64,4",
      "q_proj.weight_scale_2 float32 "
    ])
    assert.deepStrictEqual(names("nvfp4"), [
      "q_proj.weight_packed uint8 64,32",
      "q_proj.weight_scale float8_e4m3fn 64,4",
      "q_proj.weight_global_scale float32 1"
    ])
    assert.deepStrictEqual(names("fp8-channel"), [
      "q_proj.weight float8_e4m3fn 64,64",
      "q_proj.weight_scale bfloat16 64,1"
    ])
    const { kept } = selected("nvfp4")
    assert.deepStrictEqual(kept, ["lm_head"])
    const config = quantizationConfigOf(Result.getOrThrow(parseQuantize("fp8-block")), kept, false)
    assert.deepStrictEqual(config, {
      quant_method: "fp8",
      fmt: "e4m3",
      activation_scheme: "dynamic",
      weight_block_size: [128, 128],
      modules_to_not_convert: ["lm_head"]
    })
  })

  it("leaves what is stated to stay, and joins what engines join", () => {
    const { kept, weights } = selected("nvfp4", ["model.layers.0.mlp.down_proj.weight"])
    assert.deepStrictEqual(kept, ["model.layers.0.mlp.down_proj", "lm_head"])
    const groups = Map.groupBy(weights, ({ group }) => group)
    assert.deepStrictEqual(
      [...groups.values()].map((members) => members.map(({ source }) => source.name.split(".").at(-2))),
      [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"]]
    )
  })

  it("refuses experts in one tensor, by name, unless they are stated to stay", () => {
    const config = { model_type: "qwen3_moe", hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2 }
    const stacked = [
      ...tensors.filter(({ name }) => !name.includes(".mlp.")),
      ...(
        [
          ["gate.weight", [4, 64]],
          ["experts.gate_up_proj", [4, 96, 64]],
          ["experts.down_proj", [4, 64, 48]]
        ] as const
      ).map(([name, shape]) => ({
        name: `model.layers.0.mlp.${name}`,
        dtype: "bfloat16" as const,
        shape: [...shape]
      }))
    ]
    const select = (isKept: (name: string) => boolean) =>
      selectWeights(stacked, config, Result.getOrThrow(parseQuantize("fp8-block-32x32")), isKept)
    const refused = select(() => false)
    assert.match(
      Result.isFailure(refused) ? refused.failure.message : "",
      /experts\.[a-z_]+.*4 experts lie in one tensor/
    )
    const kept = Result.getOrThrow(select((name) => name.includes("experts")))
    assert.strictEqual(kept.weights.length, 4)
    assert.sameMembers([...kept.kept], ["model.layers.0.mlp.gate", "model.layers.0.mlp.experts", "lm_head"])
  })

  it("says what it does not know", () => {
    for (const [text, pattern] of [
      ["fp9", /no form "fp9"/],
      ["nvfp4:te_1x16", /No checkpoint stores/],
      ["nvfp4:round", /no rule "round"/],
      ["mxfp4:modelopt:more", /more than a form/]
    ] as const) {
      const parsed = parseQuantize(text)
      assert.match(Result.isFailure(parsed) ? parsed.failure : "", pattern)
    }
    const nowhere = selectWeights(tensors, undefined, Result.getOrThrow(parseQuantize("nvfp4")), () => false)
    assert.isTrue(Result.isFailure(nowhere))
  })

  it("cuts regions into pieces of whole units that cover them once", () => {
    const region: Region = [
      [0, 3],
      [0, 100],
      [0, 64]
    ]
    for (const most of [1, 64, 640, 6400, 19200, 1e9]) {
      const pieces = piecesOf(region, [1, 16, 32], most)
      const places = new Set<number>()
      let count = 0
      for (const piece of pieces) {
        eachPlace([3, 100, 64], piece, (at) => {
          places.add(at)
          count++
        })
        const [, rows, columns] = piece as unknown as ReadonlyArray<readonly [number, number]>
        assert.strictEqual(rows![0] % 16, 0)
        assert.strictEqual(columns![0] % 32, 0)
      }
      assert.strictEqual(count, 19200)
      assert.strictEqual(places.size, 19200)
    }
  })
})
