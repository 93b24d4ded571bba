// SPDX-License-Identifier: Apache-2.0
/**
 * Layers from options that may come from anywhere: a descriptor's layers are also called without the registry, which has
 * decoded what a user wrote.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import {
  type BackendError,
  type BackendOptions,
  backendApiVersion,
  backendError,
  requireApiVersion
} from "./BackendDescriptor.ts"
import { schemaFaults } from "./SchemaFaults.ts"

/** Decodes what a user wrote; what does not decode is InvalidOptions of the backend with the paths of the wrong fields. */
export const decodeBackendOptions = <Options, Encoded>(
  schema: Schema.Codec<Options, Encoded>,
  backend: string,
  options: unknown,
  remedy: string
): Effect.Effect<Options, BackendError> =>
  Effect.mapError(Schema.decodeUnknownEffect(schema, { onExcessProperty: "error", errors: "all" })(options), (error) =>
    backendError("InvalidOptions", {
      backend,
      detail: `${schemaFaults(error, options, "The value of the options").join("; ")}.`,
      remedy
    })
  )

/**
 * Decodes options and builds a layer from them. `writtenFor` is the version of the contracts that the package was written
 * for: a layer that is used without a registry, or by another core than the package was tried with, checks it too.
 */
export const optionsLayer =
  <Options, Encoded>(
    schema: Schema.Codec<Options, Encoded>,
    backend: string,
    remedy: string,
    writtenFor: number = backendApiVersion
  ) =>
  <A, R>(
    options: BackendOptions,
    build: (options: Options) => Layer.Layer<A, BackendError, R>
  ): Layer.Layer<A, BackendError, R> =>
    Layer.unwrap(
      Effect.andThen(
        requireApiVersion(backend, writtenFor),
        Effect.map(decodeBackendOptions(schema, backend, options, remedy), build)
      )
    )
