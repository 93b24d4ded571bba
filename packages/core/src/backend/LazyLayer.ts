// SPDX-License-Identifier: Apache-2.0
/**
 * Layers whose module is imported when they are first built, so that a descriptor costs little to those who choose
 * another backend.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { type BackendError, backendError } from "./BackendDescriptor.ts"

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
