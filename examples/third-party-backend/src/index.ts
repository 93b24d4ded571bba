// SPDX-License-Identifier: Apache-2.0
/**
 * What this package offers tensorferry: one backend, found through `tensorferry.descriptors` of package.json. Importing it
 * touches no folder.
 */
import { mkdir, rm } from "node:fs/promises"
import * as path from "node:path"
import { type BackendDescriptor, type BackendError, backendError } from "@tensorferry/core/backend/BackendDescriptor"
import { optionsLayer } from "@tensorferry/core/backend/OptionsLayer"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { capabilities, spoolDriver } from "./SpoolDriver.ts"

export { spoolDriver }

/** Of the contracts, as package.json says it. Core's own constant would agree with any core. */
const apiVersion = 1

const SpoolOptions = Schema.Struct({ folder: Schema.optionalKey(Schema.NonEmptyString) })

const remedy = "Set SPOOL_FOLDER, or the option folder, to a folder that all ranks can write to."

const unavailable = (detail: string): BackendError => backendError("Unavailable", { backend: "spool", detail, remedy })

/** The folder of the options, else of the environment. */
const folderOf = (options: typeof SpoolOptions.Type): Effect.Effect<string, BackendError> =>
  options.folder === undefined
    ? Effect.mapError(Config.String("SPOOL_FOLDER"), () => unavailable("No folder is named."))
    : Effect.succeed(options.folder)

/** Makes the folder and a folder in it. */
const tryFolder = (folder: string): Effect.Effect<void, BackendError> =>
  Effect.tryPromise({
    try: async () => {
      const probe = path.join(folder, `probe-${process.pid}`)
      await mkdir(probe, { recursive: true })
      await rm(probe, { recursive: true })
    },
    catch: (cause) => unavailable(`${folder} cannot be written to: ${String(cause)}.`)
  })

export const descriptors: ReadonlyArray<BackendDescriptor> = [
  {
    name: "spool",
    apiVersion,
    deviceFamilies: ["cpu"],
    capabilities: { copyDriver: capabilities },
    options: SpoolOptions,
    probe: folderOf({}).pipe(
      Effect.tap(tryFolder),
      Effect.match({
        onFailure: ({ reason }) => ({
          _tag: "Unavailable",
          tried: ["SPOOL_FOLDER"],
          cause: reason.detail,
          remedy: reason.remedy
        }),
        onSuccess: (folder) => ({ _tag: "Available", detail: `Files in ${folder}.`, versions: {} })
      })
    ),
    copyDriver: (options) =>
      optionsLayer(
        SpoolOptions,
        "spool",
        remedy,
        apiVersion
      )(options, (decoded) =>
        Layer.effect(
          CopyDriver,
          Effect.gen(function* () {
            const folder = yield* folderOf(decoded)
            yield* tryFolder(folder)
            return yield* Effect.mapError(spoolDriver(folder), ({ message }) => unavailable(message))
          })
        )
      )
  }
]
