/**
 * The one implementation of `CopyService`, over any `CopyDriver`: queue, matching, agreement, staging, deadlines, report.
 *
 * Invariants: `run` takes the queue before anything can fail; all ranks pass the same sequence of collectives whatever
 * happens on one of them; staging never exceeds what the rank with the least allows.
 */

import { availableParallelism } from "node:os"
import type * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import type { Rank } from "../base/Ids.ts"
import { busyPoll, defaultBusyPollMillis } from "../service/BusyPolling.ts"
import { CopyDriver, type CopyDriverShape, type PeerPath } from "../service/CopyDriver.ts"
import {
  type CopyError,
  type CopyOp,
  type CopyReport,
  CopyService,
  type CopyServiceShape,
  copyError,
  type RunOptions
} from "../service/CopyService.ts"
import { ProcessGroup, type ProcessGroupShape } from "../service/ProcessGroup.ts"
import { annotatePhase, noteInPhase } from "../service/Spans.ts"
import { type Fence, TensorEngine, type TensorEngineShape } from "../service/TensorEngine.ts"
import { type Move, type Tensor, tensorByteLength } from "../tensor/Tensor.ts"
import { fromTensorError, nearerCause } from "./CopyFailures.ts"
import { type CopyBatch, memoryKey, totalsOf } from "./internal/batch.ts"
import { emptyBatch, makeBatchMemory } from "./internal/check.ts"
import {
  type Agreement,
  agree,
  agreeOnOutcome,
  fromGroupError,
  makeHandshakeMemory,
  type RunCollectives,
  resync
} from "./internal/handshake.ts"
import { localMoves, makeRounds, type Round } from "./internal/rounds.ts"
import { addPeerTimes, makeCopyTelemetry, makeRunTimes, peerNotes, type RunTimes } from "./internal/telemetry.ts"
import { makeDriverCalls } from "./internal/transfer.ts"

/** Staging and deadline of a copy service. */
export interface CopyServiceOptions {
  /** Most bytes of staging buffers at once, for drivers without `gather`. 64 MiB by default. */
  readonly stagingBytes?: number
  /** Without progress for this long, a transfer fails. The group's own deadline by default. */
  readonly deadline?: Duration.Duration
  /**
   * For this long from its start, a run keeps the JavaScript thread awake, so that it goes on as soon as bytes or ranks
   * arrive; this uses one core. 100 ms by default where the host has four cores for every rank of the group, else zero.
   */
  readonly busyPoll?: Duration.Duration
}

const defaultStagingBytes = 64 * 1024 * 1024

interface Compiled {
  readonly memory: string
  readonly agreed: string
  readonly rounds: ReadonlyArray<Round>
  readonly stagingBytes: number
  readonly messages: number
  readonly scope: Scope.Closeable
}

/** An agreement that is on its way, which an interruption of the run does not take back. */
interface Pending {
  readonly agreeing: Fiber.Fiber<Agreement, CopyError>
  readonly compiled: Compiled | undefined
  readonly driver: CopyDriverShape | undefined
}

interface Running {
  readonly driver: CopyDriverShape
  readonly scope: Scope.Closeable
}

