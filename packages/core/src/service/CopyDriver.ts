// SPDX-License-Identifier: Apache-2.0
/**
 * What a backend author writes: moves messages between ranks. Everything else (queue, matching, agreement, staging,
 * deadlines, reports) is `CopyService`, which calls a driver only with batches that all ranks have agreed on.
 *
 * Contract
 * - `prepare` and `start` are called by every rank of the group, idle ranks included, in the same order; a driver may use
 *   its `ProcessGroup` in both. `prepare` must not move tensor bytes; a prepared program may be started many times, one
 *   start after the other. Between starts the contents change, never the regions.
 * - Messages come in an order that is globally consistent: a driver may process its list strictly front to back, with no
 *   buffering at all, and never deadlock.
 * - `start` is called only after every rank has declared its send regions complete, so a driver may read them at once.
 * - `await` ends when this rank's work is done: received bytes are visible to the host, and sent regions may be reused
 *   unless `requiresProcessGroupBarrier` says that peers fetch them; then the service has all ranks meet first. It fails
 *   as soon as the driver knows that it cannot finish; it need not watch deadlines itself.
 * - `movedBytes` grows while the transfer gets on; the service extends its no-progress deadline by it.
 * - `cancel` stops touching the regions before it ends, whatever the peers do; where peers write to them, it waits for these
 *   too, unless one is frozen. Afterwards the driver either works as before or reports failures of scope "service", upon
 *   which the service rebuilds it before the next run.
 * - A driver that knows how long its parts took may say so by peer (`peerTimes`, asked only after `await` has ended well);
 *   the times go into the report as they are, and nothing depends on them.
 * - A driver may lend flags (`flags`): memory in which ranks of one host state to each other how far they are, so that known
 *   batches are repeated without a message. Which peers look there is the driver's business, from one `prepare` to the next;
 *   with others the service uses the group.
 * - A driver without `gather` gets messages of exactly one dense part, in memory that its engine allocated.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as EffectScope from "effect/Scope"
import type { Rank } from "../base/Ids.ts"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"
import type { Message } from "../ir/Message.ts"

/** What failed in a driver. The reason's `scope` says whether the driver must be rebuilt. */
export const CopyDriverReason = Schema.Union([
  /** The connection to a peer is lost, or its process is gone. */
  reason("PeerGone"),
  /** The transport failed: a system call, a device, a library. */
  reason("TransportFailed"),
  /** Memory cannot be reached by the peer over any path that this driver has. */
  reason("UnreachableMemory"),
  /** The driver does not do this. Its capabilities say so. */
  reason("Unsupported"),
  /** The driver was cancelled or aborted and must be rebuilt. */
  reason("Broken"),
  /** The program does not belong to this driver, or its memory was freed. */
  reason("InvalidProgram")
])
export type CopyDriverReason = typeof CopyDriverReason.Type

/** Why a driver could not prepare, start or finish a transfer. */
export class CopyDriverError extends ReasonError<CopyDriverError>()("CopyDriverError", CopyDriverReason) {}

/** Makes the error; scope and retryability default to "op" and false. */
export const copyDriverError = (tag: CopyDriverReason["_tag"], input: ReasonInput): CopyDriverError =>
  new CopyDriverError({ reason: reasonOf(tag, input) })

/** What a driver takes and needs; the service adapts to it. */
export interface CopyDriverCapabilities {
  /** Takes scattered, strided regions as they are; else each message is packed into one dense buffer. */
  readonly gather: boolean
  /** Sent regions may be read by peers until every rank's `await` has ended. */
  readonly requiresProcessGroupBarrier: boolean
  /** Every operation must carry a task id. */
  readonly requiresTaskId: boolean
  /** Device families whose memory the driver moves; "*" for all. */
  readonly deviceFamilies: ReadonlyArray<string>
  /** Most bytes in one message; the service cuts longer ones. */
  readonly maxMessageBytes: number
  /**
   * `start` needs no rank but the peers of the program, which may begin earlier or later or not at all, and uses no
   * collective; after `cancel` the driver and its programs work as before. Then known batches are repeated by those ranks
   * alone that exchange something, and peers are done only after the service has them meet in pairs. False by default.
   */
  readonly pairwise?: boolean
}

