// SPDX-License-Identifier: Apache-2.0
/**
 * The way of every flow of this rank: which end moves the bytes, what it found of the other end's memory, and the route that
 * both ends take.
 *
 * Invariant: nothing here waits or meets other ranks. Routes follow from what all ranks published and found, so all ranks
 * come to the same ones.
 */
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import { type Flow, problemOf } from "@tensorferry/native/driver/Flows"
import { isSameProcess } from "@tensorferry/native/driver/ProcessIdentity"
import * as Result from "effect/Result"
import type { PeerMemory } from "./openPeerMemory.ts"
import type { Finding } from "./Publication.ts"
import { commonPreference, directionOf } from "./planning/direction.ts"
import { type DriverKind, type Reached, type Route, routeOf } from "./planning/route.ts"
import type { Published } from "./publisher.ts"

/** A flow and, where this rank moves its bytes between memories, the peer's memory. */
export interface SearchedFlow {
  readonly flow: Flow
  readonly memory: PeerMemory | undefined
}

/** A flow with its way. */
export interface RoutedFlow extends SearchedFlow {
  readonly route: Route
}

/** Ways of all flows of the job, known to all ranks. */
export interface Routes {
  readonly reached: ReadonlyMap<string, Reached>
  readonly hasCollectives: boolean
  /** The most peers that any rank has by collectives. */
  readonly collectivePeers: number
}

const flowKey = (from: number, to: number): string => `${from} to ${to}`

/** The bytes are moved by their sender: its end has the memory of the other one. */
export const isPushed = ({ flow, memory, route }: RoutedFlow): boolean =>
  route.name === "ipc" && (memory !== undefined) !== flow.isReceiving

/** Whether this end moves the bytes of a flow between memories: both ends find the same. */
export const isMovedHere = (
  rank: number,
  flow: Flow,
  flows: ReadonlyArray<Flow>,
  { settings, lists, own }: Published
): boolean => {
  const { peer, isReceiving } = flow
  if (isSameProcess(settings[rank]!.process, settings[peer]!.process)) return isReceiving
  const [mine, theirs] = [own.get(peer), lists.get(peer)]
  const direction = directionOf({
    preference: commonPreference(settings.map((each) => each.direction)),
    senderProblem: isReceiving ? problemOf(theirs, "send") : problemOf(mine, "send"),
    receiverProblem: isReceiving ? problemOf(mine, "recv") : problemOf(theirs, "recv"),
    isDuplex: flows.some((other) => other.peer === peer && other.isReceiving !== isReceiving)
  })
  // Where neither end can, the receiver looks and reports why.
  return Result.isFailure(direction) ? isReceiving : (direction.success === "pull") === isReceiving
}

/** What this rank found, for the others. */
export const findingsOf = (searched: ReadonlyArray<SearchedFlow>): ReadonlyArray<Finding> =>
  searched.flatMap(({ flow: { peer, isReceiving }, memory }) =>
    memory === undefined ? [] : [{ peer, isReceiving, reached: memory.reached }]
  )

/** The same on all ranks, since all have the findings of all. */
export const routesOf = (
  kind: DriverKind,
  errors: DriverErrors,
  findings: ReadonlyArray<ReadonlyArray<Finding>>,
  published: Published
): Checked<Routes> => {
  const hasCollectives = published.settings.every((each) => each.hasCollectives)
  const reached = new Map<string, Reached>()
  const collective = published.neighbours.map((peers) => new Set(kind === "nccl" ? peers : []))
  for (const [looking, found] of findings.entries()) {
    for (const { peer, isReceiving, reached: answer } of found) {
      reached.set(isReceiving ? flowKey(peer, looking) : flowKey(looking, peer), answer)
      if (answer._tag === "Reached") continue
      const route = routeOf({ kind, reached: answer, hasCollectives })
      if (Result.isFailure(route)) {
        const detail = `Rank ${looking} does not reach memory of rank ${peer}: ${route.failure}.`
        return Result.fail(
          errors.fail("UnreachableMemory", detail, { peer: looking === errors.rank ? peer : looking, op: "prepare" })
        )
      }
      collective[looking]?.add(peer)
      collective[peer]?.add(looking)
    }
  }
  const collectivePeers = Math.max(0, ...collective.map((peers) => peers.size))
  if (collectivePeers > 0 && !hasCollectives) {
    const lacking = published.settings.findIndex((each) => !each.hasCollectives)
    return Result.fail(
      errors.fail("TransportFailed", `Rank ${lacking} could not open the library for collectives.`, {
        op: "prepare",
        scope: "service"
      })
    )
  }
  return Result.succeed({ reached, hasCollectives, collectivePeers })
}

/** The flows of this rank with their routes. */
export const routeFlows = (
  kind: DriverKind,
  errors: DriverErrors,
  searched: ReadonlyArray<SearchedFlow>,
  routes: Routes
): Checked<ReadonlyArray<RoutedFlow>> => {
  const flows: Array<RoutedFlow> = []
  for (const each of searched) {
    const { peer, isReceiving } = each.flow
    const reached = routes.reached.get(isReceiving ? flowKey(peer, errors.rank) : flowKey(errors.rank, peer))
    const route = routeOf({ kind, reached, hasCollectives: routes.hasCollectives })
    if (Result.isFailure(route)) {
      return Result.fail(errors.fail("UnreachableMemory", `No path: ${route.failure}.`, { peer, op: "prepare" }))
    }
    flows.push({ ...each, route: route.success })
  }
  return Result.succeed(flows)
}
