// SPDX-License-Identifier: Apache-2.0
/**
 * The user's way to move tensors between ranks: queue sends and receives, then `run`.
 *
 * Contract
 * - `submitSend` and `submitRecv` queue; nothing moves before `run`. Both ends state the same element type and shape for
 *   `(taskId, part)`; casts are the executor's business. Regions may be strided; logical order is what arrives.
 * - Without a task id, the n-th send from one rank to another meets the n-th receive there that has none either.
 * - `run` is collective over the service's `ProcessGroup`: ranks with an empty queue call it too. All ranks agree on the
 *   whole batch before any byte moves; a missing partner, unequal shapes or types, an unknown rank, freed storage or a
 *   destination whose elements share memory fails on every rank with an error that names it. A batch equal to the
 *   previous one is agreed on by one digest and reuses the compiled program; addresses are looked up again whenever a
 *   storage's generation changed.
 * - Over a driver that is `pairwise`, a batch equal to the previous one is repeated without an agreement: a rank waits only
 *   for those that it exchanges something with. A rank whose batch, plan or memory changed, or whose run fails, has all ranks
 *   agree on the run again. The option `agreement: "always"` of the service, or `together` of a run, keeps to agreements.
 * - Operations of a rank with itself are matched by `matchLocalOpsByTaskId` and never reach the driver; they happen while
 *   the others travel. Regions that one run writes must not meet regions that it reads or writes otherwise.
 * - When a run that was agreed on succeeds, every byte is in place on every rank; when a repetition succeeds, on this rank and
 *   those that it exchanges with. Either way sources may be changed or freed. When a run fails, every rank that is in it learns
 *   the first failure, and what destinations hold is unspecified; ranks that had all their bytes of a repetition may have it
 *   behind them. Either way the queue is empty afterwards.
 * - An interrupted run fails the run of the others in the same way, naming the interrupted rank; the next run works. An
 *   interruption of a rank that is done waits until its peers have read its memory, or given up.
 * - Inputs are complete when `run` is called, unless `after` says what to wait for first.
 * - A failure of scope "service" makes the service `Broken`. The next `run` rebuilds the driver or says why it cannot.
 * - The service's scope is its `close`: it cancels what is running and drops programs before their driver. Where known batches
 *   are repeated, a close without failure waits until no other rank needs this one for its last run.
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { Digest } from "../base/Digest.ts"
import type { Part, Rank, TaskId } from "../base/Ids.ts"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import type { CopyDriverCapabilities } from "./CopyDriver.ts"
import type { Fence } from "./TensorEngine.ts"

/** Why a submission was refused or a run failed. */
export const CopyReason = Schema.Union([
  /** One end is queued, the other is not. */
  reason("PartnerMissing"),
  /** Both ends are queued with different shapes, types or counts. */
  reason("Mismatch"),
  /** Two operations of one kind carry the same `(taskId, part)` between the same ranks. */
  reason("DuplicateTask"),
  /** A rank outside the service's world. */
  reason("UnknownRank"),
  /** A queued tensor's storage was freed, or the tensor is not one. */
  reason("InvalidTensor"),
  /** Ranks run different backends, versions or settings. */
  reason("Incompatible"),
  /** The backend needs what the operation lacks, or cannot move this memory. */
  reason("Unsupported"),
  /** No progress within the deadline. */
  reason("DeadlineExceeded"),
  /** A rank is gone. */
  reason("PeerGone"),
  /** The transport, the engine or a peer's run failed. */
  reason("TransferFailed"),
  /** The service could not be rebuilt after an earlier failure. */
  reason("Broken"),
  /** Another run of this service is in progress. */
  reason("Busy")
])
export type CopyReason = typeof CopyReason.Type

/** Why a run failed, and on which ranks. */
export class CopyError extends ReasonError<CopyError>()("CopyError", CopyReason, {
  /** The ranks that the failure is about. */
  ranks: Schema.Array(Schema.Int)
}) {}

/** Makes the error; `ranks` are those at fault. */
export const copyError = (tag: CopyReason["_tag"], ranks: ReadonlyArray<Rank>, input: ReasonInput): CopyError =>
  new CopyError({ reason: reasonOf(tag, input), ranks: [...ranks] })

/** A queued half of a transfer. */
export interface SendOp {
  /** Tells a send from a receive. */
  readonly _tag: "SendOp"
  /** The region that is read. It must not change until the run has ended. */
  readonly tensor: Tensor
  /** The rank that receives it, which may be this one. */
  readonly destRank: Rank
  /** Equal on both ends; null where order alone pairs them. */
  readonly taskId: TaskId | undefined
  /** Equal on both ends; 0 where a task has one part. */
  readonly part: Part
}

/** A submitted receive. */
export interface RecvOp {
  /** Tells a receive from a send. */
  readonly _tag: "RecvOp"
  /** The region that is written, of the sender's type and shape. */
  readonly tensor: Tensor
  /** The rank that sends it, which may be this one. */
  readonly srcRank: Rank
  /** Equal on both ends; null where order alone pairs them. */
  readonly taskId: TaskId | undefined
  /** Equal on both ends; 0 where a task has one part. */
  readonly part: Part
}