/** Which way bytes go to or come from a peer, and why that way. */
export interface PeerPath {
  /** The rank at the other end. */
  readonly peer: Rank
  /** Name of the way, as `shared-map`; reports count by it. */
  readonly path: string
  /** Why this way: what was tried before, or what both ends have. */
  readonly reason: string
}

/** Messages that a driver has prepared to move, any number of times. */
export interface Program {
  /** What was prepared, as it was given. */
  readonly messages: ReadonlyArray<Message>
  /** One for each peer. */
  readonly paths: ReadonlyArray<PeerPath>
  /** Of a pairwise driver: `start` of this program uses the group all the same, so all ranks begin it together. */
  readonly needsGroup?: boolean
}

/** Seconds that the parts of one start took with one peer, by the device's own clock; parts may overlap. */
export interface PeerTimes {
  /** The rank at the other end. */
  readonly peer: Rank
  /** Into staging of the driver's own. */
  readonly pack: number
  /** To or from the peer. */
  readonly wire: number
  /** Out of staging of the driver's own. */
  readonly unpack: number
}

/** A transfer that has been started. */
export interface InFlight {
  /** Whether `await` would end at once. Never waits. */
  readonly isComplete: Effect.Effect<boolean>
  /** Ends when this rank's part is done, or fails as soon as it cannot be. */
  readonly await: Effect.Effect<void, CopyDriverError>
  /** Ends when the regions are not touched any more. */
  readonly cancel: Effect.Effect<void>
  /** Bytes that have moved so far; never shrinks. */
  readonly movedBytes: Effect.Effect<number>
  /** Peers of the program that the driver has times for, each once. */
  readonly peerTimes?: Effect.Effect<ReadonlyArray<PeerTimes>>
}

/** What a rank states to a peer. Of each, the highest number counts. */
export const peerFlags = ["Ready", "Done", "Out", "Behind", "Alive"] as const
/** One kind of statement. */
export type PeerFlag = (typeof peerFlags)[number]

/**
 * Numbers that ranks state to each other, each where one rank writes and one reads. They are read after the driver's scope has
 * ended, too, as they were then.
 */
export interface PeerFlags {
  /** States a number, a whole one above zero, which only grows; false where the peer may not see it, so that it must be told. */
  readonly tell: (peer: Rank, flag: PeerFlag, value: number) => boolean
  /** The last number that the peer stated; 0 where there is none. It is the peer's word, and nothing more. */
  readonly read: (peer: Rank, flag: PeerFlag) => number
  /** While this rank sleeps, peers that state something wake it. It looks once more after it has begun to sleep. */
  readonly sleep: (isAsleep: boolean) => void
  /** Called when this rank is woken, until it is taken back. */
  readonly watch: (woken: () => void) => () => void
}

/** What a backend's author writes. */
export interface CopyDriverShape {
  /** The backend's name, for reports and errors. */
  readonly name: string
  /** Number of this rank in the group. */
  readonly rank: Rank
  /** Ranks of the group. */
  readonly worldSize: number
  /** What the driver takes; the same on all ranks. */
  readonly capabilities: CopyDriverCapabilities
  /** The scope ends when the program is dropped. */
  readonly prepare: (messages: ReadonlyArray<Message>) => Effect.Effect<Program, CopyDriverError, EffectScope.Scope>
  /** Begins to move a prepared program, and does not wait for it. */
  readonly start: (program: Program) => Effect.Effect<InFlight, CopyDriverError>
  /** Of pairwise drivers alone. */
  readonly flags?: PeerFlags
}

/** The service that a backend's author writes: moves prepared messages between ranks. `CopyService` calls it. */
export class CopyDriver extends Context.Service<CopyDriver, CopyDriverShape>()(
  "@tensorferry/core/service/CopyDriver"
) {}
