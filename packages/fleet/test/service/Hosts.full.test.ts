// SPDX-License-Identifier: Apache-2.0
/**
 * Eight replicas on four hosts, and a source and a real etcd on a fifth: network namespaces joined by cables whose speed is
 * limited. Of every five updates one sees a random process die and another take its place; etcd is killed and started again
 * meanwhile. Bytes go over TCP, from host to host and within them.
 */
import { assert, describe, it } from "@effect/vitest"
import { makeHosts, noHosts } from "@tensorferry/simulators/hosts"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import type { Topology } from "../../src/topology/Topology.ts"
import type { FleetTimes } from "../../src/version/FleetTimes.ts"
import { noEtcd, startEtcd } from "./etcd.ts"
import { live, randomOf } from "./life.ts"
import { startMember } from "./processes.ts"

const updates = isSoak ? 200 : 12
const every = 5
const bitsPerSecond = 200e6
const replicas = 8

/** A host for every two replicas; the source is on the last one. */
const hostOf = (rank: number): number => (rank === 0 ? 4 : Math.floor((rank - 1) / 2))

const topology: Topology = {
  format: "tensorferry.topology",
  version: 1,
  hosts: [[1, 2], [3, 4], [5, 6], [7, 8], [0]].map((ranks, host) => ({
    id: `host-${host}`,
    ranks,
    links: [{ name: "eth0", bytesPerSecond: bitsPerSecond / 8, latencySeconds: 1e-4 }],
    localBytesPerSecond: 1e9
  }))
}

/** Two cores are shared by ten processes. */
const times: FleetTimes = { beat: 0.2, fence: 3, grace: 0.5, dead: 2.5, stage: 60, prepare: 10 }

const reason = noHosts() ?? noEtcd()

describe("replicas on hosts of their own", () => {
  it.live.skipIf(reason !== undefined)(
    `have every version whole while processes die and etcd is restarted${reason === undefined ? "" : ` (skipped: ${reason})`}`,
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const hosts = yield* makeHosts({ count: 5 })
          for (const host of hosts) host.limit(bitsPerSecond)
          const { address, start } = { address: hosts[4]!.addresses[0]!, start: hosts[4]!.start }
          const etcd = yield* startEtcd({ address, clientPort: 2379, peerPort: 2380, start })
          const random = randomOf(isSoak ? Date.now() : 9)
          const report = yield* live({
            replicas,
            updates,
            every,
            random,
            start: (rank) => {
              const host = hosts[hostOf(rank)]!
              const input = {
                rank,
                ranks: replicas + 1,
                store: etcd.url,
                size: "small",
                role: rank === 0 ? "source" : "replica",
                controls: rank <= 2,
                address: host.addresses[0]!,
                topology,
                times
              } as const
              return startMember(input, host.start)
            },
            isRestart: (update) => update % (2 * every) === 7,
            // Shorter than it takes a member to stop serving, or longer.
            restartStore: Effect.suspend(() => etcd.restart(random() < 0.5 ? 0 : 4000))
          })
          console.error(`fleet of hosts: ${JSON.stringify({ updates, ...report })}`)
          assert.strictEqual(report.deaths.length, Math.floor(updates / every))
          assert.isAbove(report.restarts, 0)
          assert.isAtLeast(report.looks, updates * replicas)
          assert.isBelow(report.secondsToTheLast, 10)
        })
      ),
    { timeout: isSoak ? 7_200_000 : 300_000 }
  )
})
