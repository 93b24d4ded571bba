/**
 * What an agent lets its clients read: its heartbeat, states of pairs and batches, replies. Small values under names.
 *
 * Contract: the agent writes, everybody reads; a write of several values is seen whole or not at all. Nothing here outlives
 * the agent for long: it begins with an empty state and keeps replies only until they expire.
 */
import { describeReason, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"

export const AgentStateReason = Schema.Union([
  /** A name or value that is too long, or no room for it. */
  reason("TooLarge"),
  /** There is no state here, or no agent writes it. */
  reason("NotServed"),
  reason("Untrusted"),
  reason("Damaged"),
  reason("Unavailable"),
  reason("SystemFailure")
])
export type AgentStateReason = typeof AgentStateReason.Type

export class AgentStateError extends Schema.TaggedError<AgentStateError>()("AgentStateError", {
  reason: AgentStateReason
}) {
  override get message(): string {
    return describeReason(this.reason)
  }
}

export const agentStateError = (tag: AgentStateReason["_tag"], input: ReasonInput): AgentStateError =>
  new AgentStateError({ reason: reasonOf(tag, input) })

export interface AgentStateShape {
  /** Undefined values remove their names. All or none. */
  readonly put: (
    entries: ReadonlyArray<readonly [name: string, value: Uint8Array | undefined]>
  ) => Effect.Effect<void, AgentStateError>
  readonly get: (name: string) => Effect.Effect<Uint8Array | undefined, AgentStateError>
}

export class AgentState extends Context.Service<AgentState, AgentStateShape>()("@tensorferry/bus/state/AgentState") {}

/** Decimal seconds since 1970, as text. */
export const heartbeatName = "agent:heartbeat"
/** MessagePack "matched" once both sides of the pair are there. */
export const pairName = (pair: string): string => `pair:${pair}/state:match`
/** MessagePack bool: whether a sent batch waits to be received. */
export const signalName = (batch: string): string => `batch:${batch}/state:transfer_signal`

/** Longest name in bytes: what LMDB takes as a key. */
export const longestName = 511
