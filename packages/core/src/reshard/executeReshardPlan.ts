// SPDX-License-Identifier: Apache-2.0
/**
 * Carries out one rank's plan, of either planner: contributes and reduces, sends regions of the source, receives into the
 * destination, casts and transforms on the way, and runs the destination's refresh hooks once, after the last byte.
 *
 * Collective over the copy service's group: every rank of the job calls it, with a source, a destination, both or neither.
 * A rank whose tensors do not fit its plan, or whose plan is not that of the others, makes the call fail on every rank
 * before any byte moves. An update that is known is repeated by those ranks alone that exchange something, unless `together`
 * says otherwise (see `CopyService`).
 *
 * Source and destination of a rank may share memory in any way: what is received from oneself at the very same place stays
 * where it is, and every other region that is both sent and overwritten is copied to a buffer before anything is written.
 *
 * While a wave is under way, the buffers of the next one are filled and those of the one before are emptied.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { digestOf } from "../base/Digest.ts"
import type { Rank } from "../base/Ids.ts"
import { m2mDigest } from "../ir/M2MMap.ts"
import type { ReshardPlan } from "../ir/ReshardPlan.ts"
import { type AnyPlan, opsOf } from "../planner/MeshOps.ts"
import { opByteLength } from "../planner/PlanCheck.ts"
import { defaultWaveBytes, legBytes, type Waves, wavesOf } from "../planner/Waves.ts"
import { type CopyOp, type CopyReport, CopyService, type RunPlan } from "../service/CopyService.ts"
import { annotatePhase, inSpan } from "../service/Spans.ts"
import { type Fence, TensorEngine } from "../service/TensorEngine.ts"
import type { Move } from "../tensor/Tensor.ts"
import type { TensorDict } from "../tensor/TensorDict.ts"
import type { ReshardTransform } from "../transform/ReshardTransform.ts"
import { engineFailed } from "./Buffers.ts"
import {
  emptyBuffers,
  finishTransforms,
  type Incoming,
  prepareIncoming,
  type Sides,
  type Writebacks
} from "./Incoming.ts"
import { joinReports } from "./joinReports.ts"
import { type Outgoing, prepareOutgoing } from "./Outgoing.ts"
import { makePlanRuns, type PlanRuns, type UpdateFailure } from "./PlanRuns.ts"
import { checkTensors } from "./PlanTensors.ts"
import { type ReshardError, reshardError } from "./ReshardError.ts"
import { cachedUpdate, cacheUpdate } from "./UpdateCache.ts"
import type { UpdateMemory } from "./UpdateMemory.ts"

/** Options of one update. */
export interface ExecuteOptions {
  /** What changes values on the way; without one they travel as they are. */
  readonly transform?: ReshardTransform
  /** Work that fills the source; awaited before anything is read. */
  readonly after?: ReadonlyArray<Fence>
  /** Where buffers come from; without it the update allocates them and frees them at its end. */
  readonly memory?: UpdateMemory
  /**
   * Most bytes that wait in buffers on their way from one rank to another; equal on all ranks. What the plan says by
   * default, else 1 GiB. A rank has four times as many at most for each rank that it exchanges with.
   */
  readonly waveBytes?: number
  /** Called between runs with the bytes moved so far and those of the whole plan. */
  readonly onProgress?: (movedBytes: number, totalBytes: number) => Effect.Effect<void>
  /** The update succeeds on all ranks or on none, as far as they live, instead of by those that exchange something. */
  readonly together?: boolean
}

/** What one update did on this rank. */
export interface ReshardReport {
  readonly rank: Rank
  /** All waves together. */
  readonly copy: CopyReport
  /** Runs of the copy service, the same on all ranks. */
  readonly waves: number
  /** How many sends were copied to buffers first, because the update overwrites their memory, and the bytes of that. */
  readonly stagedSends: number
  readonly stagedBytes: number
  /** How many receives were written in each way. */
  readonly writebacks: Writebacks
  /** Buffers for what is cast or contributed, and results of reductions, in bytes. */
  readonly bufferBytes: number
  readonly reducedBytes: number
}

/** What the ranks compare before a byte moves, and what an error can name. */
const statementOf = (given: AnyPlan, waveBytes: number, runs: number): RunPlan => {
  const { rosterDigest } = opsOf(given)
  const digest = digestOf([rosterDigest, waveBytes])
  if (given.format !== "tensorferry.mesh-plan") return { digest, runs }
  const contents = () => {
    const maps = given.maps.map(m2mDigest)
    return given.tensors.map(
      ({ name, shape, sourceDtype, targetDtype, map }) =>
        [name, digestOf([shape, sourceDtype, targetDtype, maps[map]])] as const
    )
  }
  return { digest, runs, contents }
}

