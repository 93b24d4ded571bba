// SPDX-License-Identifier: Apache-2.0
/**
 * Planning at scale: one rank's plan from interned rosters in memory, on one core, and the traffic of a whole cluster.
 * Making the rosters, which ranks exchange, is a row of its own.
 *
 * The reference column is the published planner of Megatron-LM replaying the whole schedule on the same kind of machine.
 */
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import type { DType } from "@tensorferry/core/base/DType"
import { median } from "@tensorferry/core/base/Numbers"
import { parametersOf, type Roster } from "@tensorferry/core/layout/Roster"
import { clusterTraffic } from "@tensorferry/core/planner/Estimate"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import {
  encodeContentsOf,
  encodeStatement,
  readRosters,
  readStatements
} from "@tensorferry/core/reshard/RosterMessages"
import {
  formatParallelConfig,
  type ModelTensor,
  type ParallelConfig,
  worldSizeOf
} from "@tensorferry/model/layout/ModelLayout"
import type { NamedSide } from "@tensorferry/model/names/NamedSide"
import { namedLayouts } from "@tensorferry/model/names/namedLayouts"
import { cutModel } from "@tensorferry/model/placement/cutModel"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Result from "effect/Result"
import { type BenchResult, sample } from "./measure.ts"

const shapesOf = (model: string): { readonly tensors: ReadonlyArray<ModelTensor>; readonly config: ModelConfig } => {
  const file = new URL(`./shapes/${model}.json.gz`, import.meta.url)
  const { tensors, config } = JSON.parse(gunzipSync(readFileSync(file)).toString("utf8")) as {
    readonly tensors: Readonly<Record<string, ReadonlyArray<number>>>
    readonly config: ModelConfig
  }
  return {
    config,
    tensors: Object.entries(tensors).map(([name, shape]) => ({ name, dtype: "bfloat16" satisfies DType, shape }))
  }
}

interface PlanningCase {
  readonly model: string
  readonly from: ParallelConfig
  readonly to: ParallelConfig
  /** Seconds. */
  readonly reference?: number
  readonly target: number
  readonly rounds: number
}

const cases: ReadonlyArray<PlanningCase> = [
  {
    model: "llama-3.1-70b",
    from: { tp: 8, pp: 4, dp: 4 },
    to: { tp: 8, pp: 1, dp: 8 },
    reference: 0.62,
    target: 0.01,
    rounds: 21
  },
  {
    model: "llama-3.1-405b",
    from: { tp: 8, pp: 16, dp: 4 },
    to: { tp: 16, pp: 1, dp: 16 },
    reference: 4.1,
    target: 0.03,
    rounds: 21
  },
  {
    model: "llama-3.1-405b",
    from: { tp: 8, pp: 16, dp: 8 },
    to: { tp: 16, pp: 1, dp: 64 },
    reference: 29.4,
    target: 0.06,
    rounds: 15
  },
  { model: "llama-3.1-405b", from: { tp: 8, pp: 16, dp: 64 }, to: { tp: 16, pp: 1, dp: 512 }, target: 1, rounds: 3 }
]

/** Ranks of the case whose exchange is measured: stating every rank's part, before the clock starts, takes long. */
const exchangeRanks = 2048

/** What one rank computes in an exchange of rosters. The messages are real; no network carries them. */
const exchange = (source: Roster, destination: Roster, name: string): ReadonlyArray<BenchResult> => {
  const state = (rank: number) => encodeStatement(rank, parametersOf(source, rank), parametersOf(destination, rank))
  const own = Array.from({ length: exchangeRanks }, (_, rank) => state(rank))
  const first = own.map(({ payload }) => payload)
  const statements = Result.getOrThrow(readStatements(first))
  const second = own.map((each, rank) => encodeContentsOf(statements, rank, each))
  const bytes = (payloads: ReadonlyArray<Uint8Array>) => payloads.reduce((sum, { length }) => sum + length, 0)
  const [statedBytes, contentBytes] = [bytes(first), bytes(second)]
  const last = exchangeRanks - 1
  return [
    {
      case: `roster exchange without network, stating what one rank holds: ${name}`,
      unit: "s",
      ours: median(sample(3, () => state(last))),
      lowerIsBetter: true
    },
    {
      case: `roster exchange without network, reading all ranks' messages: ${name}`,
      unit: "s",
      ours: median(sample(3, () => readRosters(Result.getOrThrow(readStatements(first)), second))),
      lowerIsBetter: true
    },
    {
      case: `roster exchange, bytes sent per rank (mean; ${statedBytes} statements + ${contentBytes} contents received by each): ${name}`,
      unit: "B",
      ours: (statedBytes + contentBytes) / exchangeRanks,
      lowerIsBetter: true
    }
  ]
}

