// SPDX-License-Identifier: Apache-2.0
/**
 * Carries out one rank's mesh plan: contributes, reduces, sends, receives, casts, keeps, and runs the destination's refresh
 * hooks once, after the last byte.
 *
 * Collective over the copy service's group: every rank of the job calls it, with a source, a destination, both or neither.
 * A rank whose tensors do not fit its plan, or whose plan is not that of the others, makes the call fail on every rank
 * before any byte moves.
 *
 * Source and destination may share memory in any way: boxes that the update would overwrite are copied first. Broadcast
 * chunks travel as one send per destination; the sender fills their buffer once where all of them are in one wave.
 */
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import type { Rank } from "../base/Ids.ts"
import type { MeshPlan } from "../ir/MeshPlan.ts"
import { reshardError } from "../reshard/ReshardError.ts"
import type { UpdateMemory } from "../reshard/UpdateMemory.ts"
import { engineFailed } from "../reshard/Writeback.ts"
import { type CopyReport, CopyService } from "../service/CopyService.ts"
import { ProcessGroup } from "../service/ProcessGroup.ts"
import { annotatePhase, inSpan } from "../service/Spans.ts"
import { type Fence, TensorEngine, type TensorEngineShape } from "../service/TensorEngine.ts"
import type { TensorDict } from "../tensor/TensorDict.ts"
import { runPipeline } from "./BucketPipeline.ts"
import { allocateDense, makeBufferPool } from "./BufferPool.ts"
import { agreeOnMeshPlan, type MeshAgreement, type MeshSettings } from "./MeshAgreement.ts"
import { bufferLimit, parcelsOf, reductionKey, type StagingRule, scheduleOf } from "./MeshParcels.ts"
import { makeReductions } from "./MeshReductions.ts"
import { type MeshFailure, makeMeshRuns, tellOthers } from "./MeshRuns.ts"
import { type MeshViews, overwrittenChunks, resolveViews } from "./MeshTensors.ts"

/** How one update runs; the settings are equal on all ranks, the rest is each rank's own. */
export interface MeshOptions extends MeshSettings {
  /** What an earlier `agreeOnMeshPlan` settled for these plans; without it the update begins with one. */
  readonly agreement?: MeshAgreement
  /** Work that fills the source; awaited before anything is read. */
  readonly after?: ReadonlyArray<Fence>
  /** Where buffers come from; without it the update allocates them and frees them at its end. */
  readonly memory?: UpdateMemory
  /** Called with the bytes received so far on this rank. */
  readonly onProgress?: (movedBytes: number, totalBytes: number) => Effect.Effect<void>
}

/** What an update moved and what memory it took. Bytes; numbers of this rank. */
export interface MeshReport {
  readonly rank: Rank
  readonly bytesSent: number
  readonly bytesReceived: number
  /** Copied within the rank. */
  readonly localBytes: number
  /** Runs of the copy service, the same on all ranks. */
  readonly waves: number
  /** Buckets, or pieces of long ones, sent and received, each destination by itself. */
  readonly bucketsSent: number
  readonly bucketsReceived: number
  /** Most bytes of buckets' buffers at once, and what they could not exceed. */
  readonly bufferBytes: number
  readonly bufferLimit: number
  /** Results of reductions, kept until the update ends. */
  readonly reducedBytes: number
  /** Source boxes that were copied because the update overwrites them, kept until the update ends. */
  readonly savedBytes: number
  /** Most staging bytes of the copy service in one wave. */
  readonly stagingBytes: number
  /** How often a bucket was asked to launch before its buffer was ready. */
  readonly launchesDeferred: number
  /** One per wave. */
  readonly copies: ReadonlyArray<CopyReport>
}

