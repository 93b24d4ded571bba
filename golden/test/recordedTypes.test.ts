// SPDX-License-Identifier: Apache-2.0
/** The types that a convention says were recorded are those of its recordings, and of no others. */
import { assert, describe, it } from "@effect/vitest"
import { megatron, megatronLocal } from "@tensorferry/model/names/conventions/megatron"
import { sglang } from "@tensorferry/model/names/conventions/sglang"
import { vllm } from "@tensorferry/model/names/conventions/vllm"
import type { RecordedNames } from "../src/nameMappings.ts"
import { readGolden } from "../src/readGolden.ts"

describe("recorded types", () => {
  for (const [convention, recording] of [
    [megatron, readGolden("names_megatron")],
    [megatronLocal, readGolden("names_megatron")],
    [vllm, readGolden("names_vllm")],
    [sglang, readGolden("names_vllm", "names_sglang")]
  ] as const) {
    it(`of ${convention.name} are those of its recording`, () => {
      const { families } = recording as RecordedNames
      const isLocal = convention === megatronLocal
      const own = families.filter(({ variant }) => !isLocal || variant === "local")
      const types = new Set(own.map(({ hf_config: config }) => config.model_type as string))
      assert.deepStrictEqual([...convention.recorded!], [...types].sort())
    })
  }
})