interface NamedCase {
  readonly model: string
  readonly preset: string
  /** Numbers that the file of shapes does not state. */
  readonly config: ModelConfig
  readonly from: NamedSide
  readonly to: NamedSide
  readonly target: number
  /** Layers of each stage of the source, where they do not divide. */
  readonly stages?: ReadonlyArray<number>
}

/** Between a trainer's tensors and an engine's: layouts of both sides, then each rank's plan. */
const namedCases: ReadonlyArray<NamedCase> = [
  {
    model: "qwen3-30b-a3b",
    preset: "qwen3_moe",
    config: { model_type: "qwen3_moe", num_attention_heads: 32, num_key_value_heads: 4, head_dim: 128 },
    from: { convention: "megatron", config: { tp: 4, pp: 2, dp: 2, ep: 8, etp: 1 } },
    to: { convention: "vllm", config: { tp: 4, pp: 1, dp: 1, ep: 4 } },
    target: 1
  },
  {
    model: "llama-3.1-405b",
    preset: "llama",
    config: { model_type: "llama", num_attention_heads: 128, num_key_value_heads: 8, head_dim: 128 },
    from: { convention: "megatron", config: { tp: 8, pp: 16, dp: 8 } },
    to: { convention: "vllm", config: { tp: 16, pp: 1, dp: 64 } },
    stages: [7, ...Array.from({ length: 14 }, () => 8), 7],
    target: 0.12
  }
]

const planningOfNames = (): ReadonlyArray<BenchResult> =>
  namedCases.flatMap(({ model, preset, config, from, to, target, stages }) => {
    const { tensors } = shapesOf(model)
    const make = () =>
      Result.getOrThrow(
        namedLayouts(tensors, {
          from,
          to,
          ranks: "disjoint",
          family: { preset, config, placement: stages === undefined ? {} : { stages } }
        })
      )
    const layouts = make()
    const name = `${model} ${from.convention}:${formatParallelConfig(from.config)} -> ${to.convention}:${formatParallelConfig(to.config)}, ${layouts.size} ranks`
    const { source, destination } = layouts
    const one = sample(15, () => {
      planRank(Result.getOrThrow(indexRosters(source.roster, destination.roster)), 3)
    })
    return [
      { case: `plan of one rank: ${name}`, unit: "s", ours: median(one), target, lowerIsBetter: true },
      {
        case: `layouts of all ranks, then plan of one: ${name}`,
        unit: "s",
        ours: median(sample(9, () => make().planFor(3))),
        target,
        lowerIsBetter: true
      },
      {
        case: `layouts and plans of all ranks, by rank: ${name}`,
        unit: "s",
        ours:
          median(
            sample(1, () => {
              const { planFor, size } = make()
              for (let rank = 0; rank < size; rank++) planFor(rank)
            })
          ) / layouts.size,
        target,
        lowerIsBetter: true
      }
    ]
  })

export const planning = (): ReadonlyArray<BenchResult> => [...planningOfNames(), ...planningOfLayouts()]

const planningOfLayouts = (): ReadonlyArray<BenchResult> =>
  cases.flatMap(({ model, from, to, reference, target, rounds }) => {
    const { tensors, config } = shapesOf(model)
    const make = () => {
      const rules = { rules: [], family: { preset: "llama", config, placement: {} } }
      const source = Result.getOrThrow(cutModel({ tensors, rules, config: from }))
      const destination = cutModel({ tensors, rules, config: to, firstRank: worldSizeOf(from) })
      return { source: source.roster, destination: Result.getOrThrow(destination).roster }
    }
    const rosters = make()
    const ranks = worldSizeOf(from) + worldSizeOf(to)
    const name = `${model} TP${from.tp} PP${from.pp} DP${from.dp} -> TP${to.tp} DP${to.dp}, ${ranks} ranks`
    const bytes = JSON.stringify(rosters).length
    const one = sample(rounds, () => {
      planRank(Result.getOrThrow(indexRosters(rosters.source, rosters.destination)), 3)
    })
    const results: Array<BenchResult> = [
      {
        case: `plan of one rank: ${name}`,
        unit: "s",
        ours: median(one),
        ...(reference === undefined ? {} : { reference }),
        target,
        lowerIsBetter: true
      },
      {
        case: `making the rosters (${bytes} bytes of JSON, ${Math.round(bytes / ranks)} per rank): ${name}`,
        unit: "s",
        ours: median(sample(Math.min(3, rounds), make)),
        lowerIsBetter: true
      }
    ]
    if (ranks === exchangeRanks) results.push(...exchange(rosters.source, rosters.destination, name))
    if (ranks > 10_000) {
      const index = Result.getOrThrow(indexRosters(rosters.source, rosters.destination))
      const matrix = sample(1, () => clusterTraffic(index))
      results.push({
        case: `traffic of the cluster: ${name}`,
        unit: "s",
        ours: median(matrix),
        target: 10,
        lowerIsBetter: true
      })
    }
    return results
  })
