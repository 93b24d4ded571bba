// SPDX-License-Identifier: Apache-2.0
/** What recorded systems met of faults is refused by kind and name, what is legal is taken, and every good rank is proven. */
import { assert, describe, it } from "@effect/vitest"
import { proveMapped } from "@tensorferry/model/names/proveMoves"
import * as Result from "effect/Result"
import { compareRank, mapRecorded } from "../src/nameMappings.ts"
import { checkRefusals, faultyCheckpoint, judgeNegative, type RecordedRefusals } from "../src/nameRefusals.ts"
import { readGolden } from "../src/readGolden.ts"
import { checkTransformers, type RecordedTransformers } from "../src/transformersNames.ts"

const read = (file: string): RecordedRefusals =>
  readGolden(...(file.split("/") as [string, string])) as RecordedRefusals

const vllm = read("names_vllm/names_vllm")
const files = { "names_vllm/names_vllm": vllm, "names_vllm/names_sglang": read("names_vllm/names_sglang") }
const all = { ...files, "names_megatron/names_megatron": read("names_megatron/names_megatron") }

describe.each(Object.entries(all))("%s", (_, recorded) => {
  for (const negative of recorded.negative) {
    const outcome = negative.must_refuse ? `is refused as ${negative.kind}` : "is taken"
    it(`${negative.id}: ${outcome}`, () => {
      const verdicts = checkRefusals({ ...recorded, negative: [negative], plan_negative: [] }, [vllm])
      assert.deepStrictEqual(
        verdicts.map(({ fault }) => fault),
        [undefined]
      )
    })
  }

  it("edits of recorded mappings are found, with the element and the count", () => {
    const verdicts = checkRefusals({ ...recorded, negative: [] })
    assert.strictEqual(verdicts.length, recorded.plan_negative.length)
    assert.deepStrictEqual(
      verdicts.filter(({ fault }) => fault !== undefined),
      []
    )
  })

  it("every rank that we map is proven: each element once, and from what is there", () => {
    for (const family of recorded.families) {
      for (const one of family.cases) {
        const sources = one.sources ?? family.sources
        const rank = Result.getOrThrow(mapRecorded(recorded.engine, family, one, sources))
        assert.deepStrictEqual(proveMapped(rank.tensors, new Map(sources)), [], one.id)
      }
    }
  })
})

/** Models whose head is the embedding, under the embedding's name; and the same with the head's. */
const tiedModels = Object.entries(all).flatMap(([file, { engine, families }]) =>
  families.flatMap((family) => {
    const { sources, hf_config: config } = family
    const at = sources.findIndex(([name]) => name.endsWith("embed_tokens.weight"))
    if (config.tie_word_embeddings !== true || at < 0) return []
    return [
      {
        engine,
        family,
        label: `${file} ${family.family}`,
        stored: sources.with(at, ["lm_head.weight", sources[at]![1]])
      }
    ]
  })
)

describe("a head that is tied to the embedding and stored in its place", () => {
  it.each(tiedModels)("$label: fills the embedding of every rank, element by element", ({ engine, family, stored }) => {
    for (const one of family.cases) {
      const rank = Result.getOrThrow(mapRecorded(engine, family, one, stored))
      assert.isUndefined(compareRank(rank, one, stored), one.id)
    }
  })
})

describe("transformers, with a tied head in the place of the embedding", () => {
  const recorded = read("names_transformers/names_transformers") as unknown as RecordedTransformers
  const families = recorded.families.flatMap((family) => {
    const load = family.cases.find(({ id }) => id.endsWith("/load"))!
    const at = load.sources.findIndex(([name]) => name === "model.embed_tokens.weight")
    if (family.hf_config.tie_word_embeddings !== true || at < 0) return []
    const sources = load.sources.with(at, ["lm_head.weight", load.sources[at]![1]])
    return [{ ...family, cases: [{ ...load, sources }] }]
  })

  it("fills the embedding, element by element", () => {
    assert.isNotEmpty(families)
    assert.deepStrictEqual(
      checkTransformers({ families }).map(({ fault }) => fault),
      families.map(() => undefined)
    )
  })
})

describe("a verdict", () => {
  it("names what was refused instead of what was recorded", () => {
    const [missing] = vllm.negative
    const [other] = checkRefusals({
      ...vllm,
      negative: [{ ...missing!, kind: "written_twice" }],
      plan_negative: []
    })
    assert.match(other!.fault ?? "", /missing_source.*v_proj.*recorded written_twice/)
    const llama = vllm.families.find(({ family }) => family === "llama")!
    const checkpoint = faultyCheckpoint(missing!, llama.hf_config, llama.sources)
    assert.strictEqual(checkpoint.tensors.length, llama.sources.length - 1)
    const rank = mapRecorded("vllm", llama, llama.cases[0]!, llama.sources)
    const taken = judgeNegative(missing!, checkpoint, rank as never)
    assert.match(taken ?? "", /^accepted, and missing_source/)
    const [plan] = checkRefusals({
      ...vllm,
      negative: [],
      plan_negative: [{ ...vllm.plan_negative[0]!, kind: "none" }]
    })
    assert.match(plan!.fault ?? "", /recorded none/)
  })
})
