// SPDX-License-Identifier: Apache-2.0
/** Generated topologies and demands, small enough to be checked by hand and odd enough to find what is wrong. */
import * as Arbitrary from "effect/Arbitrary"
import * as Schema from "effect/Schema"
import type { Demand } from "../../src/fanout/Demand.ts"
import type { Topology } from "../../src/topology/Topology.ts"

const within = (minimum: number, maximum: number) => Schema.Int.check(Schema.isBetween({ minimum, maximum }))
const bits = within(0, 2 ** 20 - 1)

/** A case of the laws. */
export interface FanOutCase {
  readonly topology: Topology
  readonly demand: Demand
}

const Case = Schema.Struct({
  hosts: Schema.Array(
    Schema.Struct({
      ranks: within(1, 4),
      links: Schema.Array(Schema.Literals([1e9, 5e9, 50e9])).check(Schema.isMinLength(1), Schema.isMaxLength(3)),
      zone: Schema.Literals(["a", "b", "none"])
    })
  ).check(Schema.isMinLength(1), Schema.isMaxLength(9)),
  bundles: Schema.Array(
    Schema.Struct({
      bytes: Schema.Literals([1, 1000, 2 ** 20, 3 * 2 ** 20 + 5, 2 ** 28, 2 ** 33]),
      holders: bits,
      wanters: bits
    })
  ).check(Schema.isMinLength(1), Schema.isMaxLength(6)),
  stride: Schema.Literals([1, 3, 1000])
})

/** Hosts with sparse ranks in no order, and bundles that any of them hold and want; some hosts do both. */
export const fanOutCase: Arbitrary.Arbitrary<FanOutCase> = Arbitrary.map(
  Arbitrary.schema(Case),
  ({ hosts, bundles, stride }) => {
    let next = 0
    const topology: Topology = {
      format: "tensorferry.topology",
      version: 1,
      hosts: hosts.map(({ ranks, links, zone }, at) => ({
        id: `h${at}`,
        ranks: Array.from({ length: ranks }, () => (next += stride)).reverse(),
        links: links.map((bytesPerSecond, link) => ({ name: `l${link}`, bytesPerSecond, latencySeconds: 1e-5 })),
        localBytesPerSecond: 1e11,
        ...(zone === "none" ? {} : { zone })
      }))
    }
    const all = topology.hosts.flatMap(({ ranks }) => ranks).sort((a, b) => a - b)
    const chosen = (mask: number) => all.filter((_, at) => (mask & (1 << (at % 20))) !== 0)
    return {
      topology,
      demand: {
        bundles: bundles.map(({ bytes, holders, wanters }, at) => ({
          key: `bundle ${at}`,
          bytes,
          holders: chosen(holders).length === 0 ? [all[holders % all.length]!] : chosen(holders),
          wanters: chosen(wanters)
        }))
      }
    }
  }
)
