// SPDX-License-Identifier: Apache-2.0
/**
 * A head that is stored beside the embedding that the config ties it to: systems hold what they hold without it, as the
 * recordings of tied models say.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import { compareRank, mapRecorded, type RecordedNames } from "../src/nameMappings.ts"
import { readGolden } from "../src/readGolden.ts"

const systems = [
  readGolden("names_megatron"),
  readGolden("names_vllm"),
  readGolden("names_vllm", "names_sglang")
] as ReadonlyArray<RecordedNames>

describe("a tied head that is stored", () => {
  for (const { engine, families } of systems) {
    for (const family of families.filter((one) => one.family === "llama_tied")) {
      it(`${engine} has one tensor for both, on every rank of ${family.cases.length}`, () => {
        for (const one of family.cases) {
          const sources = one.sources ?? family.sources
          const embedding = sources.find(([name]) => name === "model.embed_tokens.weight")!
          const rank = mapRecorded(engine, family, one, [...sources, ["lm_head.weight", embedding[1]]])
          assert.isUndefined(compareRank(Result.getOrThrow(rank), one, sources), one.id)
        }
      })
    }
  }
})
