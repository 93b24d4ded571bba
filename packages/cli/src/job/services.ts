// SPDX-License-Identifier: Apache-2.0
/** What every kind of job runs on: the chosen backend's services, and a clock for its phases. */
import { chooseCopyBackend, copyService } from "@tensorferry/core/backend/BackendLayer"
import type { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import type { CopyService } from "@tensorferry/core/service/CopyService"
import { inSpan } from "@tensorferry/core/service/Spans"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import { backendRegistry } from "./backends.ts"
import type { AnyJobSpec } from "./JobSpec.ts"

/** Runs `body` on the backend of the job; it gets the reason why that backend was chosen. */
export const withJobServices = <A, E, R>(
  spec: Pick<AnyJobSpec, "backend" | "options" | "backendPackages" | "packagesFrom" | "deadlineMillis">,
  body: (backendReason: string) => Effect.Effect<A, E, R | CopyService | TensorEngine | Scope.Scope>
) =>
  Effect.gen(function* () {
    const { reason } = yield* chooseCopyBackend(spec.backend, "cpu")
    const services = copyService({
      backend: spec.backend,
      ...(spec.options === undefined ? {} : { options: spec.options }),
      deadline: Duration.millis(spec.deadlineMillis)
    })
    return yield* Effect.provide(Effect.scoped(body(reason)), services)
  }).pipe(
    Effect.provide(
      backendRegistry(spec.backendPackages, spec.packagesFrom) satisfies Layer.Layer<BackendRegistry, unknown>
    )
  )

/** Notes how many seconds a phase took; a span where the job is observed. */
export const timedPhase = <A, E, R>(
  seconds: { [phase: string]: number },
  phase: string,
  effect: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  Effect.gen(function* () {
    const start = yield* Clock.monotonicTimeNanos
    const value = yield* inSpan(effect, `job.${phase}`)
    seconds[phase] = Number((yield* Clock.monotonicTimeNanos) - start) / 1e9
    return value
  })
