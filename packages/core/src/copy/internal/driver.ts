// SPDX-License-Identifier: Apache-2.0
/**
 * The life of a service's driver: built at first, and again by the first run after it broke.
 *
 * Invariant: each build has a scope of its own, which is closed where the build fails.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { CopyDriver, type CopyDriverShape } from "../../service/CopyDriver.ts"
import { type CopyError, copyError } from "../../service/CopyService.ts"
import type { ProcessGroup } from "../../service/ProcessGroup.ts"
import type { TensorEngine } from "../../service/TensorEngine.ts"
import type { CopyMachine } from "./machine.ts"
import type { CopyParts } from "./parts.ts"
import type { LiveDriver } from "./runState.ts"

/** Builds a driver within the scope of the service. */
export const buildDriver = <E>(
  driverLayer: Layer.Layer<CopyDriver, E, ProcessGroup | TensorEngine>,
  environment: Context.Context<ProcessGroup | TensorEngine>,
  serviceScope: Scope.Scope
): Effect.Effect<LiveDriver, E> =>
  Effect.gen(function* () {
    const scope = yield* Scope.fork(serviceScope)
    const context = yield* Layer.buildWithScope(Layer.fresh(driverLayer), scope).pipe(
      Effect.provideContext(environment),
      Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
    )
    return { driver: yield* Effect.provideContext(CopyDriver, context), scope }
  })

/** The driver of a run in progress, built again where it is broken. */
export const driverOf = <E>(
  { backend, rank }: CopyParts,
  machine: CopyMachine,
  build: Effect.Effect<LiveDriver, E>
): Effect.Effect<CopyDriverShape, CopyError> =>
  Effect.suspend(() => {
    const live = machine.state().driver
    if (live !== undefined) return Effect.succeed(live.driver)
    return build.pipe(
      Effect.tap((driver) => machine.on({ _tag: "Built", driver })),
      Effect.map(({ driver }) => driver),
      Effect.mapError((error) =>
        copyError("Broken", [rank], {
          backend,
          rank,
          op: "run",
          scope: "service",
          detail: `The driver broke in an earlier run and cannot be rebuilt: ${String(error)}`,
          remedy: "Close the service and make a new one."
        })
      )
    )
  })
