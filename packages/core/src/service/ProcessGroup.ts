// SPDX-License-Identifier: Apache-2.0
/**
 * The ranks of a job and the small messages by which they agree. Control data only: tensors go through `CopyService`.
 *
 * Contract
 * - Every member calls the same collectives in the same order; the label says which one a rank is in, and members that
 *   meet under different labels all fail, naming both.
 * - Deadlines are no-progress deadlines: a wait fails when none of the ranks it waits for showed progress for the
 *   deadline, and the error names those that did not arrive. A rank in long local work calls `reportProgress`, or wraps
 *   the work in `keepAlive`. A broken connection fails every wait for that rank at once.
 * - A rank that failed or left stays gone: later collectives that include it fail at once. Subgroups without it go on.
 * - `subgroup` is a renumbering, not a collective; only its members take part in its collectives.
 * - Posts are for what concerns few: they pass by the collectives, and cost the same in a group of any size.
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { Scope } from "effect/Scope"
import type { Rank } from "../base/Ids.ts"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"

/** Why a group could not be formed, or a collective failed. */
export const ProcessGroupReason = Schema.Union([
  /** Ranks did not arrive before the no-progress deadline. */
  reason("DeadlineExceeded"),
  /** A member's process or connection is gone. */
  reason("PeerGone"),
  /** Members are in different collectives. */
  reason("CollectiveMismatch"),
  /** A rank outside the group, a group with repeated ranks, an empty group. */
  reason("InvalidGroup"),
  /** The group could not be formed: address in use, unreachable, wrong token, wrong size. */
  reason("RendezvousFailed"),
  /** A variable of the environment is missing or wrong. */
  reason("InvalidEnvironment"),
  /** A message broke the protocol's rules or limits. */
  reason("ProtocolViolation")
])
export type ProcessGroupReason = typeof ProcessGroupReason.Type

/** Why ranks could not meet or agree, and the ranks that it is about. */
export class ProcessGroupError extends ReasonError<ProcessGroupError>()("ProcessGroupError", ProcessGroupReason, {
  /** The ranks (of the whole job) that the failure is about. */
  ranks: Schema.Array(Schema.Int)
}) {}

/** Makes the error of this reason; `ranks` are those that the failure is about. */
export const processGroupError = (
  tag: ProcessGroupReason["_tag"],
  ranks: ReadonlyArray<Rank>,
  input: ReasonInput
): ProcessGroupError => new ProcessGroupError({ reason: reasonOf(tag, input), ranks: [...ranks] })

/** One member's view of its group. */
export interface ProcessGroupShape {
  /** This member's number, 0 to `size - 1`. */
  readonly rank: Rank
  /** Members of the group. */
  readonly size: number
  /** Rank in the whole job of each member, by number. */
  readonly members: ReadonlyArray<Rank>
  /** How long a wait lasts without progress of those it waits for. */
  readonly deadline: Duration.Duration
  /** Every member's payload, by rank. */
  readonly allGather: (
    label: string,
    payload: Uint8Array
  ) => Effect.Effect<ReadonlyArray<Uint8Array>, ProcessGroupError>
  /** The root's payload, on every member. Payloads of others are ignored. */
  readonly broadcast: (label: string, root: Rank, payload: Uint8Array) => Effect.Effect<Uint8Array, ProcessGroupError>
  /** Ends when every member has called it under this label. */
  readonly barrier: (label: string) => Effect.Effect<void, ProcessGroupError>
  /** The group of these members, numbered in the order given. Fails unless this member is among them. */
  readonly subgroup: (ranks: ReadonlyArray<Rank>) => Effect.Effect<ProcessGroupShape, ProcessGroupError>
  /** Tells the others that this rank is getting on with its work. Cheap; call it as often as convenient. */
  readonly reportProgress: Effect.Effect<void>
  /** Reports progress while the effect runs. For work that cannot report by itself. */
  readonly keepAlive: <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  /**
   * The same members, whose collectives and posts in this lane are in an order of their own. The n-th lane of a name on one
   * member is the n-th on all, so every member opens lanes of one name in the same order, and as many.
   */
  readonly lane: (name: string) => Effect.Effect<ProcessGroupShape>
  /**
   * Sends a few bytes, at most 4096, to these members; this one passes itself over. A post is there before the end of any
   * later collective of its sender. One that cannot be delivered is dropped.
   */
  readonly post: (to: ReadonlyArray<Rank>, payload: Uint8Array) => Effect.Effect<void>
  /** Gets the posts of this group or lane from now on, and some from before, until the scope ends. */
  readonly listen: (listener: PostListener) => Effect.Effect<void, never, Scope>
}

/** Who gets the posts of a group, as they arrive. Both are called at once and must not fail. */
export interface PostListener {
  /** A member sent this. */
  readonly post: (from: Rank, payload: Uint8Array) => void
  /** A member failed or left; once for each. */
  readonly gone: (rank: Rank) => void
}

/** The service by which the ranks of a job meet and agree, in small messages. */
export class ProcessGroup extends Context.Service<ProcessGroup, ProcessGroupShape>()(
  "@tensorferry/core/service/ProcessGroup"
) {}
