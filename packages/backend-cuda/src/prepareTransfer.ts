// SPDX-License-Identifier: Apache-2.0
/**
 * A preparation on one rank: tells peers where its memory is, agrees with them on the way of every flow, makes the program.
 *
 * Invariant: the collectives are reached by every rank whatever fails before them, each reports the failures so far, and the
 * failure of one rank is the failure of all. What a rank does between two of them depends on others only through them.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import { makeDriverAgreement } from "@tensorferry/native/driver/DriverAgreement"
import type { Checked } from "@tensorferry/native/driver/DriverErrors"
import { flowsOf } from "@tensorferry/native/driver/Flows"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { compileTransfer, type PreparedTransfer } from "./compileTransfer.ts"
import type { DriverParts } from "./driverParts.ts"
import { openPeerMemory } from "./openPeerMemory.ts"
import { decodeFindings, decodePushes } from "./Publication.ts"
import { makePublisher, type Published } from "./publisher.ts"
import { findingsOf, isMovedHere, routeFlows, routesOf, type SearchedFlow } from "./routedFlows.ts"

/** The flows of this rank, with the memory of peers where this rank moves their bytes. */
const search = (
  { kind, gpu, mappings, errors }: DriverParts,
  messages: ReadonlyArray<Message>,
  published: Published
): Checked<ReadonlyArray<SearchedFlow>> => {
  const { settings, lists } = published
  const devices = { here: gpu.ordinal, there: (peer: number) => settings[peer]!.ordinal }
  return Result.map(flowsOf(errors, messages, lists, devices), (flows) =>
    flows.map((flow): SearchedFlow => {
      const { peer } = flow
      if (kind === "nccl" || !isMovedHere(errors.rank, flow, flows, published)) return { flow, memory: undefined }
      const there = { settings: settings[peer]!, list: lists.get(peer)! }
      return { flow, memory: openPeerMemory(gpu, mappings, settings[errors.rank]!, there, flow) }
    })
  )
}

/** The preparations of one driver. */
export const makePreparer = (parts: DriverParts) => {
  const { kind, group, errors, connections } = parts
  const agreement = makeDriverAgreement(group, errors, "prepare")
  const publish = makePublisher(parts, agreement)

  return (messages: ReadonlyArray<Message>): Effect.Effect<PreparedTransfer, CopyDriverError, Scope.Scope> =>
    Effect.gen(function* () {
      const published = yield* publish(messages)
      const searched = Result.flatMap(published, (all) => search(parts, messages, all))
      const findings = yield* agreement.agree("reach", Result.map(searched, findingsOf), decodeFindings)
      // No rank reported a failure, so there is none here either.
      const all = yield* Effect.fromResult(published)
      const routes = yield* Effect.fromResult(routesOf(kind, errors, findings, all))
      const flows = Result.flatMap(searched, (known) => routeFlows(kind, errors, known, routes))
      const connection =
        routes.collectivePeers === 0
          ? Result.succeed(undefined)
          : yield* Effect.result(connections.ensure(all.settings.map((each) => each.connection)))
      const compiled = yield* Effect.result(
        Effect.gen(function* () {
          const routed = yield* Effect.fromResult(flows)
          return yield* compileTransfer(parts, routed, all, routes, yield* Effect.fromResult(connection))
        })
      )
      const pushes = yield* agreement.agree(
        "outcome",
        Result.map(compiled, ({ meets }) => meets),
        decodePushes
      )
      return { ...(yield* Effect.fromResult(compiled)), meets: pushes.includes(true) }
    })
}
