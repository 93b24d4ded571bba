// SPDX-License-Identifier: Apache-2.0
/** What every kind of job runs on: the chosen backend's services. */
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { chooseCopyBackend, copyService } from "@tensorferry/core/backend/BackendLayer"
import type { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import type { CopyService } from "@tensorferry/core/service/CopyService"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { chooseOrdinal } from "@tensorferry/gpu/options"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { deviceOptions, optionsOnDevice } from "../device/DeviceChoice.ts"
import { backendRegistry } from "./backends.ts"
import type { AnyJobSpec } from "./JobSpec.ts"
import type { JobClock } from "./phases.ts"

type ServiceSpec = Pick<
  AnyJobSpec,
  "backend" | "options" | "backendPackages" | "packagesFrom" | "deadlineMillis" | "device"
>

/**
 * The backend's options with the rank's device among them: with "auto" under the backend's name, and for a backend of the host,
 * which stages, as those of the engine.
 */
const optionsOf = ({ backend, device, options }: ServiceSpec, { deviceFamilies, join, name }: BackendDescriptor) => {
  const stated = options === undefined ? {} : { options }
  if (device === undefined) return stated
  const local = chooseOrdinal({}, device.ordinals?.length ?? 1)
  if (!deviceFamilies.includes(device.family)) return { ...stated, engineOptions: deviceOptions(device, local) }
  if (backend !== "auto" || join === undefined) return { options: optionsOnDevice(device, local, options) }
  const all = (options ?? {}) as { readonly backends?: { readonly [name: string]: unknown } }
  const backends = { ...all.backends, [name]: optionsOnDevice(device, local, all.backends?.[name]) }
  return { options: { ...all, backends } }
}

/** Runs `body` on the backend of the job; it gets the reason why that backend was chosen. */
export const withJobServices = <A, E, R>(
  spec: ServiceSpec,
  { phase }: JobClock,
  body: (backendReason: string) => Effect.Effect<A, E, R | CopyService | TensorEngine | Scope.Scope>
) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const registry: Layer.Layer<BackendRegistry, unknown> = backendRegistry(spec.backendPackages, spec.packagesFrom)
    const start = Effect.gen(function* () {
      const deviceFamily = spec.device?.family ?? "cpu"
      const { descriptor, reason } = yield* chooseCopyBackend(spec.backend, deviceFamily)
      const layer = copyService({
        ...{ backend: spec.backend, deviceFamily },
        ...optionsOf(spec, descriptor),
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
