// SPDX-License-Identifier: Apache-2.0
/** The laws of fan-out over generated topologies and demands, and the shapes that it takes where they are known. */
import { assert, describe, it } from "@effect/vitest"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type Demand, placeDemand } from "../../src/fanout/Demand.ts"
import { chunksOf, type FanOut, fanOutOf, linkBytes, planFanOut } from "../../src/fanout/FanOut.ts"
import { checkFanOut } from "../../src/fanout/FanOutCheck.ts"
import { lowerBound } from "../../src/fanout/LowerBound.ts"
import { indexTopology, Topology, type TopologyIndex, uniformTopology } from "../../src/topology/Topology.ts"
import { type FanOutCase, fanOutCase } from "./support.ts"

const runs = isSoak ? 5000 : 400

const indexed = (topology: Topology): TopologyIndex => Result.getOrThrow(indexTopology(topology))
const planned = (demand: Demand, topology: TopologyIndex, options = {}): FanOut =>
  Result.getOrThrow(planFanOut(demand, topology, options))

/** Carries chunks along edges, one hop a round, and answers who has what in the end. */
const spread = (fanOut: FanOut, demand: Demand): ReadonlyMap<string, number> => {
  const arrivals = new Map<string, number>()
  for (const tree of fanOut.trees) {
    const { holders, key } = demand.bundles[tree.bundle]!
    const chunks = Math.min(3, chunksOf(fanOut, tree))
    assert.isAtLeast(chunks, 1)
    const has = new Map(holders.map((rank) => [rank, chunks]))
    const sent = tree.edges.map(() => 0)
    for (let isMoving = true; isMoving; ) {
      isMoving = false
      const now = new Map(has)
      for (const [at, { from, to }] of tree.edges.entries()) {
        if (sent[at]! >= chunks || (now.get(from) ?? 0) <= sent[at]!) continue
        sent[at]! += 1
        isMoving = true
        if (from !== to) has.set(to, (has.get(to) ?? 0) + 1)
        if (sent[at] === chunks)
          arrivals.set(`${key}@${tree.offset} ${to}`, (arrivals.get(`${key}@${tree.offset} ${to}`) ?? 0) + 1)
      }
    }
  }
  return arrivals
}

const holds = ({ topology: stated, demand }: FanOutCase): void => {
  const topology = indexed(stated)
  const fanOut = planned(demand, topology)
  const what = JSON.stringify({ stated, demand })
  assert.deepStrictEqual(checkFanOut(fanOut, demand, topology), [], what)
  const arrivals = spread(fanOut, demand)
  for (const tree of fanOut.trees) {
    const { key, wanters } = demand.bundles[tree.bundle]!
    for (const rank of wanters) assert.strictEqual(arrivals.get(`${key}@${tree.offset} ${rank}`), 1, what)
  }
  const placed = Result.getOrThrow(placeDemand(demand, topology))
  const expected = placed.reduce((sum, { bytes, remote }) => sum + bytes * remote.length, 0)
  const links = linkBytes(fanOut, topology)
  assert.strictEqual(
    links.reduce((sum, { sent }) => sum + sent, 0),
    expected,
    what
  )
  for (const [host] of stated.hosts.entries()) {
    const received = links.filter((link) => link.host === host).reduce((sum, link) => sum + link.received, 0)
    const wanted = placed.filter(({ remote }) => remote.includes(host)).reduce((sum, { bytes }) => sum + bytes, 0)
    assert.strictEqual(received, wanted, what)
  }
  assert.isAtLeast(fanOut.predictedSeconds, fanOut.bound.seconds, what)
  // What one rank finds for itself is what the others find about it.
  const ranks = stated.hosts.flatMap((host) => host.ranks)
  const again = planned(demand, indexed(stated))
  const parts = new Map(ranks.map((rank) => [rank, fanOutOf(rank % 2 === 0 ? again : fanOut, rank)]))
  for (const [rank, own] of parts)
    for (const { tree, children } of own)
      for (const { to } of children)
        assert.strictEqual(parts.get(to)!.find((part) => part.tree === tree)?.parent?.from, rank, what)
}

