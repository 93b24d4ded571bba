// SPDX-License-Identifier: Apache-2.0
/**
 * Carries the parcels of one update through the copy service, wave after wave. While a wave is under way, the buffers of the
 * next one are filled and those of the one before are emptied.
 *
 * Invariants: all ranks walk through the same number of waves, each one run of the copy service. A failure anywhere reaches
 * every rank: in a run as the run's own, between two runs by a refused one. Memory of buffers is bounded by the schedule.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { Rank } from "../base/Ids.ts"
import { type ReshardError, reshardError } from "../reshard/ReshardError.ts"
import { engineFailed } from "../reshard/Writeback.ts"
import type { CopyReport } from "../service/CopyService.ts"
import type { ProcessGroupShape } from "../service/ProcessGroup.ts"
import { inSpan } from "../service/Spans.ts"
import { type Move, tensorByteLength } from "../tensor/Tensor.ts"
import type { MeshAgreement } from "./MeshAgreement.ts"
import type { Parcel, Schedule, Wave } from "./MeshParcels.ts"
import { type MeshFailure, type MeshRuns, tellOthers } from "./MeshRuns.ts"
import {
  makeInbound,
  makeOutbound,
  type RunProgress,
  type Transferable,
  type TransferableError,
  type TransferContext
} from "./Transferable.ts"

export interface PipelineReport {
  /** Parcels of this rank, each destination by itself. */
  readonly bucketsSent: number
  readonly bucketsReceived: number
  readonly localBytes: number
  /** How often a parcel was asked to launch before its buffer was ready. */
  readonly launchesDeferred: number
  /** One per wave. */
  readonly copies: ReadonlyArray<CopyReport>
}

export interface PipelineInput {
  readonly schedule: Schedule
  readonly agreement: MeshAgreement
  readonly group: ProcessGroupShape
  /** Called with the bytes received so far on this rank. */
  readonly onProgress?: ((movedBytes: number, totalBytes: number) => Effect.Effect<void>) | undefined
}

/** A step out of order would be a fault of this file, which no caller can do anything about. */
const inOrder = <A>(step: Effect.Effect<A, MeshFailure | TransferableError>): Effect.Effect<A, MeshFailure> =>
  Effect.catchTag(step, "TransferableError", Effect.die)

/** A wave's parcels and whether their bytes have arrived. */
interface Stage {
  readonly sends: ReadonlyArray<Transferable>
  readonly recvs: ReadonlyArray<Transferable>
  readonly progress: RunProgress
}

const stageOf = (context: TransferContext, wave: Wave | undefined): Stage => {
  const progress: RunProgress = { hasArrived: false }
  return {
    progress,
    sends: (wave?.sends ?? []).map((outbound) => makeOutbound(context, outbound, progress)),
    recvs: (wave?.recvs ?? []).map((inbound) => makeInbound(context, inbound, progress))
  }
}

/** What the rank keeps: copied when the source or the reduction allows. */
const copyLocal = ({ plan, views, reductions, engine }: TransferContext): Effect.Effect<number, ReshardError> =>
  Effect.gen(function* () {
    const copied = (moves: ReadonlyArray<Move>) =>
      moves.length === 0
        ? Effect.void
        : Effect.mapError(engine.copy(moves), (error) => engineFailed(plan.rank, "local copy", error))
    const atOnce: Array<Move> = []
    const later: Array<Move> = []
    let bytes = 0
    for (const chunk of plan.localChunks) {
      const dst = views.targets.get(chunk)
      if (dst === undefined) continue
      const { tensor: src, ready } = reductions.read(chunk)
      bytes += tensorByteLength(dst)
      if (ready === undefined) atOnce.push({ dst, src })
      else later.push({ dst, src })
    }
    yield* copied(atOnce)
    yield* reductions.reduceAlone
    for (const chunk of plan.localChunks) {
      const { ready } = reductions.read(chunk)
      if (ready !== undefined) yield* Deferred.await(ready)
    }
    yield* copied(later)
    return bytes
  })

