// SPDX-License-Identifier: Apache-2.0
/**
 * Between names nothing is gathered: a rank receives exactly the elements of its own tensors that its own source side does
 * not hold. Counted element by element, from the numbers that tensors made of numbered ones hold.
 */
import { assert, describe, it } from "@effect/vitest"
import { elementCount } from "@tensorferry/core/base/Region"
import { estimatePlans } from "@tensorferry/core/planner/Estimate"
import { checkPlans } from "@tensorferry/core/planner/PlanCheck"
import type { MappedRank } from "@tensorferry/model/names/mapModel"
import { materialize } from "@tensorferry/model/names/materialize"
import { namedLayouts } from "@tensorferry/model/names/namedLayouts"
import * as Result from "effect/Result"
import { side, smallModel } from "../support/smallModels.ts"

/** Numbers of the checkpoint's elements that a rank holds, 0 for padding. */
const numbersOf = ({ tensors }: MappedRank, contents: ReadonlyMap<string, Uint8Array>): ReadonlyArray<number> =>
  tensors.flatMap((tensor) => {
    const bytes = Result.getOrThrow(materialize(tensor, (name) => contents.get(name)!))
    return [...new Int32Array(bytes.buffer)]
  })

const transfers: ReadonlyArray<readonly [type: string, from: string, to: string]> = [
  ["llama", "megatron:tp=2", "vllm:tp=4"],
  ["llama", "fsdp2:tp=3", "sglang:tp=2"],
  ["qwen3_moe", "megatron:tp=2,ep=2", "vllm:tp=4"],
  ["qwen3_moe", "fsdp2:tp=4", "vllm:tp=2,dp=2,ep=4"],
  ["gpt_oss", "megatron:tp=2,ep=2", "vllm:tp=2"],
  ["llama", "vllm:tp=4", "megatron:tp=2,pp=2"]
]

describe("a plan between names", () => {
  for (const [type, from, to] of transfers) {
    it(`${type}, ${from} to ${to}: ranks receive what they lack and no more`, () => {
      const { tensors, family } = smallModel(type)
      const layouts = Result.getOrThrow(
        namedLayouts(tensors, { from: side(from), to: side(to), ranks: "collocated", family })
      )
      let next = 1
      const contents = new Map(
        tensors.map(({ name, shape }) => {
          const values = Int32Array.from({ length: elementCount(shape) }, () => next++)
          return [name, new Uint8Array(values.buffer)] as const
        })
      )
      const plans = Array.from({ length: layouts.size }, (_, rank) => layouts.planFor(rank))
      assert.deepStrictEqual(checkPlans(plans), [])
      const { ranks } = estimatePlans(plans)
      for (const { rank, receivedBytes, localBytes } of ranks) {
        const held = new Set(numbersOf(layouts.source.rankOf(rank), contents))
        const wanted = numbersOf(layouts.destination.rankOf(rank), contents).filter((number) => number > 0)
        const lacking = wanted.filter((number) => !held.has(number))
        assert.strictEqual(receivedBytes, lacking.length * 4, `received by rank ${rank}`)
        assert.strictEqual(localBytes, (wanted.length - lacking.length) * 4, `copied within rank ${rank}`)
      }
    })
  }
})
