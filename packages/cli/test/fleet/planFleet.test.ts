// SPDX-License-Identifier: Apache-2.0
/** `tensorferry plan --fleet`: trees and links of an update, and what is wrong with topologies. */
import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { type Topology, uniformTopology } from "@tensorferry/fleet/topology/Topology"
import { failuresOf, scratch } from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { mnist, mnistRules } from "../support/models.ts"

const layouts = ["--from", "tp=2", "--to", "tp=2,dp=7", "--ranks", "disjoint", "--rules", mnistRules]
const hosts = uniformTopology({ hosts: 8, ranksPerHost: 2, bytesPerSecond: 50e9 })

const planned = async (topology: Topology | string, ...more: ReadonlyArray<string>) => {
  using folder = scratch()
  const file = join(folder.path, "topology.json")
  writeFileSync(file, typeof topology === "string" ? topology : JSON.stringify(topology))
  return await runHere(["plan", mnist, ...layouts, "--fleet", file, ...more])
}

describe("tensorferry plan --fleet", () => {
  it("draws the trees of an update over hosts, and says what each link carries", async () => {
    const { code, stdout, stderr } = await planned(hosts)
    assert.deepStrictEqual([code, stderr], [0, ""])
    assert.match(stdout, /^tp=2 → tp=2,dp=7, 16 ranks \(disjoint\), 2 tensors\n/)
    assert.match(stdout, /in \d+ trees of up to \d+ children, chunks of/)
    assert.match(stdout, /\n {2}rank 0 on host-0\n {4}rank \d+ on host-\d, link-0 to link-0\n/)
    assert.match(stdout, /\nhost-0 link-0: [\d.]+ k?B sent, 0 B received\n/)
  })

  it("has all of it in a document: every replica gets each byte once over its link", async () => {
    const { stdout } = await planned(hosts, "--json")
    const { fanOut, ok, size } = JSON.parse(stdout)
    assert.deepStrictEqual([ok, size], [true, 16])
    const bytes = (128 * 784 + 10 * 128) * 4
    assert.deepStrictEqual(
      fanOut.links.map(({ host, received }: { readonly host: string; readonly received: number }) => [host, received]),
      Array.from({ length: 8 }, (_, host) => [`host-${host}`, host === 0 ? 0 : bytes])
    )
    assert.isAbove(fanOut.predictedSeconds, fanOut.bound.seconds * 0.999)
  })

  it("says which rank no host has, and what is wrong with a file", async () => {
    const small = await planned(uniformTopology({ hosts: 4, ranksPerHost: 2, bytesPerSecond: 50e9 }), "--json")
    assert.strictEqual(small.code, 1)
    assert.deepInclude(failuresOf(small)[0], { reason: "UnknownRank" })
    for (const text of ["{", '{"format":"other"}', JSON.stringify({ ...hosts, zones: [] })]) {
      const refused = await planned(text, "--json")
      assert.strictEqual(refused.code, 1, text)
      assert.deepInclude(failuresOf(refused)[0], { tag: "FleetError", reason: "InvalidTopology" })
      assert.include(failuresOf(refused)[0]!.message, "topology.json")
    }
  })

  it("goes neither with a rank to explain nor with a file for plans", async () => {
    for (const more of [
      ["--explain", "0"],
      ["--save", "/tmp/never-written.json"]
    ]) {
      const refused = await planned(hosts, ...more)
      assert.strictEqual(refused.code, 2)
      assert.include(refused.stderr, `Leave ${more[0]} out.`)
    }
  })
})
