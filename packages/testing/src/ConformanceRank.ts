// SPDX-License-Identifier: Apache-2.0
/**
 * One rank's part of the kit: all cases for the size of its group, each with services of its own, in the order that all ranks
 * share. For jobs whose ranks are processes.
 *
 * Invariant: a case ends on all ranks before the next begins, wherever a failed one left them in their collectives.
 */

import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import type { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup, type ProcessGroupError, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import {
  copyCases,
  copyDriverCases,
  defaultCaseDeadline,
  describeCause,
  type RankOutcome,
  runCopyCaseRank,
  runCopyDriverCaseRank,
  type Stated,
  StatedCapabilities
} from "./Conformance.ts"

/** What one rank brings to the kit. Only cases for exactly as many ranks as the group has are run. */
export interface RankRun<E> {
  /** The ranks that run the case together. */
  readonly group: ProcessGroupShape
  /** Built for each case. */
  readonly engine: Layer.Layer<TensorEngine, E>
  /** Built for each case, over the group and the case's engine. */
  readonly driver: Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>
  /** What the backend's descriptor states; without it, the cases that hold it against the driver are skipped. */
  readonly stated?: Stated
  /** How long one case may take before it counts as hanging. */
  readonly caseDeadline?: Duration.Input
  /** Which cases to run; all by default. The same on every rank. */
  readonly includes?: (caseName: string) => boolean
  /** Told how this rank's part of each case ended. */
  readonly onOutcome: (caseName: string, outcome: RankOutcome) => Effect.Effect<void>
}

/** More than the collectives that a case can have left. */
const meetAttempts = 64

/** Ends a case together, wherever a failed one left its ranks. */
export const meetAfterCase = (
  group: ProcessGroupShape,
  caseName: string,
  attempts = 0
): Effect.Effect<void, ProcessGroupError> =>
  Effect.catchIf(
    group.barrier(`end of ${caseName}`),
    (error) => error.reason._tag === "CollectiveMismatch" && attempts < meetAttempts,
    () => meetAfterCase(group, caseName, attempts + 1)
  )

/** Fails only where the group itself does; services that cannot be built fail the case. */
export const runConformanceRank = <E>(run: RankRun<E>): Effect.Effect<void, ProcessGroupError> => {
  const {
    group,
    engine,
    driver,
    onOutcome,
    caseDeadline = defaultCaseDeadline,
    includes = () => true,
    stated = {}
  } = run
  const { rank, size } = group
  const applies = (one: { readonly name: string; readonly size: number }) => one.size === size && includes(one.name)
  const judge = <S>(
    caseName: string,
    services: Layer.Layer<S, E, ProcessGroup>,
    part: Effect.Effect<RankOutcome, never, S | ProcessGroup>
  ) =>
    Effect.provide(part, Layer.provideMerge(services, Layer.succeed(ProcessGroup, group)), { local: true }).pipe(
      Effect.catchCause((cause) =>
        Effect.succeed<RankOutcome>({ rank, status: "failed", detail: describeCause(cause) })
      ),
      Effect.flatMap((outcome) => onOutcome(caseName, outcome)),
      Effect.andThen(meetAfterCase(group, caseName))
    )
  const services = copyServiceLayer(driver).pipe(Layer.provideMerge(engine))
  const driverServices = Layer.provideMerge(driver, engine)
  const all = Effect.gen(function* () {
    for (const one of copyCases.filter(applies)) {
      yield* judge(one.name, services, Effect.scoped(runCopyCaseRank(one, rank, caseDeadline)))
    }
    for (const one of copyDriverCases.filter(applies)) {
      yield* judge(one.name, driverServices, Effect.scoped(runCopyDriverCaseRank(one, rank, caseDeadline)))
    }
  })
  return Effect.provideService(all, StatedCapabilities, stated)
}