/** Copies the source boxes that the update overwrites, and reads them from there. */
const saveOverwritten = Effect.fnUntraced(function* (rank: Rank, engine: TensorEngineShape, views: MeshViews) {
  const overwritten = overwrittenChunks(views)
  const sources = new Map(views.sources)
  const boxes = new Map(overwritten.map((chunk) => [reductionKey(chunk), sources.get(chunk)!] as const))
  const saved = yield* allocateDense(rank, engine, [...boxes.values()])
  const moves = [...boxes.values()].map((src, at) => ({ src, dst: saved.tensors[at]! }))
  if (moves.length > 0) yield* Effect.mapError(engine.copy(moves), (error) => engineFailed(rank, "save", error))
  const places = new Map([...boxes.keys()].map((key, at) => [key, saved.tensors[at]!] as const))
  for (const chunk of overwritten) sources.set(chunk, places.get(reductionKey(chunk))!)
  return { views: { ...views, sources } satisfies MeshViews, savedBytes: saved.byteLength }
})

export const executeMeshPlan = Effect.fn("executeMeshPlan")(function* (
  plan: MeshPlan,
  source?: TensorDict,
  destination?: TensorDict,
  options: MeshOptions = {}
): Effect.fn.Return<MeshReport, MeshFailure, CopyService | TensorEngine | ProcessGroup> {
  const service = yield* CopyService
  const engine = yield* TensorEngine
  const group = yield* ProcessGroup
  const { rank } = service
  yield* annotatePhase(() => ({ rank, tensors: plan.tensors.length }))
  const fit = Effect.gen(function* () {
    for (const fence of options.after ?? []) {
      yield* Effect.mapError(fence.await, (error) => engineFailed(rank, "after", error))
    }
    const views = yield* resolveViews(plan, rank, source, destination)
    if (options.agreement !== undefined && options.agreement.sharedDigest !== plan.sharedDigest) {
      return yield* reshardError("InvalidPlan", {
        rank,
        detail: "The ranks agreed on a plan other than this one.",
        remedy: "Call agreeOnMeshPlan for this plan, or leave the agreement out."
      })
    }
    return views
  })
  // The other ranks wait in the first run, so that is where they hear of it.
  const resolved = yield* Effect.tapError(fit, (error) =>
    Effect.ignore(service.run({ refuse: tellOthers(rank, error) }))
  )
  const agreement = options.agreement ?? (yield* agreeOnMeshPlan(plan, options))
  const schedule = scheduleOf(rank, parcelsOf(plan, agreement.pieceBytes), agreement.maxInFlight)
  const rule: StagingRule = { tensors: plan.tensors, isPacked: !service.capabilities.gather }
  const runs = makeMeshRuns(service)
  const update = Effect.gen(function* () {
    const memory = options.memory === undefined ? engine : yield* options.memory.borrow(engine)
    const { views, savedBytes } = yield* saveOverwritten(rank, memory, resolved)
    const reductions = yield* makeReductions(plan, views.sources, memory)
    const limit = bufferLimit(rule, schedule, agreement.reductionWaves)
    const pool = yield* makeBufferPool(rank, memory, limit)
    // Closes first, so that nothing in the background touches memory that is gone.
    const background = yield* Scope.fork(yield* Effect.scope)
    const context = { plan, rule, service, engine, pool, views, reductions, background }
    const moved = yield* runPipeline(context, runs, { schedule, agreement, group, onProgress: options.onProgress })
    const sum = (of: (copy: CopyReport) => number) => moved.copies.reduce((total, copy) => total + of(copy), 0)
    return {
      ...moved,
      rank,
      bytesSent: sum((copy) => copy.remoteBytesSent),
      bytesReceived: sum((copy) => copy.remoteBytesReceived),
      waves: moved.copies.length,
      bufferBytes: pool.peakBytes(),
      bufferLimit: limit,
      reducedBytes: reductions.reducedBytes,
      savedBytes,
      stagingBytes: moved.copies.reduce((most, copy) => Math.max(most, copy.stagingBytes), 0)
    } satisfies MeshReport
  })
  const report = yield* runs.guard(Effect.scoped(update))
  if (destination !== undefined && destination.refreshCaches.length > 0) {
    yield* inSpan(Effect.all(destination.refreshCaches, { discard: true }), "reshard.refresh")
  }
  return report
})
