// SPDX-License-Identifier: Apache-2.0
/** The structures of sixteen families put every element on the ranks on which engines have it. */
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import { checkPlacements, type RecordedPlacements } from "../src/enginePlacements.ts"

const read = (engine: string): ReadonlyArray<RecordedPlacements> =>
  JSON.parse(
    gunzipSync(readFileSync(new URL(`../names_vllm/names_${engine}.json.gz`, import.meta.url))).toString("utf8")
  ).families

describe.each(["vllm", "sglang"])("ranks of %s", (engine) => {
  for (const recorded of read(engine)) {
    it(`hold the same elements of ${recorded.family}`, () => {
      const verdicts = checkPlacements(recorded)
      assert.isNotEmpty(verdicts)
      assert.deepStrictEqual(
        verdicts.filter(({ fault }) => fault !== undefined),
        []
      )
    })
  }
})

describe("a model whose config states other heads", () => {
  it("is noticed by the first element on another rank", () => {
    const [llama] = read("vllm")
    const { num_attention_heads: heads, num_key_value_heads: kv } = llama!.hf_config as Record<string, number>
    const wrong = {
      ...llama!,
      hf_config: { ...llama!.hf_config, num_key_value_heads: heads!, num_attention_heads: kv! }
    }
    const faults = checkPlacements(wrong).flatMap(({ fault }) => fault ?? [])
    assert.isAbove(faults.length, 5)
  })
})
