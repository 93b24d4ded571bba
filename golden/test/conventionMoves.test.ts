// SPDX-License-Identifier: Apache-2.0
/**
 * Models between the names of transformers, FSDP2 and Megatron, planned, proved and carried out on numbered tensors: every
 * element is where its mapping says, which the recordings say of each mapping by itself.
 */
import { assert, describe, it } from "@effect/vitest"
import type { ModelTensor, ParallelConfig } from "@tensorferry/model/layout/ModelLayout"
import { findConvention } from "@tensorferry/model/names/conventions/conventions"
import type { MappedSide } from "@tensorferry/model/names/mappedLayouts"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { moveNumbers } from "../src/nameTransfers.ts"
import { readGolden } from "../src/readGolden.ts"
import type { RecordedTransformers } from "../src/transformersNames.ts"

const recorded = readGolden("names_transformers") as RecordedTransformers

const modelOf = (name: string) => {
  const { hf_config: config, cases } = recorded.families.find(({ family }) => family === name)!
  const tensors = cases
    .find(({ id }) => id.endsWith("/load"))!
    .sources.map(([own, shape]): ModelTensor => ({ name: own, dtype: "float32", shape }))
  const choice = { preset: config.model_type as string, config, placement: {} }
  return { tensors, structure: Result.getOrThrow(structureOf(tensors, choice)) }
}

const sideOf = (
  { structure }: ReturnType<typeof modelOf>,
  name: string,
  degrees: Partial<ParallelConfig>
): MappedSide => {
  const config = { tp: 1, pp: 1, dp: 1, ...degrees }
  const options = { stages: config.pp, tp: config.tp, vocabularyDivisor: 16 }
  const convention = findConvention(name)!
  return {
    structure,
    config,
    mapping: convention.mapping(structure, options),
    placement: convention.placement(options)
  }
}

const moves = (name: string, ...stops: ReadonlyArray<readonly [string, Partial<ParallelConfig>]>) => {
  const model = modelOf(name)
  return Effect.forEach(stops.slice(1), ([to, degrees], at) => {
    const [from, own] = stops[at]!
    return Effect.map(moveNumbers(model.tensors, sideOf(model, from, own), sideOf(model, to, degrees)), (fault) =>
      assert.isUndefined(fault, `${from} to ${to}`)
    )
  })
}

describe("every recorded family", () => {
  for (const { family } of recorded.families) {
    it.effect(`${family}: from files to transformers, to three ranks of FSDP2 and back to files`, () =>
      moves(family, ["hf", {}], ["transformers", {}], ["fsdp2", { tp: 3 }], ["fsdp2-hf", { tp: 5 }], ["hf", {}])
    )
  }
})

describe("a trainer on FSDP2", () => {
  it.effect("gives Megatron its tensors, and has them again", () =>
    moves("qwen3_moe", ["fsdp2", { tp: 3 }], ["megatron", { tp: 2, ep: 2, etp: 1, pp: 2 }], ["fsdp2", { tp: 7 }])
  )
  it.effect("gives vLLM its tensors, on more ranks than there are key-value heads", () =>
    moves("qwen3_moe", ["fsdp2", { tp: 3 }], ["vllm", { tp: 4 }], ["fsdp2", { tp: 2 }])
  )
})