const make = <E>(
  driverLayer: Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>,
  options: CopyServiceOptions
): Effect.Effect<CopyServiceShape, E, ProcessGroup | TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    const group: ProcessGroupShape = yield* ProcessGroup
    const engine: TensorEngineShape = yield* TensorEngine
    const environment: Context.Context<ProcessGroup | TensorEngine> = yield* Effect.context<
      ProcessGroup | TensorEngine
    >()
    const serviceScope = yield* Effect.scope
    const stagingBytes = options.stagingBytes ?? defaultStagingBytes
    const deadline = options.deadline ?? group.deadline
    const busyPollMillis =
      options.busyPoll === undefined
        ? defaultBusyPollMillis(availableParallelism(), group.size)
        : Duration.toMillis(options.busyPoll)

    const build: Effect.Effect<Running, E> = Effect.gen(function* () {
      const scope = yield* Scope.fork(serviceScope)
      const context = yield* Layer.buildWithScope(Layer.fresh(driverLayer), scope).pipe(
        Effect.provideContext(environment),
        Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
      )
      return { driver: yield* Effect.provideContext(CopyDriver, context), scope }
    })

    let running: Running | undefined = yield* build
    const { driver: first } = running
    const { capabilities } = first
    const telemetry = makeCopyTelemetry(first.name, group.rank)
    /** Counts runs, the same on every rank, so that traces of ranks can be put together. */
    let runs = 0
    let given: Array<ReadonlyArray<CopyOp>> = []
    let added: Array<CopyOp> = []
    const makeBatch = makeBatchMemory()
    const memory = makeHandshakeMemory()
    let isRunning = false
    /** True from the first to the last collective of a run. */
    let isUnderWay = false
    /** Tells the others that this rank left a run; the next run begins after they know. */
    let leaving: Fiber.Fiber<unknown, unknown> | undefined
    let compiled: Compiled | undefined
    /** While a run waits for the others to agree: what it would go on with. */
    let pending: Pending | undefined
    /** Moves within this rank, as the last run made them. */
    let local: ReadonlyArray<Move> = []
    let localOf: CopyBatch | undefined
    const rank = group.rank

    const drop = Effect.suspend(() => {
      const old = compiled
      compiled = undefined
      local = []
      localOf = undefined
      return old === undefined ? Effect.void : Scope.close(old.scope, Exit.void)
    })

    const breakDriver = Effect.suspend(() => {
      const old = running
      running = undefined
      return Effect.andThen(drop, old === undefined ? Effect.void : Scope.close(old.scope, Exit.void))
    })

    const ready: Effect.Effect<CopyDriverShape, CopyError> = Effect.suspend(() => {
      if (running !== undefined) return Effect.succeed(running.driver)
      return build.pipe(
        Effect.map((built) => {
          running = built
          return built.driver
        }),
        Effect.mapError((error) =>
          copyError("Broken", [rank], {
            backend: first.name,
            rank,
            op: "run",
            scope: "service",
            detail: `The driver broke in an earlier run and cannot be rebuilt: ${String(error)}`,
            remedy: "Close the service and make a new one."
          })
        )
      )
    })

    const { draftBatch, roundsOf, allocateStaging, draftsOfRound, roundOf } = makeRounds(engine, first, stagingBytes)
    const { bounded, transfer, abandon } = makeDriverCalls(first.name, group, deadline)

    const isReusable = (known: Compiled | undefined, agreement: Agreement): boolean =>
      !agreement.mustPrepare && known?.agreed === agreement.agreed

    /** What a step gave here, unless it failed anywhere: then the failure that is behind it, the same on every rank. */
    const settle = <A>(
      run: RunCollectives,
      label: "copy staging" | "copy prepare" | "copy outcome",
      done: Result.Result<A, CopyError>
    ): Effect.Effect<A, CopyError> =>
      Effect.gen(function* () {
        const own = Result.isFailure(done) ? done.failure : undefined
        const told = yield* Effect.result(agreeOnOutcome(run, label, own))
        if (Result.isFailure(told)) return yield* run.isOver ? told.failure : nearerCause(own, told.failure)
        if (told.success !== undefined) return yield* told.success
        return yield* Effect.fromResult(done)
      })

    /** Gives messages memory and has the driver compile them; every step is agreed on before the next. */
    const compile = Effect.fnUntraced(function* (
      run: RunCollectives,
      driver: CopyDriverShape,
      batch: CopyBatch,
      agreement: Agreement
    ) {
      yield* drop
      const scope = yield* Scope.fork(serviceScope)
      const drafts = draftBatch(batch)
      const agreed = <A>(label: "copy staging" | "copy prepare", step: Effect.Effect<A, CopyError>) =>
        Effect.gen(function* () {
          const done = yield* Effect.result(step)
          if (Result.isFailure(done) && done.failure.reason.scope === "service") run.mustRebuild = true
          return yield* settle(run, label, done)
        })
      const body = Effect.gen(function* () {
        const buffers = capabilities.gather
          ? new Map<string, Tensor>()
          : yield* agreed("copy staging", Scope.provide(allocateStaging(drafts), scope))
        const prepared = Effect.gen(function* () {
          const rounds: Array<Round> = []
          for (let index = 0; index < agreement.rounds; index++) {
            const round = roundOf(draftsOfRound(drafts, index), buffers)
            rounds.push({ ...round, program: yield* bounded("prepare", driver.prepare(round.messages)) })
          }
          return rounds
        })
        const rounds = yield* agreed("copy prepare", Scope.provide(prepared, scope))
        const staged = [...buffers.values()].reduce((sum, buffer) => sum + tensorByteLength(buffer), 0)
        return { rounds, staged }
      })
      const { rounds, staged } = yield* Effect.onError(body, () => Scope.close(scope, Exit.void))
      compiled = {
        memory: memoryKey(batch),
        agreed: agreement.agreed,
        rounds,
        stagingBytes: staged,
        messages: drafts.length,
        scope
      }
      return compiled
    })

    const execute = Effect.fnUntraced(function* (
      run: RunCollectives,
      batch: CopyBatch,
      agreement: Agreement,
      reuse: Compiled | undefined,
      runOptions: RunOptions,
      times: RunTimes
    ) {
      const driver = yield* ready
      const program = reuse ?? (yield* telemetry.phase(times, "prepare", compile(run, driver, batch, agreement)))
      const { localBytes, receivedBytes } = totalsOf(batch)
      const total = localBytes + receivedBytes
      let [copied, before] = [0, 0]
      const report = (moved: number) => runOptions.onProgress?.(copied + before + moved, total) ?? Effect.void
      const tensorOp = (op: string, moves: ReadonlyArray<Move>) =>
        moves.length === 0
          ? Effect.void
          : Effect.mapError(group.keepAlive(engine.copy(moves)), (error) => fromTensorError(rank, op, error))
      if (localOf !== batch) local = localMoves(batch, local)
      localOf = batch
      const within = Effect.gen(function* () {
        if (local.length > 0) {
          const about = () => ({ bytes: localBytes, ops: batch.local.length })
          yield* telemetry.phase(times, "local", tensorOp("local copy", local), about)
        }
        copied = localBytes
        yield* report(0)
      })
      const between = Effect.gen(function* () {
        for (const [at, round] of program.rounds.entries()) {
          /** Moves between tensors and staging, which drivers with `gather` do not need. */
          const stage = (phase: "pack" | "unpack", moves: ReadonlyArray<Move>, following: Round | undefined) => {
            const about = () => ({ round: at, ops: moves.length })
            const staged =
              moves.length === 0 ? Effect.void : telemetry.phase(times, phase, tensorOp(phase, moves), about)
            return Effect.onInterrupt(staged, () => abandon(driver, following))
          }
          yield* stage("pack", round.pack, round)
          const progress = (moved: number) => report(Math.min(moved, round.receivedBytes))
          const moving = Effect.tap(transfer(driver, round, progress), (taken) => {
            addPeerTimes(times, taken)
            return noteInPhase("peer", () => peerNotes(round.program, taken))
          })
          yield* telemetry.phase(times, "transfer", moving, () => ({
            run: runs,
            round: at,
            bytes: round.receivedBytes,
            messages: round.program.messages.length
          }))
          if (capabilities.requiresProcessGroupBarrier && at + 1 < program.rounds.length) {
            yield* Effect.mapError(group.barrier("copy round"), (error) => fromGroupError(rank, "run", error))
          }
          yield* stage("unpack", round.unpack, program.rounds[at + 1])
          before += round.receivedBytes
          yield* report(0)
        }
      })
      // Regions that are read are not written in the same run, so both go at once. A failure of one waits for the other:
      // this rank must stay in step with the others.
      const [own, others] = yield* Effect.all([Effect.result(within), Effect.result(between)], {
        concurrency: local.length === 0 ? 1 : 2
      })
      yield* Effect.fromResult(own)
      yield* Effect.fromResult(others)
      if (runOptions.finish !== undefined) {
        yield* telemetry.phase(times, "writeback", group.keepAlive(runOptions.finish))
      }
      return program
    })

    const reportOf = (batch: CopyBatch, program: Compiled, isReused: boolean, times: RunTimes): CopyReport => {
      const paths = new Map<Rank, PeerPath>(
        program.rounds.flatMap((round) => round.program.paths.map((path) => [path.peer, path] as const))
      )
      const totals = totalsOf(batch)
      return {
        backend: first.name,
        rank,
        localBytes: totals.localBytes,
        localOps: batch.local.length,
        remoteBytesSent: totals.sentBytes,
        remoteBytesReceived: totals.receivedBytes,
        remoteOps: totals.remoteOps,
        messages: program.messages,
        stagingBytes: program.stagingBytes,
        reusedProgram: isReused,
        phases: times.seconds,
        peers: totals.peers.map((moved) => {
          const path = paths.get(moved.peer)
          const taken = times.peers.get(moved.peer)
          return {
            ...moved,
            path: path?.path ?? first.name,
            reason: path?.reason ?? "the only path of this backend",
            ...(taken === undefined ? {} : { seconds: { pack: taken.pack, wire: taken.wire, unpack: taken.unpack } })
          }
        })
      }
    }

    const awaitFences = (after: ReadonlyArray<Fence>): Effect.Effect<void, CopyError> =>
      after.length === 0
        ? Effect.void
        : Effect.forEach(
            after,
            (fence) => Effect.mapError(fence.await, (error) => fromTensorError(rank, "after", error)),
            { discard: true }
          )

    const runBatch = Effect.fnUntraced(function* (
      taken: ReadonlyArray<CopyOp>,
      runOptions: RunOptions
    ): Effect.fn.Return<CopyReport, CopyError> {
      const times = makeRunTimes()
      runs += 1
      const run: RunCollectives = { group, memory, isOver: false, mustRebuild: false }
      if (leaving !== undefined) yield* Fiber.await(leaving)
      leaving = undefined
      const fences = yield* Effect.result(awaitFences(runOptions.after ?? []))
      const made =
        runOptions.refuse !== undefined
          ? Result.fail(runOptions.refuse)
          : Result.isFailure(fences)
            ? Result.fail(fences.failure)
            : makeBatch(running?.driver ?? first, taken)
      const batch = Result.isSuccess(made) ? made.success : emptyBatch
      const isStale = compiled === undefined || compiled.memory !== memoryKey(batch)
      isUnderWay = true
      const agreeing = yield* Effect.forkIn(
        agree(run, {
          backend: first.name,
          stagingBytes,
          rounds: roundsOf(batch),
          batch,
          agreed: compiled?.agreed ?? "",
          isStale,
          isBroken: running === undefined,
          fault: Result.isFailure(made) ? made.failure : undefined
        }),
        serviceScope,
        { startImmediately: true }
      )
      pending = { agreeing, compiled, driver: running?.driver }
      const agreement = yield* telemetry.phase(times, "handshake", Fiber.join(agreeing))
      pending = undefined
      if (agreement.mustRebuild) yield* breakDriver
      const reuse = isReusable(compiled, agreement) ? compiled : undefined
      const executed = yield* Effect.result(execute(run, batch, agreement, reuse, runOptions, times))
      const settled = yield* Effect.result(
        run.isOver
          ? Effect.fromResult(executed)
          : telemetry.phase(times, "outcome", settle(run, "copy outcome", executed))
      )
      isUnderWay = false
      if (run.mustRebuild || (Result.isFailure(executed) && executed.failure.reason.scope === "service")) {
        yield* breakDriver
      } else if (Result.isFailure(settled)) yield* drop
      const program = yield* Effect.fromResult(settled)
      const report = reportOf(batch, program, reuse !== undefined, times)
      yield* annotatePhase(() => ({
        run: runs,
        bytesSent: report.remoteBytesSent,
        bytesReceived: report.remoteBytesReceived,
        bytesLocal: report.localBytes,
        messages: report.messages,
        reusedProgram: report.reusedProgram
      }))
      return report
    })

    /**
     * After an interruption while the others were still to agree: they will, and begin. The program is closed by then, so
     * that no byte of this rank moves any more; its start only tells the others. False where they failed to agree.
     */
    const standBy = ({ agreeing, compiled: known, driver }: Pending): Effect.Effect<boolean> =>
      Effect.gen(function* () {
        const agreement = yield* Effect.result(Fiber.join(agreeing))
        if (Result.isFailure(agreement)) return false
        if (driver !== undefined && isReusable(known, agreement.success)) yield* abandon(driver, known?.rounds[0])
        return true
      })

    /** After an interruption in the middle of a run: nobody shall wait for this rank longer than needed. */
    const leave = Effect.suspend(() => {
      if (!isUnderWay) return Effect.void
      const interrupted = copyError("TransferFailed", [rank], {
        backend: first.name,
        rank,
        op: "run",
        isRetryable: true,
        detail: `Rank ${rank} was interrupted in the middle of the run.`,
        remedy: "Run again; see there why it was interrupted."
      })
      const awaited = pending
      pending = undefined
      const tell = Effect.gen(function* () {
        if (awaited === undefined || (yield* standBy(awaited))) yield* resync(group, interrupted)
      })
      return Effect.map(Effect.forkIn(tell, serviceScope, { startImmediately: true }), (fiber) => {
        leaving = fiber
      })
    })

    /** Operations queued one by one since the last list; the queue is the lists and then these. */
    const submit = (op: CopyOp): Effect.Effect<void> =>
      Effect.sync(() => {
        added.push(op)
      })

    const takeQueue = (): ReadonlyArray<CopyOp> => {
      const taken = [...given, added].filter((list) => list.length > 0)
      given = []
      added = []
      return taken.length === 1 ? taken[0]! : taken.flat()
    }

    return CopyService.of({
      backend: first.name,
      rank,
      worldSize: group.size,
      capabilities,
      state: Effect.sync(() => (running === undefined ? "Broken" : "Ready")),
      submitSend: (tensor, destRank, taskId, submitOptions) =>
        submit({
          _tag: "SendOp",
          tensor,
          destRank,
          taskId,
          part: submitOptions?.part ?? 0,
          paramName: submitOptions?.paramName
        }),
      submitRecv: (tensor, srcRank, taskId, submitOptions) =>
        submit({
          _tag: "RecvOp",
          tensor,
          srcRank,
          taskId,
          part: submitOptions?.part ?? 0,
          paramName: submitOptions?.paramName
        }),
      submitAll: (ops) =>
        Effect.sync(() => {
          given.push(added, ops)
          added = []
        }),
      run: (runOptions = {}) =>
        Effect.suspend(() => {
          if (isRunning) {
            return Effect.fail(
              copyError("Busy", [rank], {
                backend: first.name,
                rank,
                op: "run",
                isRetryable: true,
                detail: "Another run is in progress.",
                remedy: "Wait for it to end; queue operations for the next one."
              })
            )
          }
          isRunning = true
          const stopPolling = busyPoll(busyPollMillis)
          const taken = takeQueue()
          return Effect.ensuring(
            Effect.onInterrupt(
              telemetry.run(runBatch(taken, runOptions), () => ({ ops: taken.length })),
              () => Effect.andThen(drop, leave)
            ),
            Effect.sync(() => {
              stopPolling()
              isRunning = false
              isUnderWay = false
            })
          )
        })
    })
  })

/**
 * `CopyService` over a driver. The driver layer is built anew after a failure that broke it; each build gets its own
 * scope, closed before the next.
 */
export const copyServiceLayer = <E>(
  driverLayer: Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>,
  options: CopyServiceOptions = {}
): Layer.Layer<CopyService, E, ProcessGroup | TensorEngine> => Layer.effect(CopyService, make(driverLayer, options))
