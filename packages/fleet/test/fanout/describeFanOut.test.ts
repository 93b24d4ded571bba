// SPDX-License-Identifier: Apache-2.0
/** A fan-out in words, whole for a small one and shortened for a large one. */
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import { describeFanOut } from "../../src/fanout/describeFanOut.ts"
import { planFanOut } from "../../src/fanout/FanOut.ts"
import { indexTopology, uniformTopology } from "../../src/topology/Topology.ts"

const planned = (hosts: number, bytes: number) => {
  const topology = Result.getOrThrow(indexTopology(uniformTopology({ hosts, ranksPerHost: 2, bytesPerSecond: 1e9 })))
  const wanters = Array.from({ length: 2 * hosts - 2 }, (_, at) => at + 2)
  const demand = { bundles: [{ key: "weights", bytes, holders: [0, 1], wanters }] }
  return { topology, demand, fanOut: Result.getOrThrow(planFanOut(demand, topology, { children: 1, chunkBytes: 1e6 })) }
}

describe("a fan-out in words", () => {
  it("has each rank below the one that sends to it, and what links carry", () => {
    const { fanOut, demand, topology } = planned(4, 1e6)
    assert.deepStrictEqual(describeFanOut(fanOut, demand, topology).split("\n").slice(2), [
      "",
      "weights from byte 0: 1 MB to 6 ranks",
      "  rank 0 on host-0",
      "    rank 2 on host-1, link-0 to link-0",
      "      rank 3 on host-1",
      "      rank 4 on host-2, link-0 to link-0",
      "        rank 5 on host-2",
      "        rank 6 on host-3, link-0 to link-0",
      "          rank 7 on host-3",
      "",
      "host-0 link-0: 1 MB sent, 0 B received",
      "host-1 link-0: 1 MB sent, 1 MB received",
      "host-2 link-0: 1 MB sent, 1 MB received",
      "host-3 link-0: 0 B sent, 1 MB received"
    ])
  })

  it("of chains that are thousands of hosts deep is shortened, and says by how much", () => {
    const { fanOut, demand, topology } = planned(5000, 1e6)
    const lines = describeFanOut(fanOut, demand, topology, { mostLines: 3 }).split("\n")
    assert.match(lines[0]!, /^1 MB in 1 trees of up to 1 children, chunks of 1 MB$/)
    assert.deepStrictEqual(lines.slice(3, 7), [
      "weights from byte 0: 1 MB to 9998 ranks",
      "  rank 0 on host-0",
      "    rank 2 on host-1, link-0 to link-0",
      "... 9997 lines more"
    ])
  })
})
