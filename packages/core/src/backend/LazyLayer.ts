// SPDX-License-Identifier: Apache-2.0
/**
 * Layers whose module is imported when they are first built, so that a descriptor costs little to those who choose
 * another backend.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { endsWithin } from "../service/endsWithin.ts"
import { type BackendError, backendError } from "./BackendDescriptor.ts"

const buildMinutes = 5

/** The layer of a backend's service, which is Unavailable where it does not build in five minutes. Each use builds it. */
export const boundedLayer = <A, R>(
  backend: string,
  service: string,
  layer: Layer.Layer<A, BackendError, R>
): Layer.Layer<A, BackendError, R> =>
  Layer.effectContext(
    Effect.flatMap(Effect.scope, (scope) =>
      endsWithin(
        Layer.buildWithScope(Layer.fresh(layer), scope),
        Duration.minutes(buildMinutes),
        Effect.fail(
          backendError("Unavailable", {
            backend,
            op: service,
            scope: "service",
            detail: `Its ${service} was not ready after ${buildMinutes} minutes.`,
            remedy: "See that all ranks start it, and that its device answers."
          })
        )
      )
    )
  )

/** `build` of the module that `load` imports; a module that cannot be imported is LoadFailed of the backend. */
export const lazyLayer = <Module, A, R>(
  backend: string,
  load: () => Promise<Module>,
  build: (module: Module) => Layer.Layer<A, BackendError, R>
): Layer.Layer<A, BackendError, R> =>
  Layer.unwrap(
    Effect.map(
      Effect.tryPromise({
        try: load,
        catch: (cause) =>
          backendError("LoadFailed", {
            backend,
            detail: `A module of its package cannot be imported: ${String(cause)}.`,
            remedy: "Install the package again."
          })
      }),
      build
    )
  )
