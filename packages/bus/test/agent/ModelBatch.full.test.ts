// SPDX-License-Identifier: Apache-2.0
/** Every family that both systems were recorded with, between layouts whose cuts do not fall together, there and back. */
import { describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { move } from "./recordedMoves.ts"

const families: ReadonlyArray<readonly [family: string, megatron: string, engine: string]> = [
  ["llama", "tp2pp2", "tp4"],
  ["llama_tied", "tp1pp2", "tp2"],
  ["qwen2", "tp4", "tp2"],
  ["qwen3", "tp2", "tp4"],
  ["gemma3", "tp4", "tp2"],
  ["qwen3_moe", "tp2ep2etp2", "tp4"],
  ["deepseek_v3", "tp1ep2etp1", "tp2"],
  ["glm4_moe", "tp2ep1etp2", "tp2"],
  ["gpt_oss", "tp2ep2etp1", "tp2"]
]

describe("from the trainer to the engine and back", () => {
  for (const [family, megatron, engine] of families) {
    it.live(`${family}: Megatron ${megatron}, vLLM ${engine}`, () =>
      Effect.andThen(
        move(["megatron", "vllm"], family, [megatron, engine]),
        move(["vllm", "megatron"], family, [engine, megatron])
      )
    )
    it.live(`${family}: Megatron ${megatron}, SGLang tp2`, () =>
      move(["megatron", "sglang"], family, [megatron, "tp2"])
    )
  }
})
