// SPDX-License-Identifier: Apache-2.0
/** How a member reaches others, and how fast it sends to them, from what its user states. */
import type { Rank } from "@tensorferry/core/base/Ids"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { EdgeOptions, Transport } from "../edges/EdgeLine.ts"
import { deviceOf, type Weights } from "../edges/Pieces.ts"
import { makeSendLimit } from "../edges/SendLimit.ts"
import { type FleetError, fleetError } from "../FleetError.ts"
import { indexTopology, type Topology, type TopologyIndex } from "../topology/Topology.ts"

/** Where a process is, and how it reaches the others of its fleet. */
export interface ReachOptions {
  /** Its place in plans: no other member has it, and a successor takes over that of whom it replaces. */
  readonly rank: Rank
  /** The weights in use; those that a source publishes. Contiguous. */
  readonly weights: Weights
  /** The same on all members; ranks that it lacks are taken to be alone on a host. */
  readonly topology?: Topology
  /** What moves tensors between two members, such as `copyService` of a backend. */
  readonly transport: Transport
  /** Where other members reach this process; 127.0.0.1 by default. */
  readonly host?: string
  /** Shared secret; needed for any other address. */
  readonly token?: string
  /**
   * The most that this process sends to other hosts in any second: so many bytes, or a share of the links of its host in the
   * topology, of which all ranks of the host get equal parts. Where it has to wait, updates go first by default, or members that
   * join.
   */
  readonly sendLimit?: ({ readonly bytesPerSecond: number } | { readonly share: number }) & {
    readonly first?: "updates" | "joins"
  }
  /** How long a transfer waits for the other end to show progress; 10 seconds by default. */
  readonly edgeDeadline?: Duration.Input
}

/** Less would be cut into windows of a few bytes. */
const leastBytesPerSecond = 20_000

const invalid = (detail: string, remedy: string): Result.Result<never, FleetError> =>
  Result.fail(fleetError("InvalidOptions", [], { detail, remedy }))

/** Bytes per second that a process may send; undefined without a limit. */
const bytesPerSecondOf = (
  { sendLimit, rank }: Pick<ReachOptions, "sendLimit" | "rank">,
  topology: TopologyIndex | undefined
): Result.Result<number | undefined, FleetError> => {
  if (sendLimit === undefined) return Result.succeed(undefined)
  let bytesPerSecond: number
  if ("share" in sendLimit) {
    const { share } = sendLimit
    if (!(share > 0 && share <= 1))
      return invalid(`${share} is no share of a link.`, "Give a share above 0, at most 1.")
    const host = topology?.hostOf(rank)
    if (topology === undefined || host === undefined)
      return invalid(`The topology states no links for rank ${rank}.`, "State its host, or give bytesPerSecond.")
    bytesPerSecond = (share * topology.linkSpeed[host]!) / topology.topology.hosts[host]!.ranks.length
  } else bytesPerSecond = sendLimit.bytesPerSecond
  if (bytesPerSecond >= leastBytesPerSecond && Number.isFinite(bytesPerSecond)) return Result.succeed(bytesPerSecond)
  return invalid(
    `A process may not be limited to ${bytesPerSecond} bytes per second.`,
    `Let it send at least ${leastBytesPerSecond}.`
  )
}

/** Fails with InvalidOptions or InvalidTopology. The limit ends with the scope. */
export const edgeOptionsOf = Effect.fnUntraced(function* (options: ReachOptions) {
  const { weights, transport, edgeDeadline, host, token, topology: stated, sendLimit, rank } = options
  const topology = stated === undefined ? undefined : yield* Effect.fromResult(indexTopology(stated))
  const bytesPerSecond = yield* Effect.fromResult(bytesPerSecondOf(options, topology))
  const limit = bytesPerSecond === undefined ? undefined : yield* makeSendLimit(bytesPerSecond)
  const here = topology?.hostOf(rank)
  const edgeOptions: EdgeOptions = {
    device: deviceOf(weights),
    transport,
    deadline: Duration.fromInputUnsafe(edgeDeadline ?? "10 seconds"),
    isNear: (other) => here !== undefined && topology?.hostOf(other) === here,
    ...(host === undefined ? {} : { host }),
    ...(token === undefined ? {} : { token }),
    ...(limit === undefined ? {} : { limit }),
    ...(sendLimit?.first === undefined ? {} : { first: sendLimit.first })
  }
  return edgeOptions
})