/** Everything that is known of an update before its first byte moves. */
interface Update {
  readonly plan: ReshardPlan
  readonly sides: Sides
  readonly schedule: Waves
  readonly statement: RunPlan
}

type Moved = Omit<ReshardReport, "rank" | "waves"> & {
  /** The operations of an update that needs no memory and nothing but one run: the next one is the same. */
  readonly repeatable: ReadonlyArray<CopyOp> | undefined
}

const nothingStaged = { stagedSends: 0, stagedBytes: 0, bufferBytes: 0, reducedBytes: 0, repeatable: undefined }

/** A plan from a file, or a caller, may not cut an update into more pieces than this. */
const mostPieces = 2 ** 20

const waveFault = ({ rank, sendOps, recvOps, reductionBytes = 0 }: ReshardPlan, waveBytes: number) => {
  const bytes = [...sendOps, ...recvOps].reduce((sum, op) => sum + opByteLength(op), reductionBytes)
  return Number.isSafeInteger(waveBytes) && waveBytes > 0 && bytes / waveBytes <= mostPieces
    ? undefined
    : reshardError("InvalidPlan", {
        rank,
        detail: `${bytes} bytes cannot travel in waves of ${waveBytes} bytes.`,
        remedy: `State a positive whole number, large enough for at most ${mostPieces} pieces.`
      })
}

/** Walks through the waves of an update. */
const moveWaves = Effect.fnUntraced(function* (
  { plan, sides, schedule: { reductions, waves }, statement }: Update,
  incoming: Incoming,
  runs: PlanRuns,
  onProgress: ExecuteOptions["onProgress"]
): Effect.fn.Return<Moved, UpdateFailure, CopyService | TensorEngine | Scope.Scope> {
  const service = yield* CopyService
  const engine = yield* TensorEngine
  const { rank } = plan
  // Closes first, so that nothing in the background touches memory that is gone.
  const background = yield* Scope.fork(yield* Effect.scope)
  const forked = <A, E>(work: Effect.Effect<A, E>) => Effect.forkIn(work, background, { startImmediately: true })
  const copied = (op: string, moves: ReadonlyArray<Move>) =>
    moves.length === 0 ? Effect.void : Effect.mapError(engine.copy(moves), (error) => engineFailed(rank, op, error))
  const withEngine = Effect.provideService(TensorEngine, engine)

  // Contributions leave before anything is written.
  const unwritten = { casts: incoming.casts, results: [], written: [] }
  let outgoing: Outgoing = yield* prepareOutgoing(plan, waves.slice(0, reductions), sides, unwritten)
  let first = 0
  const fill = (wave: number) => {
    const fills = outgoing.waves[wave - first]?.fills ?? []
    if (fills.length === 0) return Effect.void
    return inSpan(copied("cast", fills), "reshard.cast", () => ({ rank, wave, ops: fills.length }))
  }
  const empty = (wave: number): Effect.Effect<void, ReshardError> => {
    const arrived = incoming.waves[wave]
    const ops = (arrived?.copies.length ?? 0) + (arrived?.reductions.length ?? 0)
    if (arrived === undefined || ops === 0) return Effect.void
    return inSpan(withEngine(emptyBuffers(rank, arrived)), "reshard.writeback", () => ({ rank, wave, ops }))
  }
  /** Reductions are done; now the destination is written, so what that would overwrite is kept first. */
  const beginTransfers = Effect.gen(function* () {
    yield* emptyBuffers(rank, { copies: [], reductions: incoming.alone })
    outgoing = yield* prepareOutgoing(plan, waves.slice(reductions), sides, incoming)
    first = reductions
  })

  const totalBytes = waves.flatMap(({ recvs }) => recvs).reduce((sum, leg) => sum + legBytes(leg), 0)
  const reports: Array<CopyReport> = []
  let ops: ReadonlyArray<CopyOp> = []
  let needsNothing =
    waves.length === 1 && incoming.transforms.length + incoming.bufferBytes + incoming.reducedBytes === 0
  let movedBytes = 0
  let emptying: Fiber.Fiber<void, ReshardError> | undefined
  for (let at = 0; at < runs.total(); at++) {
    if (at === reductions) {
      if (emptying !== undefined) yield* Fiber.join(emptying)
      yield* beginTransfers
    }
    if (at === 0 || at === reductions) yield* fill(at)
    const leaving = outgoing.waves[at - first]
    ops = [...(leaving?.ops ?? []), ...(incoming.waves[at]?.ops ?? [])]
    const following = at + 1 >= waves.length || at + 1 === reductions ? undefined : yield* forked(fill(at + 1))
    const [before, moved, casts] = [emptying, movedBytes, at === reductions ? outgoing.casts : []]
    const isLast = at + 1 === waves.length
    if (outgoing.keptSends + casts.length + (leaving?.fills.length ?? 0) > 0) needsNothing = false
    const finish = Effect.gen(function* () {
      if (before !== undefined) yield* Fiber.join(before)
      yield* copied("cast", casts)
      if (!isLast) return
      yield* empty(at)
      yield* withEngine(finishTransforms(rank, sides.transform, incoming.transforms))
    })
    // Right before the run, so that an update which ends earlier leaves nothing in the queue.
    yield* service.submitAll(ops)
    const report = yield* runs.run(
      {
        plan: statement,
        ...(onProgress === undefined ? {} : { onProgress: (bytes) => onProgress(moved + bytes, totalBytes) })
      },
      needsNothing ? undefined : finish
    )
    reports.push(report)
    movedBytes += report.remoteBytesReceived + report.localBytes
    emptying = isLast ? undefined : yield* forked(empty(at))
    if (following !== undefined) yield* Fiber.join(following)
  }
  const castBytes = [...incoming.casts.keys()].reduce((sum, op) => sum + opByteLength(op), 0)
  const { keptSends, keptBytes } = outgoing
  return {
    copy: joinReports(reports, { localBytes: castBytes, localOps: incoming.casts.size }),
    stagedSends: keptSends,
    stagedBytes: keptBytes,
    writebacks: incoming.counts,
    bufferBytes: incoming.bufferBytes + outgoing.bufferBytes,
    reducedBytes: incoming.reducedBytes,
    repeatable: needsNothing && reports.length === 1 ? ops : undefined
  }
})

