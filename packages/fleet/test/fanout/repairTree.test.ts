// SPDX-License-Identifier: Apache-2.0
/** Trees without ranks that are gone: whoever lives gets everything that a living holder has, and nobody gets it twice. */
import { assert, describe, it } from "@effect/vitest"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Demand } from "../../src/fanout/Demand.ts"
import { planFanOut } from "../../src/fanout/FanOut.ts"
import { checkFanOut } from "../../src/fanout/FanOutCheck.ts"
import { repairTree } from "../../src/fanout/repairTree.ts"
import { indexTopology, uniformTopology } from "../../src/topology/Topology.ts"
import { type FanOutCase, fanOutCase } from "./support.ts"

const mask = Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 20 - 1 })))

const holds = ({ topology: stated, demand }: FanOutCase, deaths: number, provers: number): void => {
  const topology = Result.getOrThrow(indexTopology(stated))
  const fanOut = Result.getOrThrow(planFanOut(demand, topology))
  const all = stated.hosts.flatMap(({ ranks }) => ranks)
  const dead = new Set(all.filter((_, at) => (deaths & (1 << (at % 20))) !== 0))
  const what = JSON.stringify({ stated, demand, dead: [...dead] })
  for (const tree of fanOut.trees) {
    const bundle = demand.bundles[tree.bundle]!
    const lives = (rank: number): boolean => !dead.has(rank)
    const proven = bundle.wanters.filter((rank, at) => lives(rank) && (provers & (1 << (at % 20))) !== 0)
    const { tree: repaired, lost } = repairTree(tree, bundle, topology, dead, proven)
    const holders = [...bundle.holders, ...proven].filter(lives)
    if (holders.length > 0) assert.deepStrictEqual(lost, [], what)
    const wanters = bundle.wanters.filter((rank) => lives(rank) && !lost.includes(rank))
    // Who has proven it needs no edge, and may keep the one it had.
    const reached = new Set(repaired.edges.map(({ to }) => to))
    const left = wanters.filter((rank) => reached.has(rank) || !proven.includes(rank))
    if (left.length === 0) {
      assert.deepStrictEqual(repaired.edges, [], what)
      continue
    }
    const asked: Demand = { bundles: demand.bundles.map((each) => ({ ...each, wanters: [] })) }
    const bundles = asked.bundles.map((each, at) =>
      at === tree.bundle ? { ...each, bytes: tree.bytes, holders: bundle.holders.filter(lives), wanters: left } : each
    )
    const base = { ...fanOut, trees: [{ ...repaired, offset: 0 }] }
    // A host with a prover may be entered for another rank, whose parent lives elsewhere and goes on.
    const faults = checkFanOut(base, { bundles }, topology).filter(
      (fault) => proven.length === 0 || !/enters host|before it has it/.test(fault)
    )
    assert.deepStrictEqual(faults, [], what)
    const kept = new Set(tree.edges.filter(({ from, to }) => lives(from) && lives(to)))
    const parents = new Map(repaired.edges.map((edge) => [edge.to, edge]))
    for (const edge of kept)
      if (!lost.includes(edge.to)) assert.strictEqual(parents.get(edge.to)?.from, edge.from, what)
  }
}

describe("a tree whose ranks die", () => {
  it.effect.prop(
    "still reaches everybody who lives, once, and keeps every edge between living ranks",
    { case: fanOutCase, deaths: mask, provers: mask },
    (given) => Effect.sync(() => holds(given.case, given.deaths, given.provers)),
    { arbitrary: { runs: isSoak ? 10_000 : 400, seed: isSoak ? `${Date.now()}` : "repair" }, timeout: 600_000 }
  )

  const topology = Result.getOrThrow(indexTopology(uniformTopology({ hosts: 4, ranksPerHost: 2, bytesPerSecond: 1e9 })))
  const bundle = { key: "b", bytes: 2 ** 20, holders: [0, 1], wanters: [2, 3, 4, 5, 6, 7] }
  const chain = Result.getOrThrow(planFanOut({ bundles: [bundle] }, topology, { children: 1 })).trees[0]!
  const from = (dead: ReadonlyArray<number>) =>
    new Map(repairTree(chain, bundle, topology, new Set(dead)).tree.edges.map((edge) => [edge.to, edge.from]))

  it("gives orphans to a neighbour of the same host, then to the nearest ancestor, then to another holder", () => {
    const network = chain.edges.filter(({ via }) => via === "network")
    const [first, second, third] = network.map(({ to }) => to)
    const neighbour = chain.edges.find((edge) => edge.from === second && edge.via === "host")!.to
    assert.strictEqual(from([second!]).get(neighbour), first)
    assert.strictEqual(from([second!]).get(third!), neighbour)
    assert.strictEqual(from([second!, neighbour]).get(third!), first)
    assert.strictEqual(from([network[0]!.from]).get(first!), 1 - network[0]!.from)
  })

  it("names who gets nothing more where no holder lives", () => {
    assert.deepStrictEqual(repairTree(chain, bundle, topology, new Set([0, 1])).lost, [2, 3, 4, 5, 6, 7])
    assert.deepStrictEqual(repairTree(chain, bundle, topology, new Set([0, 1]), [7]).lost, [])
  })
})
