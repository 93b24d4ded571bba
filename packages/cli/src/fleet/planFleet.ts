// SPDX-License-Identifier: Apache-2.0
/** How an update of a model would fan out over the hosts of a topology file: trees, and what each link carries. */
import type { PlanIndex } from "@tensorferry/core/planner/RosterPlanner"
import { type FleetError, fleetError } from "@tensorferry/fleet/FleetError"
import { describeFanOut } from "@tensorferry/fleet/fanout/describeFanOut"
import { linkBytes, planFanOut } from "@tensorferry/fleet/fanout/FanOut"
import { planDemand } from "@tensorferry/fleet/fanout/planDemand"
import { indexTopology, Topology, type TopologyIndex } from "@tensorferry/fleet/topology/Topology"
import { readSmallFile } from "@tensorferry/model/checkpoint/FileAccess"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { counted } from "../text/Table.ts"

const topologyText = Schema.fromJsonString(Topology)

/** Lines of trees, and links, that are shown; documents have all. */
const [mostLines, mostLinks] = [200, 64]

const invalid = (file: string, detail: string): FleetError =>
  fleetError("InvalidTopology", [], {
    file,
    detail: `${file} is no topology: ${detail}`,
    remedy:
      'Write {"format": "tensorferry.topology", "version": 1, "hosts": [{"id", "ranks", "links": [{"name", "bytesPerSecond", "latencySeconds"}], "localBytesPerSecond"}]}.'
  })

/** Reads a topology file. Fails with InvalidTopology, naming the file. */
export const readTopology = (file: string): Effect.Effect<TopologyIndex, FleetError> =>
  Effect.gen(function* () {
    const bytes = yield* Effect.mapError(readSmallFile(file), ({ reason }) => invalid(file, reason.detail))
    const decoded = Schema.decodeUnknownResult(topologyText, { onExcessProperty: "error" })(
      new TextDecoder().decode(bytes)
    )
    if (Result.isFailure(decoded)) return yield* invalid(file, decoded.failure.message)
    return yield* Effect.fromResult(indexTopology(decoded.success))
  })

/** A fan-out for people and for machines. */
export interface PlannedFleet {
  readonly text: string
  readonly document: object
}

/** Trees first, then links, as `describeFanOut` writes them, with no more links than people read. */
const shortened = (text: string): string => {
  const parts = text.split("\n\n")
  const links = parts.at(-1)!.split("\n")
  const left = links.length - mostLinks
  const shown = [
    ...links.slice(0, mostLinks),
    ...(left > 0 ? [`… and ${counted(left, "more link")}; --json lists all`] : [])
  ]
  return [...parts.slice(0, -1), shown.join("\n")].join("\n\n")
}

/** Plans the fan-out of a job. Fails with UnknownRank or NoSource. */
export const planFleet = (index: PlanIndex, topology: TopologyIndex): Result.Result<PlannedFleet, FleetError> =>
  Result.gen(function* () {
    const demand = planDemand(index)
    const fanOut = yield* planFanOut(demand, topology)
    const { hosts } = topology.topology
    return {
      text: shortened(describeFanOut(fanOut, demand, topology, { mostLines })),
      document: {
        bound: fanOut.bound,
        predictedSeconds: fanOut.predictedSeconds,
        chunkBytes: fanOut.chunkBytes,
        children: fanOut.children,
        bundles: demand.bundles.map(({ key, bytes, holders, wanters }) => ({ key, bytes, holders, wanters })),
        trees: fanOut.trees,
        links: linkBytes(fanOut, topology).map(({ host, link, sent, received }) => ({
          host: hosts[host]!.id,
          link: hosts[host]!.links[link]!.name,
          sent,
          received
        }))
      }
    }
  })