/**
 * Carries out one rank's plan of either planner: moves, casts, transforms and reduces what it says, from `source` into
 * `destination`. Every rank of the job calls it, with its own plan; a rank without a side leaves that out. It fails on all
 * ranks before any byte moves where plans or tensors do not fit. The report has bytes, times and paths.
 *
 * ```ts
 * const report = yield* executeReshardPlan(plan, source, destination)
 * ```
 */
export const executeReshardPlan = Effect.fn("executeReshardPlan")(function* (
  given: AnyPlan,
  source?: TensorDict,
  destination?: TensorDict,
  options: ExecuteOptions = {}
): Effect.fn.Return<ReshardReport, UpdateFailure, CopyService | TensorEngine> {
  const service = yield* CopyService
  const engine = yield* TensorEngine
  const { rank } = service
  const { transform, onProgress } = options
  yield* annotatePhase(() => ({ rank }))
  let waves = 1
  const runs = makePlanRuns(service, () => waves, options.together)

  const body = Effect.gen(function* () {
    for (const fence of options.after ?? []) {
      yield* Effect.mapError(fence.await, (error) => engineFailed(rank, "after", error))
    }
    const known = transform === undefined ? cachedUpdate(given, options.waveBytes, source, destination) : undefined
    if (known !== undefined) {
      yield* service.submitAll(known.ops)
      const progress = onProgress === undefined ? {} : { onProgress }
      const reports = [yield* runs.run({ plan: known.statement, ...progress }, undefined)]
      // Other ranks may cut theirs in another way than before, as without a transform.
      while (reports.length < runs.total()) reports.push(yield* runs.run({ plan: known.statement }, undefined))
      const copy = joinReports(reports, { localBytes: 0, localOps: 0 })
      return { ...nothingStaged, copy, writebacks: known.writebacks }
    }
    const fault = checkTensors(given, rank, source, destination)
    if (fault !== undefined) return yield* fault
    const plan = opsOf(given)
    const waveBytes = options.waveBytes ?? plan.waveBytes ?? defaultWaveBytes
    const uncut = waveFault(plan, waveBytes)
    if (uncut !== undefined) return yield* uncut
    const schedule = wavesOf(plan, waveBytes, (name) => transform?.shouldTransform(name) === true)
    waves = schedule.waves.length
    const sides: Sides = { source, destination, transform }
    const statement = statementOf(given, waveBytes, waves)
    const incoming = yield* prepareIncoming(plan, schedule, sides)
    const moved = yield* moveWaves({ plan, sides, schedule, statement }, incoming, runs, onProgress)
    if (moved.repeatable !== undefined && transform === undefined) {
      const { repeatable, writebacks } = moved
      cacheUpdate(given, options.waveBytes, source, destination, { ops: repeatable, writebacks, statement })
    }
    return moved
  })
  const update = Effect.gen(function* () {
    const memory = options.memory === undefined ? engine : yield* options.memory.borrow(engine)
    return yield* Effect.provideService(body, TensorEngine, memory)
  })
  const { repeatable: _, ...moved } = yield* runs.guard(Effect.scoped(update))
  if (destination !== undefined && destination.refreshCaches.length > 0) {
    yield* inSpan(Effect.all(destination.refreshCaches, { discard: true }), "reshard.refresh")
  }
  return { rank, waves: runs.total(), ...moved }
})
