// SPDX-License-Identifier: Apache-2.0
/** What every kind of job runs on: the chosen backend's services. */
import { chooseCopyBackend, copyService } from "@tensorferry/core/backend/BackendLayer"
import type { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import type { CopyService } from "@tensorferry/core/service/CopyService"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { backendRegistry } from "./backends.ts"
import type { AnyJobSpec } from "./JobSpec.ts"
import type { JobClock } from "./phases.ts"

/** Runs `body` on the backend of the job; it gets the reason why that backend was chosen. */
export const withJobServices = <A, E, R>(
  spec: Pick<AnyJobSpec, "backend" | "options" | "backendPackages" | "packagesFrom" | "deadlineMillis">,
  { phase }: JobClock,
  body: (backendReason: string) => Effect.Effect<A, E, R | CopyService | TensorEngine | Scope.Scope>
) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const registry: Layer.Layer<BackendRegistry, unknown> = backendRegistry(spec.backendPackages, spec.packagesFrom)
    const start = Effect.gen(function* () {
      const { reason } = yield* chooseCopyBackend(spec.backend, "cpu")
      const layer = copyService({
        backend: spec.backend,
        ...(spec.options === undefined ? {} : { options: spec.options }),
        deadline: Duration.millis(spec.deadlineMillis)
      })
      return { reason, services: yield* Layer.buildWithScope(layer, scope) }
    })
    const work = Effect.gen(function* () {
      const { reason, services } = yield* phase("start", Effect.provide(start, registry))
      // Tensors are freed before the services that they belong to.
      const inner = yield* Scope.fork(scope)
      return yield* Effect.provideContext(Effect.provideService(body(reason), Scope.Scope, inner), services)
    })
    return yield* Effect.onExit(work, (exit) => phase("release", Scope.close(scope, exit)))
  })
