// SPDX-License-Identifier: Apache-2.0
/**
 * The one implementation of `CopyService`, over any `CopyDriver`: queue, matching, agreement, staging, deadlines, report.
 *
 * Invariants: `run` takes the queue before anything can fail; all ranks pass the same sequence of collectives whatever
 * happens on one of them; staging never exceeds what the rank with the least allows. Where a run stands is the state of
 * `internal/runState.ts`; this file wires it to the service.
 */

import { availableParallelism } from "node:os"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { defaultBusyPollMillis } from "../service/BusyPolling.ts"
import type { CopyDriver } from "../service/CopyDriver.ts"
import { CopyService, type CopyServiceShape, type SubmitOptions } from "../service/CopyService.ts"
import { ProcessGroup } from "../service/ProcessGroup.ts"
import { TensorEngine } from "../service/TensorEngine.ts"
import { makeAnswers } from "./internal/answers.ts"
import { buildDriver } from "./internal/driver.ts"
import type { CopyParts } from "./internal/parts.ts"
import { makeQueue } from "./internal/queue.ts"
import { makeRounds } from "./internal/rounds.ts"
import { makeRunner } from "./internal/run.ts"
import { makeSignals } from "./internal/signals.ts"
import { makeCopyTelemetry } from "./internal/telemetry.ts"
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
  /**
   * Whether all ranks agree on every run, or only on what is new; "new" by default, where the driver can do it. Give the same
   * on every rank.
   */
  readonly agreement?: "always" | "new"
}

const defaultStagingBytes = 64 * 1024 * 1024

const partAndName = (options: SubmitOptions | undefined) => ({
  part: options?.part ?? 0,
  paramName: options?.paramName
})

const make = <E>(
  driverLayer: Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>,
  options: CopyServiceOptions
): Effect.Effect<CopyServiceShape, E, ProcessGroup | TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    const job = yield* ProcessGroup
    // A lane of its own: a rank takes part in runs that others agree on while its program does something else.
    const group = yield* job.lane("copy")
    const engine = yield* TensorEngine
    const owner = yield* Effect.scope
    // Whatever the service is made of stays until it has left.
    const scope = yield* Scope.fork(owner)
    const environment = Context.add(yield* Effect.context<ProcessGroup | TensorEngine>(), ProcessGroup, group)
    const { rank } = group
    const stagingBytes = options.stagingBytes ?? defaultStagingBytes
    const busyPollMillis =
      options.busyPoll === undefined
        ? defaultBusyPollMillis(availableParallelism(), group.size)
        : Duration.toMillis(options.busyPoll)

    const signals = yield* Scope.provide(makeSignals(group), scope)
    const build = Effect.tap(buildDriver(driverLayer, environment, scope), ({ driver }) =>
      Effect.sync(() => signals.use(driver.flags))
    )
    const live = yield* build
    const { driver } = live
    const { name: backend, capabilities } = driver
    const telemetry = makeCopyTelemetry(backend, rank)
    const parts: CopyParts = {
      group,
      signals,
      engine,
      scope,
      backend,
      rank,
      capabilities,
      stagingBytes,
      telemetry,
      isPairwise: options.agreement !== "always" && capabilities.pairwise === true,
      rounds: makeRounds(engine, driver, stagingBytes),
      calls: makeDriverCalls(backend, group, options.deadline ?? group.deadline)
    }
    const queue = makeQueue()
    const runner = makeRunner(parts, live, build)
    const { machine } = runner
    const answers = yield* Scope.provide(makeAnswers(parts, runner), scope)
    // A failure must not wait for anybody.
    if (parts.isPairwise) {
      yield* Scope.addFinalizerExit(owner, (exit) => (Exit.isSuccess(exit) ? answers.leave : Effect.void))
    }

    const begin = Effect.andThen(answers.ended, machine.begin)
    const run: CopyServiceShape["run"] = (runOptions = {}) =>
      Effect.andThen(
        answers.ended,
        Effect.acquireUseRelease(
          Effect.map(begin, () => ({ stopPolling: signals.poll(busyPollMillis), taken: queue.take() })),
          ({ taken }) => telemetry.run(runner.run(taken, runOptions), () => ({ ops: taken.length })),
          ({ stopPolling }, exit) => {
            const left = Exit.hasInterrupts(exit) ? machine.on({ _tag: "Interrupted" }) : Effect.void
            return Effect.andThen(
              left,
              Effect.suspend(() => {
                stopPolling()
                return Effect.andThen(machine.on({ _tag: "Ended" }), answers.look)
              })
            )
          }
        )
      )

    return CopyService.of({
      backend,
      rank,
      worldSize: group.size,
      capabilities,
      state: Effect.sync(() => (machine.state().driver === undefined ? "Broken" : "Ready")),
      submitSend: (tensor, destRank, taskId, submitOptions) =>
        Effect.sync(() => queue.add({ _tag: "SendOp", tensor, destRank, taskId, ...partAndName(submitOptions) })),
      submitRecv: (tensor, srcRank, taskId, submitOptions) =>
        Effect.sync(() => queue.add({ _tag: "RecvOp", tensor, srcRank, taskId, ...partAndName(submitOptions) })),
      submitAll: (ops) => Effect.sync(() => queue.addAll(ops)),
      run
    })
  })

/**
 * `CopyService` over a driver. The driver layer is built again after a failure that broke it; each build gets its own
 * scope, closed before the next.
 */
export const copyServiceLayer = <E>(
  driverLayer: Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>,
  options: CopyServiceOptions = {}
): Layer.Layer<CopyService, E, ProcessGroup | TensorEngine> => Layer.effect(CopyService, make(driverLayer, options))
