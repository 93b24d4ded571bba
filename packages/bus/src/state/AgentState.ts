// SPDX-License-Identifier: Apache-2.0
/**
 * What an agent lets its clients read: its heartbeat, states of pairs and batches, replies. Small values under names.
 *
 * Contract: the agent writes, everybody reads; a write of several values is seen whole or not at all. Nothing here outlives
 * the agent for long: it begins with an empty state and keeps replies only until they expire.
 *
 * Completions of commands are here because a reply and the semaphore behind it go together: each side does both in one
 * step, and a client that was let go on finds its reply.
 */
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"

/** Why the state could not be read or written, by tag. */
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

/** Why the agent's state could not be read or written; `reason` names the file and the remedy. */
export class AgentStateError extends ReasonError<AgentStateError>()("AgentStateError", AgentStateReason) {}

/** The error of a tag, from what is known where it was seen. */
export const agentStateError = (tag: AgentStateReason["_tag"], input: ReasonInput): AgentStateError =>
  new AgentStateError({ reason: reasonOf(tag, input) })

/** Undefined values remove their names. */
export type StateEntries = ReadonlyArray<readonly [name: string, value: Uint8Array | undefined]>

/** A semaphore on which a client waits for the end of one command. */
export interface Completion {
  /** Waits for the agent, and reads what stands under the name then. Undefined where the time was over first. */
  readonly wait: (
    name: string,
    milliseconds: number
  ) => Effect.Effect<{ readonly reply: Uint8Array | undefined } | undefined, AgentStateError>
}

/** What a state offers: entries that clients of the bus read. */
export interface AgentStateShape {
  /** All or none. */
  readonly put: (entries: StateEntries) => Effect.Effect<void, AgentStateError>
  readonly get: (name: string) => Effect.Effect<Uint8Array | undefined, AgentStateError>
  /** Puts the entries, then lets the client go on that waits on the semaphore, even where nothing could be put. */
  readonly complete: (semaphoreName: string, entries: StateEntries) => Effect.Effect<void, AgentStateError>
  /** Makes the semaphore of a command; its name goes with the scope. */
  readonly expect: (semaphoreName: string) => Effect.Effect<Completion, AgentStateError, Scope.Scope>
}

/** What an agent keeps in shared memory for its clients: whether it lives, and which batches are done. */
export class AgentState extends Context.Service<AgentState, AgentStateShape>()("@tensorferry/bus/state/AgentState") {}

/** Decimal seconds since 1970, as text: what clients in other languages read. */
export const heartbeatName = "agent:heartbeat"
/** Which process the agent is, and when it last lived by the monotonic clock of the host: an `AgentBeat` as JSON. */
export const beatName = "agent:process"

/** What an agent says of itself with every heartbeat. */
export const AgentBeat = Schema.Struct({
  rank: Schema.Int,
  pid: Schema.Int,
  /** Distinguishes the process from a later one of this number. */
  processStart: Schema.String,
  /** Which processes it sees and is seen by: those of an equal `processSpace`. */
  space: Schema.optionalKey(Schema.String),
  millis: Schema.Finite
})
export type AgentBeat = typeof AgentBeat.Type
/** A beat as the text of its entry. */
export const agentBeatCodec = Schema.fromJsonString(AgentBeat)
/** MessagePack "matched" once both sides of the pair are there. */
export const pairName = (pair: string): string => `pair:${pair}/state:match`
/** MessagePack bool: whether a sent batch waits to be received. */
export const signalName = (batch: string): string => `batch:${batch}/state:transfer_signal`

/** MessagePack int: the version that a batch's last transfer moved. */
export const versionName = (batch: string): string => `batch:${batch}/state:version`

/** What the names of the semaphores of a client begin with, by its process. */
export const semaphoresOf = (pid: number): string => `/tf_${pid}_`

/** Longest name in bytes: what LMDB takes as a key. */
export const longestName = 511
