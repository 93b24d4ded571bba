// SPDX-License-Identifier: Apache-2.0
/** Which files are carried along with a model, and what a configuration says afterwards. */
import { mkdir, symlink } from "node:fs/promises"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { changedConfig, companionsOf } from "../../src/outputs/companions.ts"
import { put, scratchFolder } from "../checkpoint/checkpointSupport.ts"

const bytes = (value: unknown) => new TextEncoder().encode(JSON.stringify(value))
const parsed = (text: Uint8Array) => JSON.parse(new TextDecoder().decode(text))

describe("companions", () => {
  it.effect("are the files of the list, from beside an index too, and never code or pickles", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const names = ["config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja", "LICENSE"]
      const others = [
        "modeling_own.py",
        "training_args.bin",
        "optimizer.pt",
        "config.json.bak",
        "a.safetensors",
        "run.sh"
      ]
      for (const name of [...names, ...others]) yield* put(join(folder, name), name)
      for (const path of [folder, join(folder, "model.safetensors.index.json"), join(folder, "a.safetensors")]) {
        const found = yield* companionsOf({ path }, {})
        assert.deepStrictEqual(
          found.map(({ name }) => name),
          [...names].sort()
        )
        for (const { bytes, name } of found) assert.strictEqual(new TextDecoder().decode(bytes), name)
      }
    })
  )

  it.effect("are followed through links, as caches of models keep them, and refused where they are no files", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      yield* put(join(folder, "blob"), "{}")
      yield* Effect.promise(() => symlink("blob", join(folder, "config.json")))
      const found = yield* companionsOf({ path: folder }, {})
      assert.deepStrictEqual(
        found.map(({ name }) => name),
        ["config.json"]
      )
      yield* Effect.promise(() => mkdir(join(folder, "tokenizer.json")))
      assert.strictEqual((yield* Effect.flip(companionsOf({ path: folder }, {}))).reason._tag, "Unreadable")
    })
  )

  it.effect("of a format with a configuration of its own have a config.json", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const found = yield* companionsOf({ path: folder, configText: '{"model_type":"mistral"}' }, {})
      assert.deepStrictEqual(
        found.map(({ name }) => name),
        ["config.json"]
      )
    })
  )
})

describe("a carried config.json", () => {
  const config = {
    model_type: "qwen3",
    dtype: "float32",
    text_config: { torch_dtype: "float32", quantization_config: {} },
    quantization_config: { quant_method: "fp8" },
    architectures: ["A"]
  }

  it("is left as it is where nothing that it speaks of changed", () => {
    const text = new TextEncoder().encode('{ "dtype" : "float32" }')
    assert.strictEqual(changedConfig(text, {}), text)
  })

  it("names the type that floats were converted to, and no quantization where none is left", () => {
    assert.deepStrictEqual(parsed(changedConfig(bytes(config), { dtype: "bfloat16" })), {
      ...config,
      dtype: "bfloat16",
      text_config: { torch_dtype: "bfloat16", quantization_config: {} }
    })
    assert.deepStrictEqual(parsed(changedConfig(bytes(config), { dtype: "bfloat16", isDequantized: true })), {
      model_type: "qwen3",
      dtype: "bfloat16",
      text_config: { torch_dtype: "bfloat16" },
      architectures: ["A"]
    })
  })

  it("keeps the words that Python writes for numbers that JSON does not have", () => {
    const text =
      '{"dtype": "float32", "time_step_limit": [0.0, Infinity], "low": -Infinity, "none": NaN, "text": "NaN"}'
    const changed = new TextDecoder().decode(changedConfig(new TextEncoder().encode(text), { dtype: "bfloat16" }))
    assert.include(changed, '"dtype": "bfloat16"')
    assert.match(changed, /\[\s*0,\s*Infinity\s*\]/)
    assert.include(changed, '"low": -Infinity,')
    assert.include(changed, '"none": NaN,')
    assert.include(changed, '"text": "NaN"')
  })
})
