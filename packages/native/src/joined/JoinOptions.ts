// SPDX-License-Identifier: Apache-2.0
/**
 * Options that users write where the choice is "auto": which paths may be used, and options of single backends.
 */
import {
  type BackendDescriptor,
  type BackendError,
  type BackendOptions,
  backendError,
  type JoinableWire
} from "@tensorferry/core/backend/BackendDescriptor"
import { decodeBackendOptions } from "@tensorferry/core/backend/OptionsLayer"
import { strictOptions } from "@tensorferry/core/backend/StrictOptions"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"

const Names = Schema.Array(Schema.NonEmptyString)

const Fields = Schema.Struct({
  paths: Schema.optionalKey(
    Names.annotate({
      description: "Backends whose paths may be used between ranks. All that are registered by default."
    })
  ),
  forbid: Schema.optionalKey(
    Names.annotate({
      description: "Backends whose paths must not be used, such as torch-copy between ranks of one host."
    })
  ),
  backends: Schema.optionalKey(
    Schema.Record(Schema.String, Schema.Record(Schema.String, Schema.Unknown)).annotate({
      description: 'Options of single backends by name, as {"tcp": {"lanes": 4}}.'
    })
  )
})

/** Options of "auto", checked: the values as a type, the schema as a value. */
export type JoinOptions = typeof Fields.Type

export const JoinOptions = strictOptions(Fields)

const remedy = "With auto, the options are paths, forbid (lists of backends) and backends (options of each by name)."

/** What the options mean for the backend that joins the wires. */
export interface JoinChoice {
  /** Options of the backend that joins. */
  readonly own: BackendOptions
  /** Whether a wire of this name may be a path. */
  readonly isAllowed: (name: string) => boolean
  /** Options of a wire. */
  readonly optionsOf: (name: string) => BackendOptions
}

/** Decodes options of "auto". Names of backends that are not there are refused. */
export const chooseJoin = (
  descriptor: BackendDescriptor,
  options: unknown,
  wires: ReadonlyArray<JoinableWire>
): Effect.Effect<JoinChoice, BackendError> =>
  Effect.gen(function* () {
    const { paths, forbid, backends = {} } = yield* decodeBackendOptions(JoinOptions, "auto", options, remedy)
    const known = [descriptor.name, ...wires.map(({ name }) => name)]
    const unknown = [...(paths ?? []), ...(forbid ?? []), ...Object.keys(backends)].find(
      (name) => !known.includes(name)
    )
    if (unknown !== undefined) {
      return yield* backendError("InvalidOptions", {
        backend: "auto",
        detail: `There is no path ${unknown}; the paths are ${known.join(", ")}.`,
        remedy
      })
    }
    return {
      own: yield* decodeBackendOptions(
        descriptor.options,
        descriptor.name,
        backends[descriptor.name] ?? {},
        "Correct the option at this path; options that the backend does not know are refused."
      ),
      isAllowed: (name) => (paths === undefined || paths.includes(name)) && forbid?.includes(name) !== true,
      optionsOf: (name) => backends[name] ?? {}
    }
  })
