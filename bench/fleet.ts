// SPDX-License-Identifier: Apache-2.0
/**
 * Fleets: planning how an update fans out, for one rank of many thousand, and the time of the update by simulation beside
 * the least that the links allow. Hosts of 8 ranks with one link of 400 Gbit/s. The bound is no reference: nothing reaches it,
 * since the last host cannot begin before the first byte has come through others.
 */
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import type { DType } from "@tensorferry/core/base/DType"
import { median } from "@tensorferry/core/base/Numbers"
import { indexRosters, type PlanIndex } from "@tensorferry/core/planner/RosterPlanner"
import { fanOutOf, planFanOut } from "@tensorferry/fleet/fanout/FanOut"
import { planDemand } from "@tensorferry/fleet/fanout/planDemand"
import { simulateFanOut } from "@tensorferry/fleet/simulate/simulateFanOut"
import { indexTopology, type TopologyIndex, uniformTopology } from "@tensorferry/fleet/topology/Topology"
import { type ParallelConfig, worldSizeOf } from "@tensorferry/model/layout/ModelLayout"
import { cutModel } from "@tensorferry/model/placement/cutModel"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Result from "effect/Result"
import { type BenchResult, sample } from "./measure.ts"

interface FleetCase {
  readonly model: string
  readonly from: ParallelConfig
  readonly to: ParallelConfig
  /** A longer chunk than the planner's, where the simulation would take too long; it makes the update slower. */
  readonly chunkBytes?: number
}

const cases: ReadonlyArray<FleetCase> = [
  { model: "llama-3.1-8b", from: { tp: 8, pp: 1, dp: 1 }, to: { tp: 8, pp: 1, dp: 255 } },
  { model: "llama-3.1-8b", from: { tp: 8, pp: 1, dp: 1 }, to: { tp: 8, pp: 1, dp: 2047 } },
  { model: "llama-3.1-8b", from: { tp: 2, pp: 2, dp: 4 }, to: { tp: 1, pp: 1, dp: 2032 } },
  { model: "llama-3.1-405b", from: { tp: 8, pp: 16, dp: 8 }, to: { tp: 16, pp: 1, dp: 64 } },
  { model: "llama-3.1-405b", from: { tp: 8, pp: 16, dp: 64 }, to: { tp: 16, pp: 1, dp: 512 }, chunkBytes: 2 ** 26 }
]

const rostersOf = ({ model, from, to }: FleetCase): (() => PlanIndex) => {
  const file = new URL(`./shapes/${model}.json.gz`, import.meta.url)
  const { tensors, config } = JSON.parse(gunzipSync(readFileSync(file)).toString("utf8")) as {
    readonly tensors: Readonly<Record<string, ReadonlyArray<number>>>
    readonly config: ModelConfig
  }
  const named = Object.entries(tensors).map(([name, shape]) => ({
    name,
    dtype: "bfloat16" as const satisfies DType,
    shape
  }))
  const rules = { rules: [], family: { preset: "llama", config, placement: {} } }
  const source = Result.getOrThrow(cutModel({ tensors: named, rules, config: from })).roster
  const cut = cutModel({ tensors: named, rules, config: to, firstRank: worldSizeOf(from) })
  const destination = Result.getOrThrow(cut).roster
  return () => Result.getOrThrow(indexRosters(source, destination))
}

const topologyOf = (ranks: number): TopologyIndex =>
  Result.getOrThrow(
    indexTopology(uniformTopology({ hosts: Math.ceil(ranks / 8), ranksPerHost: 8, bytesPerSecond: 50e9 }))
  )

const textOf = ({ tp, pp, dp }: ParallelConfig): string => `TP${tp} PP${pp} DP${dp}`

export const fleet = (): ReadonlyArray<BenchResult> =>
  cases.flatMap((given) => {
    const index = rostersOf(given)()
    const ranks = worldSizeOf(given.from) + worldSizeOf(given.to)
    const name = `${given.model} ${textOf(given.from)} -> ${textOf(given.to)}, ${ranks} ranks`
    const topology = topologyOf(ranks)
    const { chunkBytes } = given
    const plan = (options: { readonly chunkBytes?: number } = {}) => {
      const demand = planDemand(index)
      return { demand, fanOut: Result.getOrThrow(planFanOut(demand, topology, options)) }
    }
    const planning = sample(5, () => fanOutOf(plan().fanOut, ranks - 1))
    const { demand, fanOut } = plan(chunkBytes === undefined ? {} : { chunkBytes })
    const { seconds, chunks } = simulateFanOut(fanOut, demand, topology)
    const { bound, trees, children } = fanOut
    const how = `${bound.seconds.toPrecision(3)} s by ${bound.reason}, ${trees.length} trees of ${children} children, ${chunks} chunks of ${fanOut.chunkBytes / 2 ** 20} MiB`
    return [
      {
        case: `fan-out of one rank, from an index in memory: ${name}`,
        unit: "s",
        ours: median(planning),
        target: 1,
        lowerIsBetter: true
      },
      {
        case: `simulated update beside its bound (${how}): ${name}`,
        unit: "x",
        ours: seconds / bound.seconds,
        target: 1.2,
        lowerIsBetter: true
      }
    ]
  })
