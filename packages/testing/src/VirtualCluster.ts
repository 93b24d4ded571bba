// SPDX-License-Identifier: Apache-2.0
/**
 * N ranks as fibers of one process, each with its own engine, group and services: the program text of a real job, without
 * processes.
 *
 * Invariant: a rank whose program failed is gone for the others, as a process that ended would be, so that nobody waits for
 * it. Every rank's exit is awaited.
 */

import type { Rank } from "@tensorferry/core/base/Ids"
import { type CopyServiceOptions, copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { type InProcessGroup, makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import type { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import type { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import {
  type CaseResult,
  type CopyCase,
  type CopyDriverCase,
  combineOutcomes,
  defaultGroupDeadline,
  type RankOutcome,
  runCopyCaseRank,
  runCopyDriverCaseRank
} from "./Conformance.ts"
import { loopbackLayer, makeLoopbackNetwork } from "./Loopback.ts"
import * as ReferenceEngine from "./ReferenceEngine.ts"

/** How many ranks there are, and what each is built from; the rest are options of the copy service. */
export interface VirtualClusterOptions<E> extends CopyServiceOptions {
  /** Ranks. */
  readonly size: number
  /** The driver of one rank; `Loopback` by default. `leave` ends the rank as a killed process would. */
  readonly driver?: (rank: Rank, group: InProcessGroup) => Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>
  /** One for each rank; the reference engine by default. */
  readonly engine?: Layer.Layer<TensorEngine, E>
  /** The group's no-progress deadline; 20 seconds by default. It must be well within the deadline of a case. */
  readonly groupDeadline?: Duration.Duration
}

/** What the program of a rank finds in its context. */
export type RankServices = CopyService | ProcessGroup | TensorEngine | Scope.Scope

/** Runs `program` on every rank with the services of `layerOf` and gives each rank's exit, by rank. */
export const runMembers = <A, E, E2, S>(
  options: { readonly size: number; readonly groupDeadline?: Duration.Duration },
  layerOf: (group: InProcessGroup) => Layer.Layer<S, E2, ProcessGroup>,
  program: (rank: Rank) => Effect.Effect<A, E, S | ProcessGroup | Scope.Scope>
): Effect.Effect<ReadonlyArray<Exit.Exit<A, E | E2>>> =>
  Effect.scoped(
    Effect.gen(function* () {
      const groups = yield* makeInProcessGroups(options.size, {
        deadline: options.groupDeadline ?? defaultGroupDeadline
      })
      const fibers = yield* Effect.forEach(groups, (group) => {
        const services = Layer.provideMerge(layerOf(group), Layer.succeed(ProcessGroup, group))
        const run = Effect.scoped(Effect.provide(program(group.rank), services, { local: true }))
        return Effect.forkChild(
          Effect.onError(run, () => group.leave),
          { startImmediately: true }
        )
      })
      return yield* Effect.forEach(fibers, Fiber.await)
    })
  )

/** Runs `program` on every rank and gives each rank's exit, by rank. */
export const runRanks = <A, E, E2 = never>(
  options: VirtualClusterOptions<E2>,
  program: (rank: Rank) => Effect.Effect<A, E, RankServices>
): Effect.Effect<ReadonlyArray<Exit.Exit<A, E | E2>>> =>
  Effect.suspend(() => {
    const network = makeLoopbackNetwork()
    const layerOf = (group: InProcessGroup) => {
      const driver: Layer.Layer<CopyDriver, E2, ProcessGroup | TensorEngine> =
        options.driver?.(group.rank, group) ?? loopbackLayer(network)
      const engine: Layer.Layer<TensorEngine, E2> = options.engine ?? ReferenceEngine.layer()
      return Layer.provideMerge(copyServiceLayer(driver, options), engine)
    }
    return runMembers(options, layerOf, program)
  })

/** Runs `program` on every rank; each rank's value, or the failure of the lowest rank that failed. */
export const runCluster = <A, E, E2 = never>(
  options: VirtualClusterOptions<E2>,
  program: (rank: Rank) => Effect.Effect<A, E, RankServices>
): Effect.Effect<ReadonlyArray<A>, E | E2> => Effect.flatMap(runRanks(options, program), (exits) => Effect.all(exits))

/** A failed outcome ends its rank for the others. */
const ending = <R>(outcome: Effect.Effect<RankOutcome, never, R>): Effect.Effect<RankOutcome, RankOutcome, R> =>
  Effect.filterOrFail(
    outcome,
    (told) => told.status !== "failed",
    (told) => told
  )

const outcomesOf = (exits: ReadonlyArray<Exit.Exit<RankOutcome, unknown>>): ReadonlyArray<RankOutcome> =>
  exits.map((exit, rank) => {
    if (exit._tag === "Success") return exit.value
    const [reason] = exit.cause.reasons
    const told = reason?._tag === "Fail" ? (reason.error as Partial<RankOutcome>) : undefined
    return told?.status === "failed" && told.detail !== undefined
      ? { rank, status: "failed", detail: told.detail }
      : { rank, status: "failed", detail: String(reason?._tag === "Fail" ? reason.error : exit.cause) }
  })

/** Builds the cluster of one case. Called once per case, so that cases share nothing. */
export type ClusterOf<E> = () => Omit<VirtualClusterOptions<E>, "size">

/** One copy case on a fresh cluster. */
export const runCopyCase =
  <E = never>(clusterOf: ClusterOf<E>) =>
  (copyCase: CopyCase): Effect.Effect<CaseResult> =>
    Effect.suspend(() =>
      Effect.map(
        runRanks({ ...clusterOf(), size: copyCase.size }, (rank) => ending(runCopyCaseRank(copyCase, rank))),
        (exits) => combineOutcomes(copyCase.name, outcomesOf(exits))
      )
    )

/** One driver case on a fresh cluster; `stagingBytes` and `deadline` do not apply. */
export const runCopyDriverCase =
  <E = never>(clusterOf: ClusterOf<E>) =>
  (driverCase: CopyDriverCase): Effect.Effect<CaseResult> =>
    Effect.suspend(() => {
      const cluster = clusterOf()
      const network = makeLoopbackNetwork()
      const layerOf = (group: InProcessGroup) => {
        const driver: Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine> =
          cluster.driver?.(group.rank, group) ?? loopbackLayer(network)
        const engine: Layer.Layer<TensorEngine, E> = cluster.engine ?? ReferenceEngine.layer()
        return Layer.provideMerge(driver, engine)
      }
      return Effect.map(
        runMembers({ ...cluster, size: driverCase.size }, layerOf, (rank) =>
          ending(runCopyDriverCaseRank(driverCase, rank))
        ),
        (exits) => combineOutcomes(driverCase.name, outcomesOf(exits))
      )
    })
