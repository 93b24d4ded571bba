// SPDX-License-Identifier: Apache-2.0
/**
 * Which elements of a checkpoint each rank of an engine holds, as recorded by loading numbered tensors into vLLM, against
 * what the structure of the same model puts on that rank. Names and fusions do not matter here: only where an element is.
 */
import { elementCount, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import type { ModelLayout, ModelTensor } from "@tensorferry/core/layout/ModelLayout"
import { cutModel } from "@tensorferry/model/placement/cutModel"
import type { Placement } from "@tensorferry/model/placement/Placement"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Result from "effect/Result"

type Loops = ReadonlyArray<readonly [count: number, destination: number, source: number]>

interface RecordedCase {
  readonly id: string
  readonly tp: number
  readonly rank: number
  readonly expert_parallel?: boolean
  readonly expert_placement?: string
  readonly pipeline?: { readonly stage: number; readonly stages: number }
  readonly sources?: ReadonlyArray<readonly [string, Shape]>
  readonly moves: ReadonlyArray<
    readonly [destination: number, at: number, source: number, from: number, loops: Loops, op?: unknown]
  >
}

/** One family's cases. */
export interface RecordedPlacements {
  readonly family: string
  readonly hf_config: ModelConfig
  readonly sources: ReadonlyArray<readonly [string, Shape]>
  readonly cases: ReadonlyArray<RecordedCase>
}

export interface PlacementVerdict {
  readonly name: string
  readonly fault: string | undefined
}

/** Where engines and the checkpoint's layout differ by choice: one of them holds more there, never less. */
const choices: ReadonlyArray<{
  readonly name: RegExp
  readonly family: RegExp
  readonly more: "engine" | "layout"
  readonly when?: (one: RecordedCase) => boolean
}> = [
  // The engine adds the bias of a row cut on its first rank and holds zeros on the others.
  { family: /^gpt_oss$/, name: /experts\.down_proj_bias$/, more: "layout" },
  // Layers that predict further tokens are a model of their own in the engine.
  { family: /_mtp$/, name: /\.layers\.2\./, more: "layout" },
  // Its classes make embedding, norm and head on more stages than use them.
  {
    family: /^(gemma3|qwen3_moe)$/,
    name: /^(model\.(embed_tokens|norm)|lm_head)\.weight$/,
    more: "engine",
    when: ({ pipeline }) => pipeline !== undefined
  },
  // SGLang keeps the embedding of Gemma 3 whole.
  {
    family: /^gemma3$/,
    name: /^model\.embed_tokens\.weight$/,
    more: "engine",
    when: ({ expert_parallel }) => expert_parallel === undefined
  }
]

const markLoops = (into: Uint8Array, from: number, loops: Loops): void => {
  const [first, ...rest] = loops
  if (first === undefined) {
    into[from] = 1
    return
  }
  const [count, , step] = first
  for (let at = 0; at < count; at++) markLoops(into, from + at * step, rest)
}

const recordedElements = (
  { moves }: RecordedCase,
  sources: ReadonlyArray<readonly [string, Shape]>
): ReadonlyArray<Uint8Array> => {
  const held = sources.map(([, shape]) => new Uint8Array(elementCount(shape)))
  for (const [, , source, from, loops] of moves) markLoops(held[source]!, from, loops)
  return held
}

const ownElements = (
  layout: ModelLayout,
  rank: number,
  sources: ReadonlyArray<readonly [string, Shape]>
): ReadonlyArray<Uint8Array> => {
  const held = sources.map(([, shape]) => new Uint8Array(elementCount(shape)))
  const positions = new Map(sources.map(([name], at) => [name, at]))
  for (const { storedAs, pieces } of layout.tensorsOf(rank)) {
    const at = positions.get(storedAs)!
    const strides = rowMajorStrides(sources[at]![1])
    for (const { global } of pieces) {
      const mark = (dim: number, offset: number): void => {
        if (dim === global.length) {
          held[at]![offset] = 1
          return
        }
        const [from, to] = global[dim]!
        for (let index = from; index < to; index++) mark(dim + 1, offset + index * strides[dim]!)
      }
      mark(0, 0)
    }
  }
  return held
}

/** The engine's own way to place what degrees leave open. */
const enginePlacement = ({ expert_placement }: RecordedCase): Placement => ({
  stages: "middle",
  vocabulary: { multipleOf: 64, of: "whole" },
  experts: expert_placement === "round_robin" ? "round_robin" : "linear"
})

const checkCase = (recorded: RecordedPlacements, one: RecordedCase): string | undefined => {
  const sources = one.sources ?? recorded.sources
  const tensors = sources.map(([name, shape]): ModelTensor => ({ name, dtype: "float32", shape }))
  const stages = one.pipeline?.stages ?? 1
  const layout = cutModel({
    tensors,
    rules: {
      rules: [],
      family: {
        preset: recorded.hf_config.model_type as string,
        config: recorded.hf_config,
        placement: enginePlacement(one)
      }
    },
    config: { tp: one.tp, pp: stages, dp: 1, ...(one.expert_parallel === true ? { ep: one.tp } : {}) }
  })
  if (Result.isFailure(layout)) return layout.failure.message
  const rank = (one.pipeline?.stage ?? 0) * one.tp + one.rank
  const wanted = recordedElements(one, sources)
  const found = ownElements(layout.success, rank, sources)
  for (const [at, [name]] of sources.entries()) {
    const own = found[at]!
    const more = choices.find(
      (choice) => choice.family.test(recorded.family) && choice.name.test(name) && choice.when?.(one) !== false
    )?.more
    const wrong = wanted[at]!.findIndex((is, element) =>
      more === "layout"
        ? is === 1 && own[element] === 0
        : more === "engine"
          ? is === 0 && own[element] === 1
          : is !== own[element]
    )
    if (wrong < 0) continue
    return `${name}, element ${wrong}: the engine ${wanted[at]![wrong] === 1 ? "holds it on this rank, we do not" : "does not hold it on this rank, we do"}`
  }
  return undefined
}

/** All cases of a family. */
export const checkPlacements = (recorded: RecordedPlacements): ReadonlyArray<PlacementVerdict> =>
  recorded.cases.map((one) => ({ name: `${recorded.family} ${one.id}`, fault: checkCase(recorded, one) }))
