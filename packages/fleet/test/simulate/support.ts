// SPDX-License-Identifier: Apache-2.0
/** Updates of whole fleets by simulation, beside their bounds. Hosts of 8 ranks with one link of 400 Gbit/s. */
import * as Result from "effect/Result"
import type { Bundle, Demand } from "../../src/fanout/Demand.ts"
import { planFanOut } from "../../src/fanout/FanOut.ts"
import { simulateFanOut } from "../../src/simulate/simulateFanOut.ts"
import { indexTopology, uniformTopology } from "../../src/topology/Topology.ts"

const perHost = 8

/** A trainer on the first hosts and replicas on each other host, all cut in eight; bytes are those of one cut. */
const cutInEight = (hosts: number, trainers: number, bytes: number): Demand => ({
  bundles: Array.from({ length: perHost }, (_, cut): Bundle => {
    const ranks = Array.from({ length: hosts }, (_, host) => host * perHost + cut)
    return { key: `cut ${cut}`, bytes, holders: ranks.slice(0, trainers), wanters: ranks.slice(trainers) }
  })
})

/** A trainer in stages of one host each; replicas over two hosts each, every rank with a part of each stage. */
const staged = (hosts: number, stages: number, bytes: number): Demand => ({
  bundles: Array.from({ length: stages * 2 * perHost }, (_, at): Bundle => {
    const [stage, cut] = [Math.floor(at / (2 * perHost)), at % (2 * perHost)]
    const wanters = Array.from(
      { length: (hosts - stages) / 2 },
      (_, replica) => stages * perHost + replica * 2 * perHost + cut
    )
    return { key: `stage ${stage} cut ${cut}`, bytes, holders: [stage * perHost + (cut >> 1)], wanters }
  })
})

/** Simulated time by bound, for a fleet of so many hosts. */
export const aboveBound = (hosts: number): ReadonlyArray<{ readonly name: string; readonly ratio: number }> => {
  const topology = Result.getOrThrow(
    indexTopology(uniformTopology({ hosts, ranksPerHost: perHost, bytesPerSecond: 50e9 }))
  )
  const demands: ReadonlyArray<readonly [name: string, demand: Demand]> = [
    ["one trainer host", cutInEight(hosts, 1, 2e9)],
    ["a fourth of the hosts are trainers", cutInEight(hosts, hosts / 4, 2e9)],
    ["trainer in eight stages", staged(hosts, 8, 1e9 / 8)]
  ]
  return demands.map(([name, demand]) => {
    const fanOut = Result.getOrThrow(planFanOut(demand, topology))
    const { seconds } = simulateFanOut(fanOut, demand, topology)
    return { name: `${name}, ${hosts} hosts`, ratio: seconds / fanOut.bound.seconds }
  })
}
