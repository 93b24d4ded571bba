/**
 * N ranks as fibers of one process, each with its own engine, group and copy service: the program text of a real job,
 * without processes. Fails with the first failure of any rank, after all have ended.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import type { Rank } from "../base/Ids.ts"
import type { CopyDriver } from "../service/CopyDriver.ts"
import type { CopyService } from "../service/CopyService.ts"
import { type CopyServiceOptions, copyServiceLayer } from "../service/CopyServiceLayer.ts"
import { ProcessGroup } from "../service/ProcessGroup.ts"
import { type InProcessGroup, makeInProcessGroups } from "../service/ProcessGroupInProcess.ts"
import type { TensorEngine } from "../service/TensorEngine.ts"
import { loopbackLayer, makeLoopbackNetwork } from "./Loopback.ts"
import * as ReferenceEngine from "./ReferenceEngine.ts"

export interface VirtualClusterOptions<E> extends CopyServiceOptions {
  readonly size: number
  /** The driver of one rank; `Loopback` by default. `leave` ends the rank as a killed process would. */
  readonly driver?: (rank: Rank, group: InProcessGroup) => Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>
  readonly engine?: Layer.Layer<TensorEngine, E>
  readonly groupDeadline?: Duration.Duration
}

export type RankServices = CopyService | ProcessGroup | TensorEngine | Scope.Scope

/** Runs `program` on every rank and gives each rank's exit, by rank. */
export const runRanks = <A, E, E2 = never>(
  options: VirtualClusterOptions<E2>,
  program: (rank: Rank) => Effect.Effect<A, E, RankServices>
): Effect.Effect<ReadonlyArray<Exit.Exit<A, E | E2>>> =>
  Effect.scoped(
    Effect.gen(function* () {
      const network = makeLoopbackNetwork()
      const groups = yield* makeInProcessGroups(options.size, {
        deadline: options.groupDeadline ?? Duration.seconds(60)
      })
      const fibers = yield* Effect.forEach(groups, (group) => {
        const driver = options.driver?.(group.rank, group) ?? loopbackLayer(network)
        const services = copyServiceLayer(driver, options).pipe(
          Layer.provideMerge(options.engine ?? ReferenceEngine.layer()),
          Layer.provideMerge(Layer.succeed(ProcessGroup, group))
        )
        return Effect.forkChild(Effect.scoped(Effect.provide(program(group.rank), services, { local: true })), {
          startImmediately: true
        })
      })
      return yield* Effect.forEach(fibers, Fiber.await)
    })
  )

/** Runs `program` on every rank; each rank's value, or the failure of the lowest rank that failed. */
export const runCluster = <A, E, E2 = never>(
  options: VirtualClusterOptions<E2>,
  program: (rank: Rank) => Effect.Effect<A, E, RankServices>
): Effect.Effect<ReadonlyArray<A>, E | E2> =>
  Effect.flatMap(runRanks(options, program), (exits) => Effect.all(exits))
