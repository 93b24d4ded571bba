// SPDX-License-Identifier: Apache-2.0
/** Tensors that lie alike share what is found for the first of them: it does not matter which of them that is. */
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import type { FamilyChoice } from "@tensorferry/model/Cutting"
import type { MappedLayout } from "@tensorferry/model/names/mappedLayouts"
import { namedLayouts } from "@tensorferry/model/names/namedLayouts"
import * as Result from "effect/Result"
import type { ModelTensor } from "../../src/layout/ModelLayout.ts"
import { side, smallModel } from "../support/smallModels.ts"

interface Read {
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly family: FamilyChoice
}

const published = (model: string, family: FamilyChoice): Read => {
  const file = new URL(`../../../../bench/shapes/${model}.json.gz`, import.meta.url)
  const { tensors } = JSON.parse(gunzipSync(readFileSync(file)).toString("utf8")) as {
    readonly tensors: Readonly<Record<string, ReadonlyArray<number>>>
  }
  return { tensors: Object.entries(tensors).map(([name, shape]) => ({ name, dtype: "bfloat16", shape })), family }
}

const llama = published("llama-3.2-1b", {
  preset: "llama",
  placement: {},
  config: {
    model_type: "llama",
    num_attention_heads: 32,
    num_key_value_heads: 8,
    head_dim: 64,
    tie_word_embeddings: true
  }
})
const qwen3Moe = published("qwen3-30b-a3b", {
  preset: "qwen3_moe",
  placement: {},
  config: { model_type: "qwen3_moe", num_attention_heads: 32, num_key_value_heads: 4, head_dim: 128 }
})
const small = smallModel("qwen3_moe")
/** Layers of equal shapes whose experts lie on other ranks. */
const spread: Read = {
  ...small,
  family: {
    ...small.family,
    placement: {
      experts: {
        "0": [
          [0, 1],
          [2, 3]
        ],
        "1": [
          [3, 0],
          [1, 2]
        ]
      }
    }
  }
}

const cases: ReadonlyArray<readonly [title: string, read: Read, from: string, to: string]> = [
  ["llama-3.2-1b", llama, "megatron:tp=2,pp=4,dp=2", "vllm:tp=16"],
  ["llama-3.2-1b", llama, "fsdp2:tp=3", "megatron:tp=4,pp=2"],
  ["qwen3-30b-a3b", qwen3Moe, "megatron:tp=2,pp=3,dp=2,ep=4,etp=1", "vllm:tp=4,ep=4"],
  ["a small qwen3_moe with a map of experts", spread, "megatron:tp=2,ep=2,etp=1", "vllm:tp=2,ep=2"]
]

/** What a rank says of each parameter, and where it has it; a part of which it has nothing may be in any of its tensors. */
const saidBy = (layout: MappedLayout, rank: number) =>
  new Map(
    layout
      .parametersOf(rank)
      .map((one) => [one.metadata.name, one.view.shape.includes(0) ? { ...one, view: "nothing" } : one] as const)
      .sort(([a], [b]) => (a < b ? -1 : 1))
  )

describe("layouts between the names of two systems", () => {
  for (const [title, { tensors, family }, from, to] of cases) {
    it(`of ${title} from ${from} to ${to} are the same whichever layer comes first`, () => {
      const choice = { from: side(from), to: side(to), ranks: "disjoint", family } as const
      const forwards = Result.getOrThrow(namedLayouts(tensors, choice))
      const backwards = Result.getOrThrow(namedLayouts(tensors.toReversed(), choice))
      for (const which of ["source", "destination"] as const) {
        for (const rank of forwards[which].ranks) {
          const said = saidBy(forwards[which], rank)
          assert.strictEqual(said.size, forwards[which].parametersOf(rank).length)
          assert.deepStrictEqual(saidBy(backwards[which], rank), said)
          const held = new Map(forwards[which].rankOf(rank).tensors.map(({ name, shape }) => [name, shape]))
          for (const { view } of forwards[which].parametersOf(rank)) {
            const shape = held.get(view.tensor)
            assert.isDefined(shape, `${view.tensor} on rank ${rank}`)
            const last = view.shape.reduce((sum, count, at) => sum + (count - 1) * view.strides[at]!, view.offset)
            const elements = shape!.reduce((all, length) => all * length, 1)
            if (!view.shape.includes(0)) assert.isBelow(last, elements, `${view.tensor} on rank ${rank}`)
          }
        }
      }
    })
  }
})
