// SPDX-License-Identifier: Apache-2.0
/**
 * Recorded packed weights through whole jobs: the files of two ranks are the recorded shards, byte for byte, with the shape
 * and the groups that they state of themselves; put together again they are the recorded weight; and as floats they have
 * the values that the reference read.
 */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import { parseModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { scratch } from "../support/command.ts"
import { runJob } from "../support/inProcess.ts"
import { modelFiles, readSafetensors } from "../support/safetensorsFile.ts"
import { reportsOf } from "../support/throughLayouts.ts"

interface Elements {
  readonly dtype: DType
  readonly shape: ReadonlyArray<number>
  readonly bits: string
}
type Tensors = Readonly<Record<string, Elements>>
interface Recorded {
  readonly id: string
  readonly title: string
  readonly format: string
  readonly config: { readonly [name: string]: unknown }
  readonly tensors: Tensors
  readonly logical_shape: readonly [number, number]
  readonly dims: ReadonlyArray<string>
  readonly dequantised: Elements
  readonly cuts: ReadonlyArray<{
    readonly dim: number
    readonly name: string
    readonly example: { readonly at: number; readonly shards: ReadonlyArray<Tensors> }
  }>
}

const data = new URL("../../../../golden/packed_int/packed_int.json.gz", import.meta.url)
const { cases } = JSON.parse(gunzipSync(readFileSync(data)).toString("utf8")) as {
  readonly cases: ReadonlyArray<Recorded>
}

const widths: { readonly [Name in DType]?: number } = { int32: 4, int64: 8, bfloat16: 2, float16: 2, float32: 4 }

const bytesOf = ({ bits, dtype }: Elements): Uint8Array => {
  const bytes = Uint8Array.from(Buffer.from(bits, "hex"))
  const width = widths[dtype]!
  for (let at = 0; at < bytes.length; at += width) bytes.subarray(at, at + width).reverse()
  return bytes
}

const quantizationOf = ({ config, format }: Recorded): object =>
  format.startsWith("compressed")
    ? { quant_method: "compressed-tensors", format: "pack-quantized", config_groups: { g: { weights: config } } }
    : format.startsWith("AutoGPTQ")
      ? { quant_method: "gptq", ...config }
      : { quant_method: "awq", bits: config.w_bit, ...config }

/** An MLP of one matrix: cut by its rows as `up_proj`, by its columns as `down_proj`. */
const moduleOf = (cut: string) => `model.layers.0.mlp.${cut.startsWith("out") ? "up_proj" : "down_proj"}`

const turned = ({ bits, shape }: Elements): string => {
  const [rows, columns] = shape as [number, number]
  const digits = bits.length / (rows * columns)
  return Array.from({ length: rows * columns }, (_, at) => {
    const place = (at % rows) * columns + Math.floor(at / rows)
    return bits.slice(place * digits, (place + 1) * digits)
  }).join("")
}

describe("packed weights", () => {
  // Those that are recorded with a cut in the middle: two equal ranks.
  const halved = cases.flatMap((one) =>
    one.cuts.flatMap((cut) =>
      cut.example.at * 2 === one.logical_shape[cut.dim] ? [{ ...one, cut, along: cut.name }] : []
    )
  )
  it("are recorded for each format, along rows and columns", () => {
    assert.isAtLeast(halved.length, 14)
  })

  it.live.each(halved)("$id $title, cut along $along, are the recorded shards", (one) =>
    Effect.gen(function* () {
      using folder = scratch()
      const [model, shards, back, dense] = ["model", "shards", "back", "dense"].map((name) => join(folder.path, name))
      const path = moduleOf(one.along)
      const isTurned = one.dims[0] === "in"
      const [out, inputs] = isTurned ? [one.logical_shape[1], one.logical_shape[0]] : one.logical_shape
      const [hidden, width] = path.endsWith("up_proj") ? [inputs, out] : [out, inputs]
      const text = JSON.stringify({
        ...{ model_type: "llama", hidden_size: hidden, intermediate_size: width, num_attention_heads: 1 },
        quantization_config: quantizationOf(one)
      })
      mkdirSync(model!)
      writeFileSync(join(model!, "config.json"), text)
      const entries = Object.entries(one.tensors).map(([suffix, elements]) => ({
        ...{ name: `${path}.${suffix}`, dtype: elements.dtype, shape: elements.shape, data: bytesOf(elements) }
      }))
      yield* writeSafetensors(join(model!, "model.safetensors"), entries)
      const config = Result.getOrThrow(parseModelConfig(text))
      const rules = { rules: [], family: { preset: "llama", config, placement: {} } }
      reportsOf(yield* runJob({ checkpoint: model!, from: "tp=1", to: "tp=2", rules, out: shards! }))
      for (const [rank, recorded] of one.cut.example.shards.entries()) {
        const found = readSafetensors(join(shards!, `rank-0000${rank}.safetensors`))
        for (const [suffix, elements] of Object.entries(recorded))
          assert.deepStrictEqual(
            [...found.get(`${path}.${suffix}`)!.bytes],
            [...bytesOf(elements)],
            `${rank} ${suffix}`
          )
      }
      reportsOf(yield* runJob({ checkpoint: shards!, from: "tp=2", to: "tp=1", rules, out: back! }))
      const again = modelFiles(back!)
      for (const { data, name } of entries) assert.deepStrictEqual([...again.get(name)!.bytes], [...data], name)
      // Values are read from shards as from the whole.
      const dtype = one.dequantised.dtype as "float16" | "bfloat16"
      reportsOf(
        yield* runJob({
          ...{ checkpoint: shards!, from: "tp=2", to: "tp=1", rules, out: dense! },
          specOf: (_, spec) => ({ ...spec, conversion: { dtype, transform: null } })
        })
      )
      const values = isTurned ? { ...one.dequantised, bits: turned(one.dequantised) } : one.dequantised
      assert.deepStrictEqual([...modelFiles(dense!).get(`${path}.weight`)!.bytes], [...bytesOf(values)])
    })
  )
})
