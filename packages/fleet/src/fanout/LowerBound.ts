// SPDX-License-Identifier: Apache-2.0
/**
 * The least time in which an update can be everywhere, whatever the plan. Each row is a necessary condition, so their
 * maximum is a bound:
 *
 * - `ingress`: a host whose ranks want what none of its ranks holds gets each such byte at least once through its links.
 * - `egress`: what only the hosts of one set hold, and others want, leaves this set at least once through its links.
 * - `total`: what enters all hosts has left some host that holds or wants something; others have nothing to send.
 * - `local`: within a host, each wanter but the one that got a bundle from the network writes it once more. A wanter that
 *   is a holder too copies it within itself.
 * - `latency`: the first byte takes the least latency of a link.
 */

import type { TopologyIndex } from "../topology/Topology.ts"
import type { PlacedBundle } from "./Demand.ts"

/** Seconds that no plan can beat, and why. */
export interface LowerBound {
  readonly seconds: number
  /** The condition that decides. */
  readonly reason: "ingress" | "egress" | "total" | "local" | "latency"
  /** Most bytes that one host gets from the network, whatever the plan. */
  readonly largestIngressBytes: number
  /** Bytes that have to enter hosts, all together. */
  readonly ingressBytes: number
}

/** Computes the bound for demand that `placeDemand` sorted by hosts. */
export const lowerBound = (bundles: ReadonlyArray<PlacedBundle>, topology: TopologyIndex): LowerBound => {
  const { hosts } = topology.topology
  const ingress = new Float64Array(hosts.length)
  const local = new Float64Array(hosts.length)
  const takesPart = new Uint8Array(hosts.length)
  const exclusive = new Map<string, { bytes: number; readonly speed: number }>()
  /** Keys of sets of hosts, by the lists that they were made from. */
  const keys = new Map<unknown, string>()
  for (const { bytes, holdersAt, wantersAt, remote } of bundles) {
    for (const host of remote) ingress[host]! += bytes
    for (const [host, ranks] of wantersAt) {
      takesPart[host] = 1
      local[host]! += bytes * (holdersAt.has(host) ? ranks.length : ranks.length - 1)
    }
    for (const host of holdersAt.keys()) takesPart[host] = 1
    if (remote.length === 0) continue
    const key = keys.get(holdersAt) ?? [...holdersAt.keys()].sort((a, b) => a - b).join(",")
    keys.set(holdersAt, key)
    const set = exclusive.get(key)
    if (set !== undefined) set.bytes += bytes
    else {
      const speed = [...holdersAt.keys()].reduce((sum, host) => sum + topology.linkSpeed[host]!, 0)
      exclusive.set(key, { bytes, speed })
    }
  }
  let best: LowerBound["reason"] = "ingress"
  let seconds = 0
  const consider = (reason: LowerBound["reason"], value: number): void => {
    if (value > seconds) [best, seconds] = [reason, value]
  }
  let [ingressBytes, largestIngressBytes, speeds, latency] = [0, 0, 0, Number.POSITIVE_INFINITY]
  for (let host = 0; host < hosts.length; host++) {
    if (takesPart[host] === 0) continue
    consider("ingress", ingress[host]! / topology.linkSpeed[host]!)
    consider("local", local[host]! / hosts[host]!.localBytesPerSecond)
    ingressBytes += ingress[host]!
    largestIngressBytes = Math.max(largestIngressBytes, ingress[host]!)
    speeds += topology.linkSpeed[host]!
    for (const link of hosts[host]!.links) latency = Math.min(latency, link.latencySeconds)
  }
  for (const { bytes, speed } of exclusive.values()) consider("egress", bytes / speed)
  if (ingressBytes > 0) {
    consider("total", ingressBytes / speeds)
    consider("latency", latency)
  }
  return { seconds, reason: best, largestIngressBytes, ingressBytes }
}
