// SPDX-License-Identifier: Apache-2.0
/**
 * A copy driver that goes wrong once, at a chosen step: it fails, stalls, or takes its rank out of the job. For tests of
 * everything that must survive it.
 *
 * Steps are the driver's calls in order of time: every prepare, start and await counts one, over all drivers that are
 * built from the same fault. After its step a fault does nothing more.
 */

import type { Scope as FailureScope } from "@tensorferry/core/base/Reason"
import { CopyDriver, type CopyDriverError, copyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

/** What becomes of the call at the fault's step. */
export type FaultAction =
  /** The call fails with this scope; "service" demands that the driver is built again. */
  | { readonly _tag: "Fail"; readonly scope: FailureScope }
  /** The call never ends. */
  | { readonly _tag: "Stall" }
  /** The rank is gone for the others, and the call never ends. */
  | { readonly _tag: "Leave"; readonly leave: Effect.Effect<void> }

/** When a driver goes wrong, and how. */
export interface FaultOptions {
  /** Step at which it goes wrong, from 0; beyond the last step nothing happens. */
  readonly step: number
  readonly action: FaultAction
}

/** One fault, and what all drivers built from it have done. */
export interface Fault {
  /** The driver that goes wrong; may be built several times. */
  readonly wrap: <E>(
    driver: Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>
  ) => Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>
  /** Calls of prepare, start and await so far. */
  readonly stepsTaken: () => number
  /** Programs prepared and not dropped. */
  readonly openPrograms: () => number
  /** Drivers built and not closed. */
  readonly openDrivers: () => number
}

/** A fault with its own count of steps. Make one per rank and job. */
export const makeFault = ({ step, action }: FaultOptions): Fault => {
  let steps = 0
  let programs = 0
  let drivers = 0

  const wrong = (op: string): Effect.Effect<never, CopyDriverError> =>
    action._tag === "Fail"
      ? Effect.fail(
          copyDriverError("TransportFailed", {
            op,
            scope: action.scope,
            detail: `The faulty driver failed at step ${step}.`,
            remedy: "None: the fault was asked for."
          })
        )
      : action._tag === "Stall"
        ? Effect.never
        : Effect.andThen(action.leave, Effect.never)

  /** Counts a call, and replaces it where it is the chosen one. */
  const call = <A, R>(op: string, effect: Effect.Effect<A, CopyDriverError, R>): Effect.Effect<A, CopyDriverError, R> =>
    Effect.suspend(() => (steps++ === step ? wrong(op) : effect))

  const count = (change: (by: number) => void) =>
    Effect.acquireRelease(
      Effect.sync(() => change(1)),
      () => Effect.sync(() => change(-1))
    )

  return {
    stepsTaken: () => steps,
    openPrograms: () => programs,
    openDrivers: () => drivers,
    wrap: (driver) =>
      Layer.effect(
        CopyDriver,
        Effect.gen(function* () {
          const inner = yield* CopyDriver
          yield* count((by) => {
            drivers += by
          })
          return CopyDriver.of({
            ...inner,
            prepare: (messages) =>
              call(
                "prepare",
                Effect.gen(function* () {
                  const program = yield* inner.prepare(messages)
                  yield* count((by) => {
                    programs += by
                  })
                  return program
                })
              ),
            start: (program) =>
              Effect.map(call("start", inner.start(program)), (inFlight) => ({
                ...inFlight,
                await: call("await", inFlight.await)
              }))
          })
        })
      ).pipe(Layer.provide(driver))
  }
}
