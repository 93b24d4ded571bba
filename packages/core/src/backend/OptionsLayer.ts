/**
 * Layers from options that may come from anywhere: a descriptor's layers are also called without the registry, which has
 * decoded what a user wrote.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { type BackendError, type BackendOptions, backendError } from "./BackendDescriptor.ts"

/** Decodes options and builds a layer from them; what does not decode is InvalidOptions of the backend, with the remedy. */
export const optionsLayer =
  <Options, Encoded>(schema: Schema.Codec<Options, Encoded>, backend: string, remedy: string) =>
  <A, R>(
    options: BackendOptions,
    build: (options: Options) => Layer.Layer<A, BackendError, R>
  ): Layer.Layer<A, BackendError, R> =>
    Layer.unwrap(
      Schema.decodeUnknownEffect(schema)(options).pipe(
        Effect.mapError((error) =>
          backendError("InvalidOptions", { backend, detail: error.message.replaceAll("\n", " "), remedy })
        ),
        Effect.map(build)
      )
    )