/** Moves everything. The context's background scope must close before the memory that the context knows goes away. */
export const runPipeline = (
  context: TransferContext,
  runs: MeshRuns,
  { schedule, agreement, group, onProgress }: PipelineInput
): Effect.Effect<PipelineReport, MeshFailure> => {
  const { plan, reductions, background } = context
  const { reductionWaves, transferWaves } = agreement
  // Ranks that only copy locally exchange how that ended, too.
  const waves = Math.max(1, reductionWaves + transferWaves)
  const waveAt = (at: number): Wave | undefined =>
    at < reductionWaves ? schedule.reductions[at] : schedule.transfers[at - reductionWaves]
  const all = [...schedule.reductions, ...schedule.transfers]
  const count = (of: (wave: Wave) => ReadonlyArray<number>): number =>
    all.flatMap(of).reduce((sum, value) => sum + value, 0)
  const totalBytes = count(({ recvs }) => recvs.map(({ parcel }) => payloadBytes(parcel)))
  const inBackground = <A>(work: Effect.Effect<A, MeshFailure>) =>
    work.pipe(
      // Whoever waits for a reduction that now cannot come shall hear of it.
      Effect.onError((cause) => {
        const failed = cause.reasons.find((reason) => reason._tag === "Fail")?.error
        return reductions.abandon(failed?._tag === "ReshardError" ? failed : stopped(plan.rank))
      }),
      Effect.forkIn(background, { startImmediately: true })
    )
  const each = (transferables: ReadonlyArray<Transferable>, step: "prepare" | "finalize") =>
    Effect.forEach(transferables, (transferable) => inOrder(transferable[step]), { discard: true })
  /** Fills the buffers that a wave sends, or empties those that it received. */
  const buffers = (name: "mesh.pack" | "mesh.unpack", wave: number, transferables: ReadonlyArray<Transferable>) =>
    transferables.length === 0
      ? Effect.void
      : inSpan(each(transferables, name === "mesh.pack" ? "prepare" : "finalize"), name, () => ({
          rank: plan.rank,
          wave,
          buckets: transferables.length
        }))

  return Effect.gen(function* () {
    const copies: Array<CopyReport> = []
    let launchesDeferred = 0
    let movedBytes = 0
    let localBytes = 0
    const launch = Effect.fnUntraced(function* (transferable: Transferable) {
      while (!(yield* inOrder(transferable.launch))) {
        launchesDeferred += 1
        yield* group.keepAlive(Deferred.await(transferable.bufferReadyEvent))
      }
    })
    const local = yield* inBackground(inSpan(copyLocal(context), "mesh.local", () => ({ rank: plan.rank })))
    /** Empties the buffers of the wave before. */
    let emptying: Fiber.Fiber<void, MeshFailure> | undefined
    let stage = stageOf(context, waveAt(0))
    yield* buffers("mesh.pack", 0, stage.sends)
    const runWave = Effect.fnUntraced(function* (at: number) {
      const isLast = at + 1 === waves
      const { sends, recvs, progress } = stage
      const emptyingBefore = emptying
      const movedBefore = movedBytes
      yield* each(recvs, "prepare")
      yield* Effect.forEach([...sends, ...recvs], launch, { discard: true })
      stage = stageOf(context, waveAt(at + 1))
      yield* buffers("mesh.pack", at + 1, stage.sends)
      // Part of the run, so that a rank which cannot write is not the only one that knows.
      let unwritten: MeshFailure | undefined
      const finish = Effect.gen(function* () {
        progress.hasArrived = true
        if (emptyingBefore !== undefined) yield* Fiber.join(emptyingBefore)
        if (!isLast) return
        yield* buffers("mesh.unpack", at, recvs)
        localBytes = yield* Fiber.join(local)
      }).pipe(
        Effect.mapError((error) => {
          unwritten = error
          return tellOthers(plan.rank, error)
        })
      )
      const run = runs.run({
        isLast,
        finish,
        ...(onProgress === undefined ? {} : { onProgress: (bytes) => onProgress(movedBefore + bytes, totalBytes) })
      })
      const report = yield* Effect.mapError(run, (error): MeshFailure => unwritten ?? error)
      movedBytes += report.remoteBytesReceived
      copies.push(report)
      yield* each(sends, "finalize")
      if (!isLast) emptying = yield* inBackground(buffers("mesh.unpack", at, recvs))
    })
    for (let at = 0; at < waves; at++) {
      const wave = waveAt(at)
      yield* inSpan(runWave(at), "mesh.wave", () => ({
        rank: plan.rank,
        wave: at,
        bucketsSent: wave?.sends.length ?? 0,
        bucketsReceived: wave?.recvs.length ?? 0
      }))
    }
    return {
      bucketsSent: count(({ sends }) => sends.map(({ to }) => to.length)),
      bucketsReceived: count(({ recvs }) => recvs.map(() => 1)),
      localBytes,
      launchesDeferred,
      copies
    }
  })
}

const payloadBytes = ({ pieces }: Parcel): number => pieces.reduce((sum, { nbytes }) => sum + nbytes, 0)

const stopped = (rank: Rank): ReshardError =>
  reshardError("WritebackFailed", {
    rank,
    op: "executeMeshPlan",
    detail: "The update ended before its reductions.",
    remedy: "See the update's own failure."
  })
