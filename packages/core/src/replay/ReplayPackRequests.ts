// SPDX-License-Identifier: Apache-2.0
/**
 * How a learner has the next batch packed: it names tick, seed, rows and slot; whoever holds the ring packs the rows into
 * that slot's memory and answers when they are complete.
 *
 * Contract
 * - One slot has one request at a time. Between a request and its answer the slot's memory belongs to the packer.
 * - `pack` succeeds only when all rows are in place. Interrupted, it ends when the packer has let go of the slot (or, in
 *   another process, did not say so for some seconds; that process then writes to a mapping of its own, which harms
 *   nobody who has freed theirs).
 * - Same seed, tick and ring content: same rows.
 *
 * Rows travel through shared memory only. Requests and answers, some hundred bytes each, go over a channel that both
 * processes have anyway (`ReplayPackChannel`): Node's `Atomics.wait` does not work on mapped memory, and a mailbox that is
 * polled would cost a core or add delay. A channel also closes at once when the other process exits.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { type Tensor, tensorBytes } from "../tensor/Tensor.ts"
import { packRows } from "./ReplayPack.ts"
import { batchError, type ReplayPipelineError, type ReplayPipelineReason } from "./ReplayPipelineError.ts"
import type { ReplayRingError } from "./ReplayRingError.ts"
import type { ReplayRing } from "./ReplayRingHeader.ts"

/** Which rows to pack into which host slot. */
export interface PackRequest {
  readonly tick: number
  readonly seed: number
  readonly rows: number
  readonly slot: number
}

/** What a pack has put into a host slot. */
export interface PackedBatch {
  readonly tick: number
  readonly slot: number
  /** Oldest row of the snapshot that was sampled, and one behind its newest. */
  readonly first: bigint
  readonly end: bigint
  /** Rows that were overwritten while they were packed and drawn again; with 0 the batch is `drawRows` of the snapshot. */
  readonly redrawn: number
  /** The process that packed. */
  readonly pid: number
  /** When it began and ended, by the machine's monotonic clock, in nanoseconds. */
  readonly startedAt: bigint
  readonly endedAt: bigint
}

/** How a learner asks for packs, wherever they are made. */
export interface ReplayPackRequestsShape {
  /** Has a batch packed into a host slot; ends when all of its rows are there. */
  readonly pack: (request: PackRequest) => Effect.Effect<PackedBatch, ReplayPipelineError>
}

/** The service by which a pipeline asks for the batch of a tick to be packed into a host slot. */
export class ReplayPackRequests extends Context.Service<ReplayPackRequests, ReplayPackRequestsShape>()(
  "@tensorferry/core/replay/ReplayPackRequests"
) {}

const tags: Partial<Record<ReplayRingError["reason"]["_tag"], ReplayPipelineReason["_tag"]>> = {
  RingTorn: "RingTorn",
  Overwritten: "Overwritten"
}

const remedies: Partial<Record<ReplayPipelineReason["_tag"], string>> = {
  Overwritten: "Make the ring larger, or append less per tick."
}

const ringFailed = (request: PackRequest, { reason }: ReplayRingError): ReplayPipelineError => {
  const tag = tags[reason._tag] ?? "PackFailed"
  const isEmpty = reason._tag === "RingEmpty"
  return batchError(tag, request, {
    op: "pack",
    detail: reason.detail,
    remedy: isEmpty ? "Append rows before a batch is prepared." : (remedies[tag] ?? reason.remedy),
    isRetryable: isEmpty || tag === "Overwritten"
  })
}

/** Packs in this process, from the ring into the memory of host slots. */
export const packFromRing =
  (ring: ReplayRing, slots: ReadonlyArray<Tensor>): ReplayPackRequestsShape["pack"] =>
  (request) =>
    Effect.suspend(() => {
      const slot = slots[request.slot]
      const into = slot === undefined ? undefined : tensorBytes(slot)
      if (into === undefined) {
        return Effect.fail(
          batchError("PackFailed", request, {
            op: "pack",
            detail: `Of ${slots.length} slots, none has this number and memory that the host can touch.`,
            remedy: "Give the packer the pipeline's own host slots, and keep them allocated."
          })
        )
      }
      const startedAt = process.hrtime.bigint()
      return packRows({ ring, into, seed: request.seed, tick: request.tick, rows: request.rows }).pipe(
        Effect.mapError((error) => ringFailed(request, error)),
        Effect.map(({ first, end, redrawn }) => {
          const { tick, slot: number } = request
          return {
            tick,
            slot: number,
            first,
            end,
            redrawn,
            pid: process.pid,
            startedAt,
            endedAt: process.hrtime.bigint()
          }
        })
      )
    })

/** A collector in the learner's own process. */
export const layerInProcess = (ring: ReplayRing, slots: ReadonlyArray<Tensor>): Layer.Layer<ReplayPackRequests> =>
  Layer.succeed(ReplayPackRequests, ReplayPackRequests.of({ pack: packFromRing(ring, slots) }))