describe("the laws of fan-out", () => {
  it.effect.prop(
    "hold for generated topologies and demands",
    { case: fanOutCase },
    (given) => Effect.sync(() => holds(given.case)),
    {
      arbitrary: { runs, seed: isSoak ? `${Date.now()}` : "fan-out" },
      timeout: isSoak ? 900_000 : 60_000
    }
  )

  it.effect("are the same after a topology was written and read", () =>
    Effect.gen(function* () {
      for (const { topology, demand } of yield* Arbitrary.sampleEffect(fanOutCase, { count: 20, seed: "json" })) {
        const read = Schema.decodeUnknownSync(Topology)(JSON.parse(JSON.stringify(topology)))
        assert.deepStrictEqual(planned(demand, indexed(read)), planned(demand, indexed(topology)))
      }
    })
  )

  it("a check finds an edge left out, doubled, turned around or from a rank that has nothing", () => {
    const topology = indexed(uniformTopology({ hosts: 4, ranksPerHost: 2, bytesPerSecond: 1e9 }))
    const demand: Demand = { bundles: [{ key: "b", bytes: 2 ** 20, holders: [0], wanters: [2, 3, 4, 5, 6, 7] }] }
    const fanOut = planned(demand, topology)
    const tree = fanOut.trees[0]!
    const faultsOf = (edges: typeof tree.edges) =>
      checkFanOut({ ...fanOut, trees: [{ ...tree, edges }] }, demand, topology)
    assert.deepStrictEqual(faultsOf(tree.edges), [])
    for (const at of tree.edges.keys()) {
      assert.isNotEmpty(faultsOf(tree.edges.filter((_, other) => other !== at)))
      assert.isNotEmpty(faultsOf([...tree.edges, tree.edges[at]!]))
      assert.isNotEmpty(faultsOf(tree.edges.map((edge, other) => (other === at ? { ...edge, from: 1 } : edge))))
      assert.isNotEmpty(
        faultsOf(tree.edges.map((edge, other) => (other === at ? { ...edge, from: edge.to, to: edge.from } : edge)))
      )
    }
    assert.isNotEmpty(faultsOf([...tree.edges].reverse()))
    assert.isNotEmpty(checkFanOut({ ...fanOut, trees: [] }, demand, topology))
  })
})

describe("the shape of a fan-out", () => {
  const gigabyte = 2 ** 30

  it("is balanced over replicas of a source", () => {
    const topology = indexed(uniformTopology({ hosts: 12, ranksPerHost: 1, bytesPerSecond: 1e9 }))
    const demand: Demand = {
      bundles: [{ key: "b", bytes: gigabyte, holders: [0, 1, 2, 3], wanters: [4, 5, 6, 7, 8, 9, 10, 11] }]
    }
    const sent = linkBytes(planned(demand, topology), topology).slice(0, 4)
    for (const link of sent) assert.closeTo(link.sent, sent[0]!.sent, gigabyte / 8)
    assert.isAbove(sent[0]!.sent, gigabyte * 0.9)
  })

  it("sends once from a single source, and no relay sends more than it gets", () => {
    const topology = indexed(uniformTopology({ hosts: 33, ranksPerHost: 1, bytesPerSecond: 1e9 }))
    const wanters = Array.from({ length: 32 }, (_, at) => at + 1)
    const fanOut = planned({ bundles: [{ key: "b", bytes: 16 * gigabyte, holders: [0], wanters }] }, topology)
    const [source, ...relays] = linkBytes(fanOut, topology)
    assert.strictEqual(source!.sent, 16 * gigabyte)
    for (const { received, sent } of relays) {
      assert.strictEqual(received, 16 * gigabyte)
      assert.isAtMost(sent, received * 1.13)
    }
  })

  it("uses all links of a host, by their speed", () => {
    const [link] = uniformTopology({ hosts: 1, ranksPerHost: 1, bytesPerSecond: 1e9 }).hosts[0]!.links
    const links = [link!, { ...link!, bytesPerSecond: 3e9 }]
    const topology = indexed({
      format: "tensorferry.topology",
      version: 1,
      hosts: [0, 1].map((rank) => ({ id: `h${rank}`, ranks: [rank], links, localBytesPerSecond: 1e11 }))
    })
    const fanOut = planned({ bundles: [{ key: "b", bytes: gigabyte, holders: [0], wanters: [1] }] }, topology)
    const sent = linkBytes(fanOut, topology).map((each) => each.sent)
    assert.closeTo(sent[0]! / gigabyte, 0.25, 0.07)
    assert.closeTo(sent[1]! / gigabyte, 0.75, 0.07)
  })

  it("is flat where data is short", () => {
    const topology = indexed(
      uniformTopology({ hosts: 257, ranksPerHost: 1, bytesPerSecond: 1e9, latencySeconds: 1e-3 })
    )
    const wanters = Array.from({ length: 256 }, (_, at) => at + 1)
    const depthFor = (bytes: number) => {
      const { trees } = planned({ bundles: [{ key: "b", bytes, holders: [0], wanters }] }, topology)
      const depths = new Map([[0, 0]])
      for (const { from, to } of trees[0]!.edges) depths.set(to, depths.get(from)! + 1)
      return Math.max(...depths.values())
    }
    assert.strictEqual(depthFor(1000), 1)
    assert.isAtMost(depthFor(2 ** 22), 8)
  })

  it("crosses from zone to zone as seldom as it can", () => {
    const { hosts, ...rest } = uniformTopology({ hosts: 9, ranksPerHost: 1, bytesPerSecond: 1e9 })
    const zoneOf = (rank: number) => (rank === 0 || rank % 2 === 1 ? "a" : "b")
    const topology = indexed({ ...rest, hosts: hosts.map((host, at) => ({ ...host, zone: zoneOf(at) })) })
    const demand: Demand = { bundles: [{ key: "b", bytes: gigabyte, holders: [0], wanters: [1, 2, 3, 4, 5, 6, 7, 8] }] }
    const { trees } = planned(demand, topology, { children: 1 })
    const crossings = trees.map(({ edges }) => edges.filter(({ from, to }) => zoneOf(from) !== zoneOf(to)).length)
    assert.strictEqual(crossings[0], 1)
    assert.isAtMost(Math.max(...crossings), 3)
  })
})

