// SPDX-License-Identifier: Apache-2.0
/** Names of adapters' tensors, as files and models in memory have them. */
import { assert, describe, it } from "@effect/vitest"
import { adapterName, parseAdapterName, wholeName } from "../../../src/names/adapters/AdapterNames.ts"

const part = (module: string, slot: string, depth = 0, adapter?: string) => ({
  _tag: "Part",
  module,
  depth,
  slot,
  ...(adapter === undefined ? {} : { adapter })
})

describe("a name of an adapter's tensor", () => {
  it.each([
    ["h.0.attn.lora_A.weight", part("h.0.attn", "lora_A.weight")],
    ["h.0.attn.lora_A.default.weight", part("h.0.attn", "lora_A.weight", 0, "default")],
    ["h.0.attn.lora_B.bias", part("h.0.attn", "lora_B.bias")],
    ["wte.lora_embedding_A", part("wte", "lora_embedding_A")],
    ["wte.lora_embedding_B.mine", part("wte", "lora_embedding_B", 0, "mine")],
    ["q.lora_magnitude_vector", part("q", "lora_magnitude_vector")],
    ["q.lora_magnitude_vector.weight", part("q", "lora_magnitude_vector")],
    ["q.lora_magnitude_vector.default.weight", part("q", "lora_magnitude_vector", 0, "default")],
    ["q.lora_magnitude_vector.default", part("q", "lora_magnitude_vector", 0, "default")],
    ["mlp.experts.base_layer.base_layer.lora_A.weight", part("mlp.experts", "lora_A.weight", 2)],
    ["mlp.base_layer.gate.lora_A.weight", part("mlp.gate", "lora_A.weight")],
    ["e.token_adapter.trainable_tokens_delta", part("e", "token_adapter.trainable_tokens_delta")],
    ["lm_head.weight", { _tag: "Whole", tensor: "lm_head.weight" }],
    ["lm_head.modules_to_save.default.weight", { _tag: "Whole", tensor: "lm_head.weight", adapter: "default" }],
    ["lm_head.original_module.weight", { _tag: "Wrapped", tensor: "lm_head.weight" }],
    ["q.base_layer.bias", { _tag: "Wrapped", tensor: "q.bias" }],
    ["constructor.toString", { _tag: "Whole", tensor: "constructor.toString" }],
    // Biases of first factors do not exist; such a name means nothing but itself.
    ["q.lora_A.bias", { _tag: "Whole", tensor: "q.lora_A.bias" }]
  ])("%s is taken apart", (name, expected) =>
    assert.deepStrictEqual<unknown>(parseAdapterName(`base_model.model.${name}`), expected)
  )

  it("begins as all of them do", () => assert.isUndefined(parseAdapterName("model.q.lora_A.weight")))

  it("is made again of what it says", () => {
    const name = adapterName("mlp.experts", "lora_B.weight", 1)
    assert.strictEqual(name, "base_model.model.mlp.experts.base_layer.lora_B.weight")
    assert.deepStrictEqual<unknown>(parseAdapterName(name), part("mlp.experts", "lora_B.weight", 1))
    assert.strictEqual(wholeName("q.bias", true), "base_model.model.q.base_layer.bias")
  })
})
