// SPDX-License-Identifier: Apache-2.0
/**
 * Ways back to the checkpoint: what Megatron-Bridge exported of the layouts that it had loaded, and what slime makes of
 * numbered shards, against the way back of our mapping.
 */
import type { ModelTensor } from "@tensorferry/model/layout/ModelLayout"
import { placeOf } from "@tensorferry/model/layout/ParallelConfig"
import { megatron } from "@tensorferry/model/names/conventions/megatron"
import { type HeldTensor, inverse, shardsOf, wayBack } from "@tensorferry/model/names/inverse"
import { type MappedModel, mapModel } from "@tensorferry/model/names/mapModel"
import { linearStrip } from "@tensorferry/model/names/Strips"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Result from "effect/Result"
import {
  compareRank,
  elementMap,
  firstNumbers,
  type Named,
  type NameVerdict,
  type RecordedFamily,
  type RecordedMapping,
  type RecordedRank,
  sideOf
} from "./nameMappings.ts"

/** An export of a layout, compared with the checkpoint that it was loaded from. */
interface RecordedExport {
  readonly id: string
  readonly exact: boolean
  readonly missing: ReadonlyArray<string>
  /** Names with the shapes that came out. */
  readonly differs: ReadonlyArray<readonly [string, ReadonlyArray<number>]>
}

interface RecordedConversion extends RecordedMapping {
  readonly tp: number
  readonly hf_config: ModelConfig
  readonly sources: Named
}

/** A file of recorded ways to a trainer and back. */
export interface RecordedWaysBack {
  readonly families: ReadonlyArray<RecordedFamily & { readonly export_back: ReadonlyArray<RecordedExport> }>
  readonly to_hf: ReadonlyArray<RecordedConversion>
}

const tensorsOf = (named: Named): ReadonlyArray<ModelTensor> =>
  named.map(([name, shape]) => ({ name, dtype: "bfloat16", shape }))

const mapLayout = (family: RecordedFamily, one: RecordedRank): Result.Result<MappedModel, Error> =>
  Result.gen(function* () {
    const tensors = tensorsOf(family.sources)
    return yield* mapModel({ ...(yield* sideOf("megatron", family, one, tensors)), tensors })
  })

/** What is wrong with a way back: every element must be the one that the shard holds of the checkpoint, once. */
export const compareBack = (
  back: ReadonlyArray<HeldTensor>,
  shards: ReadonlyArray<HeldTensor>,
  sources: Named
): string | undefined => {
  const numbers = firstNumbers(sources)
  const firsts = new Map(sources.map(([name], at) => [name, numbers[at]!]))
  const held = new Map(shards.map((shard) => [shard.name, elementMap(shard, firsts)]))
  const scalars = new Map(shards.map(({ name, strips }) => [name, strips[0]?.scalar]))
  for (const { name, shape, strips } of back) {
    const first = firsts.get(name)!
    const fault = elementMap({ shape, strips }, new Map(shards.map((shard) => [shard.name, 0]))).fault
    if (fault !== undefined) return `${name}: ${fault}`
    for (const strip of strips) {
      const { at, from, loops, scalar } = linearStrip(strip, shape)
      const own = held.get(strip.source!)!.numbers
      let walked: ReadonlyArray<readonly [number, number]> = [[at, from]]
      for (const [count, step, source] of loops)
        walked = walked.flatMap(([to, of]) =>
          Array.from({ length: count }, (_, index) => [to + index * step, of + index * source] as const)
        )
      const wrong = walked.find(([to, of]) => own[of] !== first + to)
      if (wrong !== undefined) return `${name}, element ${wrong[0]}: ${own[wrong[1]]} comes back`
      const there = scalars.get(strip.source!)
      const sum = typeof there === "object" && typeof scalar === "object" ? there.add + scalar.add : undefined
      if ((there !== undefined || scalar !== undefined) && sum !== 0) return `${name}: its function is not undone`
    }
  }
  return undefined
}

const checkExport = (family: RecordedWaysBack["families"][number], recorded: RecordedExport): string | undefined => {
  const one = family.cases.find(({ id }) => id.startsWith(`${recorded.id}/`))
  if (one === undefined) return "no rank of it is recorded"
  const model = mapLayout(family, one)
  if (Result.isFailure(model)) return model.failure.message
  const back = wayBack(model.success, tensorsOf(family.sources))
  const shards = shardsOf(model.success)
  if (Result.isFailure(back)) return back.failure.message
  if (Result.isFailure(shards)) return shards.failure.message
  const names = new Set(back.success.map(({ name }) => name))
  const missing = family.sources.flatMap(([name]) => (names.has(name) ? [] : [name]))
  if (missing.join() !== recorded.missing.join()) return `[${missing}] do not come back, recorded [${recorded.missing}]`
  return compareBack(back.success, shards.success, family.sources)
}

const checkConversion = (recorded: RecordedConversion): string | undefined => {
  const { tp, hf_config: hfConfig, sources, destinations } = recorded
  const tensors = tensorsOf(destinations)
  const config = { tp, pp: 1, dp: 1, ep: 1, etp: tp }
  const options = { stages: 1, tp, vocabularyDivisor: 16 }
  const back = Result.gen(function* () {
    const preset = hfConfig.model_type as string
    const structure = yield* structureOf(tensors, { preset, config: hfConfig, placement: {} })
    const mapping = megatron.mapping(structure, options)
    const model = yield* mapModel({ structure, tensors, mapping, config, placement: megatron.placement(options) })
    const held: Array<HeldTensor> = []
    for (let rank = 0; rank < tp; rank++) {
      const mapped = yield* model.rankAt(placeOf(config, 0, rank))
      for (const tensor of mapped.tensors)
        held.push({ ...tensor, name: tp === 1 ? tensor.name : `tp${rank}:${tensor.name}` })
    }
    const wrong = sources.find(([name, shape]) => held.find((one) => one.name === name)?.shape.join() !== shape.join())
    return { tensors: yield* inverse(held, tensors), wrong }
  })
  if (Result.isFailure(back)) return back.failure.message
  const { tensors: made, wrong } = back.success
  if (wrong !== undefined) return `${wrong[0]} is not held in shape [${wrong[1]}]`
  const rank = { tensors: made.map((tensor) => ({ ...tensor, rule: tensor.name })), aliases: new Map<string, string>() }
  return compareRank(rank, recorded, sources)
}

/** All exports and conversions of a recording. */
export const checkWaysBack = ({ families, to_hf: conversions }: RecordedWaysBack): ReadonlyArray<NameVerdict> => [
  ...families.flatMap((family) =>
    family.export_back.map((recorded) => ({
      name: `export of ${recorded.id}`,
      fault: checkExport(family, recorded)
    }))
  ),
  ...conversions.map((recorded) => ({ name: recorded.id, fault: checkConversion({ ...recorded, aliases: {} }) }))
]