/** A half of a transfer with its local name, for error messages. */
export type CopyOp = (SendOp | RecvOp) & { readonly paramName: string | undefined }

/** Options of one submission. */
export interface SubmitOptions {
  /** Which tensor of the task; 0 by default. */
  readonly part?: Part
  /** The local name, for error messages. */
  readonly paramName?: string
}

/** What a run moved and how. Bytes are payload bytes; times are seconds. */
export const CopyReport = Schema.Struct({
  backend: Schema.String,
  rank: Schema.Int,
  localBytes: Schema.Int,
  localOps: Schema.Int,
  remoteBytesSent: Schema.Int,
  remoteBytesReceived: Schema.Int,
  remoteOps: Schema.Int,
  messages: Schema.Int,
  /** Largest total of staging buffers alive at once. */
  stagingBytes: Schema.Int,
  /** True where the program of the previous run was used again. */
  reusedProgram: Schema.Boolean,
  /** Where the run belongs to a plan: how many runs that takes on the rank with most. */
  planRuns: Schema.optionalKey(Schema.Int),
  phases: Schema.Struct({
    handshake: Schema.Finite,
    prepare: Schema.Finite,
    pack: Schema.Finite,
    local: Schema.Finite,
    transfer: Schema.Finite,
    unpack: Schema.Finite,
    writeback: Schema.Finite,
    outcome: Schema.Finite
  }),
  peers: Schema.Array(
    Schema.Struct({
      peer: Schema.Int,
      bytesSent: Schema.Int,
      bytesReceived: Schema.Int,
      path: Schema.String,
      reason: Schema.String,
      /** Device times, where the driver knows them. */
      seconds: Schema.optionalKey(Schema.Struct({ pack: Schema.Finite, wire: Schema.Finite, unpack: Schema.Finite }))
    })
  )
})
export type CopyReport = typeof CopyReport.Type

/** A plan that is carried out in one run or several. */
export interface RunPlan {
  /** Equal on all ranks that planned alike. */
  readonly digest: Digest
  /** Runs that this rank needs. Every rank takes part in as many as the rank with most needs. */
  readonly runs: number
  /** Name and digest of each part, so that an error can name what differs. */
  readonly contents?: () => ReadonlyArray<readonly [name: string, digest: Digest]>
}

/** Options of one run. */
export interface RunOptions {
  /** What the run belongs to; ranks whose plans differ fail before a byte moves. */
  readonly plan?: RunPlan
  /** Instead of running, make this failure of the caller known: `run` then fails with it on every rank. */
  readonly refuse?: CopyError
  /** The run succeeds on all ranks of the group or on none, as far as they live: it is agreed on even where it is known. */
  readonly together?: boolean
  /** Work that fills the sources; awaited before anything else. */
  readonly after?: ReadonlyArray<Fence>
  /**
   * What completes the received data on this rank, as casts into their destination. Runs after this rank's last byte and
   * before ranks exchange how the run ended, so its failure is everybody's.
   */
  readonly finish?: Effect.Effect<void, CopyError>
  /** Called with the bytes moved so far on this rank. */
  readonly onProgress?: (movedBytes: number, totalBytes: number) => Effect.Effect<void>
}

/** What the copy service does. */
export interface CopyServiceShape {
  /** Name of the backend that moves the bytes. */
  readonly backend: string
  /** Number of this rank in the group. */
  readonly rank: Rank
  /** Ranks of the group. */
  readonly worldSize: number
  /** Of the driver. */
  readonly capabilities: CopyDriverCapabilities
  /** Whether the driver is there; a broken one is built again by the next run. */
  readonly state: Effect.Effect<"Ready" | "Broken">
  /** Queues a send of a region to a rank, for the next run. */
  readonly submitSend: (
    tensor: Tensor,
    destRank: Rank,
    taskId?: TaskId,
    options?: SubmitOptions
  ) => Effect.Effect<void, CopyError>
  /** Queues a receive into a region from a rank, for the next run. */
  readonly submitRecv: (
    tensor: Tensor,
    srcRank: Rank,
    taskId?: TaskId,
    options?: SubmitOptions
  ) => Effect.Effect<void, CopyError>
  /**
   * Queues many at once. Callers leave the list as it is: one that was run before is known again by itself, and costs next
   * to nothing to check and agree on.
   */
  readonly submitAll: (ops: ReadonlyArray<CopyOp>) => Effect.Effect<void, CopyError>
  /**
   * Moves everything that is queued; every rank calls it. It ends well when this rank's bytes are there and its sources may
   * change; it fails with one named error on all ranks that exchange with a rank that failed.
   */
  readonly run: (options?: RunOptions) => Effect.Effect<CopyReport, CopyError>
}

/** The service that moves tensors between ranks: queue sends and receives on each, then `run` on all of them. */
export class CopyService extends Context.Service<CopyService, CopyServiceShape>()(
  "@tensorferry/core/service/CopyService"
) {}
