// SPDX-License-Identifier: Apache-2.0
/** Models without a head, as `AutoModel` of transformers saves and loads them: names have no owner in front, also in memory. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import type { ModelTensor } from "../../src/layout/ModelLayout.ts"
import { placeOf } from "../../src/layout/ParallelConfig.ts"
import { mapModel } from "../../src/names/mapModel.ts"
import { sideOf } from "../../src/names/namedLayouts.ts"
import { structureOf } from "../../src/placement/cutModel.ts"
import type { ModelConfig } from "../../src/structure/ModelConfig.ts"
import { side, smallModel } from "../support/smallModels.ts"

const [own, to] = ["model.", side("transformers:tp=1")]

/** The tensors of a small model without its owner's name and its head, under the names of memory. */
const inMemory = (type: string, owner: string, architectures: ReadonlyArray<string>) => {
  const { tensors: all, family: known } = smallModel(type)
  const config: ModelConfig = { ...known.config, architectures: [...architectures] }
  const family = { ...known, config }
  const tensors = all.flatMap(
    ({ name, ...rest }): ReadonlyArray<ModelTensor> =>
      name.startsWith(owner) ? [{ name: name.slice(owner.length), ...rest }] : []
  )
  const made = Result.gen(function* () {
    const structure = yield* structureOf(tensors, family)
    const { mapping, placement } = yield* sideOf(to, structure, family, 0)
    const model = yield* mapModel({ structure, tensors, mapping, config: to.config, placement })
    return yield* model.rankAt(placeOf(to.config, 0, 0))
  })
  const { tensors: held } = Result.getOrThrow(made)
  return { names: tensors.map(({ name }) => name).sort(), held: held.map(({ name }) => name).sort() }
}

describe("a model without a head in memory of transformers", () => {
  it.each([
    ["llama", own, "LlamaModel"],
    ["qwen3", own, "Qwen3Model"],
    ["bert", "bert.", "BertModel"],
    ["bert", "bert.", "BertForMaskedLM"]
  ])("has the names of its files: %s", (type, owner, architecture) => {
    const { names, held } = inMemory(type, owner, [architecture])
    assert.isAbove(names.length, 10)
    assert.deepStrictEqual(held, names)
  })

  it("has its owner's name in a class with a head", () => {
    const { names, held } = inMemory("llama", own, ["LlamaForCausalLM"])
    assert.deepStrictEqual(
      held,
      names.map((name) => own + name)
    )
  })
})