describe("the lower bound", () => {
  const at = (demand: Demand, hosts = 4) => {
    const topology = indexed(
      uniformTopology({ hosts, ranksPerHost: 2, bytesPerSecond: 1e9, localBytesPerSecond: 1e10 })
    )
    return lowerBound(Result.getOrThrow(placeDemand(demand, topology)), topology)
  }
  it("is what the busiest host gets, what one host alone has, what all send, and what is copied within hosts", () => {
    const ingress = at({ bundles: [{ key: "b", bytes: 1e9, holders: [0, 2, 4], wanters: [6] }] })
    assert.deepInclude(ingress, { seconds: 1, reason: "ingress" })
    const two = [2, 4].map((wanter) => ({ key: `to ${wanter}`, bytes: 1e9, holders: [0], wanters: [wanter] }))
    assert.deepInclude(at({ bundles: two }), { seconds: 2, reason: "egress" })
    const local = at({ bundles: [{ key: "b", bytes: 1e9, holders: [0], wanters: [0, 1] }] })
    assert.deepInclude(local, { seconds: 0.2, reason: "local" })
    assert.deepInclude(at({ bundles: [{ key: "b", bytes: 1, holders: [0], wanters: [2] }] }), { reason: "latency" })
  })
})

describe("planning is refused", () => {
  const topology = uniformTopology({ hosts: 2, ranksPerHost: 2, bytesPerSecond: 1e9 })
  it("where nobody holds what is wanted, or a rank is on no host", () => {
    const refuse = (holders: ReadonlyArray<number>, wanters: ReadonlyArray<number>) =>
      Result.getOrThrow(
        Result.flip(planFanOut({ bundles: [{ key: "b", bytes: 1, holders, wanters }] }, indexed(topology)))
      )
    assert.strictEqual(refuse([], [1]).reason._tag, "NoSource")
    assert.deepInclude(refuse([0], [9]), { ranks: [9] })
    assert.include(refuse([0], [9]).message, "Rank 9")
  })
  it("where the topology has a rank twice, a name twice or a host without a link", () => {
    const [first, second] = topology.hosts
    const refuse = (hosts: Topology["hosts"]) =>
      Result.getOrThrow(Result.flip(indexTopology({ ...topology, hosts }))).message
    assert.include(refuse([first!, { ...second!, ranks: [1] }]), "Rank 1 is on host host-0 and on host host-1")
    assert.include(refuse([first!, { ...second!, id: "host-0" }]), "Two hosts are called host-0")
    assert.include(refuse([{ ...first!, links: [] }]), "Host host-0 has no link")
  })
})
