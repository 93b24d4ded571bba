// SPDX-License-Identifier: Apache-2.0
/**
 * Flags that say what is written and where, and the folder that they name.
 *
 * Invariant: nothing that exists is written over. An empty folder may be replaced.
 */
import { randomBytes } from "node:crypto"
import { constants } from "node:fs"
import { access, readdir } from "node:fs/promises"
import * as path from "node:path"
import { systemCall } from "@tensorferry/model/checkpoint/FileAccess"
import { modelError } from "@tensorferry/model/ModelError"
import * as CliError from "effect/cli/CliError"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import { parseByteSize } from "../text/byteSize.ts"

export const outputConfig = {
  copyMetadata: Flag.Boolean("copy-metadata").pipe(
    Flag.withDescription(
      "Carry config.json, the tokenizer and the like along to --out (on by default; --no-copy-metadata leaves them); code and pickles never are"
    ),
    Flag.withDefault(true)
  ),
  maxFileBytes: Flag.String("max-file-size").pipe(
    Flag.withDescription(
      "Most tensor data of one file where one rank has the whole model, as 5GB or 2GiB: more files get an index"
    ),
    Flag.withDefault("5GB"),
    Flag.mapEffect((value) => {
      const bytes = parseByteSize(value)
      return bytes === undefined
        ? Effect.fail(
            new CliError.InvalidValue({
              option: "max-file-size",
              value,
              expected: "a size as 5GB or 512MiB",
              kind: "flag"
            })
          )
        : Effect.succeed(bytes)
    })
  )
}

export interface OutputFlags {
  readonly maxFileBytes: number
  readonly copyMetadata: boolean
}

/** Refuses a file, a folder that holds anything, and a name where nothing can be created. */
const checkOutput = (folder: string) =>
  Effect.gen(function* () {
    const parent = path.dirname(folder)
    yield* systemCall("WriteFailed", parent, "write to the folder of the output", () => access(parent, constants.W_OK))
    const taken = (detail: string) =>
      modelError("OutputExists", { file: folder, detail, remedy: "Name a new or an empty folder." })
    const entries = yield* Effect.tryPromise({
      try: () => readdir(folder),
      catch: (cause) => (cause as NodeJS.ErrnoException).code ?? String(cause)
    }).pipe(
      Effect.catch((code) =>
        code === "ENOENT"
          ? Effect.succeed([])
          : Effect.fail(taken(code === "ENOTDIR" ? "It is not a folder." : `It cannot be listed: ${code}.`))
      )
    )
    if (entries.length > 0) return yield* taken(`The output folder holds ${entries.length} entries.`)
  })

/** The folder that --out names, and the one beside it that is written first. */
export const chooseOutput = Effect.fnUntraced(function* (out: string, { copyMetadata, maxFileBytes }: OutputFlags) {
  const folder = path.resolve(out)
  yield* checkOutput(folder)
  return { folder, temporary: `${folder}.tmp-${randomBytes(8).toString("hex")}`, maxFileBytes, copyMetadata }
})
