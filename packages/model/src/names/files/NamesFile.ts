// SPDX-License-Identifier: Apache-2.0
/**
 * A note beside files of ranks: under which names and degrees they were written, by which family, and what the checkpoint's
 * own tensors are. With it the folder is the model again, without another checkpoint of the same model.
 */
import * as path from "node:path"
import { DType } from "@tensorferry/core/base/DType"
import { Shape } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { FamilyChoice } from "../../Cutting.ts"
import type { CheckpointError } from "../../checkpoint/CheckpointError.ts"
import { readSmallFile } from "../../checkpoint/FileAccess.ts"
import type { ModelTensor } from "../../layout/ModelLayout.ts"
import { type ModelError, modelError } from "../../ModelError.ts"
import { writeSmallFile } from "../../outputs/outputFiles.ts"
import { NamedSide } from "../NamedSide.ts"

/** Name of the note. */
export const namesFileName = "tensorferry-names.json"

/** Models of a hundred thousand tensors have notes of some ten megabytes. */
const mostBytes = 128 * 1024 * 1024

const NamesFile = Schema.Struct({
  format: Schema.Literal("tensorferry.names"),
  version: Schema.Literal(1),
  side: NamedSide,
  family: FamilyChoice,
  /** Of the checkpoint, under its own names. */
  tensors: Schema.Array(Schema.Struct({ name: Schema.String, dtype: DType, shape: Shape }))
})
/** What the note beside a rank's files says: under which names of a system they are, and the model that they are of. */
export type NamesFile = typeof NamesFile.Type

const NamesText = Schema.fromJsonString(NamesFile)

/** Writes the note beside the files of a side's ranks. */
export const writeNamesFile = Effect.fnUntraced(function* (
  folder: string,
  side: NamedSide,
  family: FamilyChoice,
  tensors: ReadonlyArray<ModelTensor>
) {
  const text = yield* Effect.orDie(
    Schema.encodeEffect(NamesText)({
      format: "tensorferry.names",
      version: 1,
      side,
      family,
      tensors: tensors.map(({ name, dtype, shape }) => ({ name, dtype, shape }))
    })
  )
  yield* writeSmallFile(folder, namesFileName, new TextEncoder().encode(`${text}\n`))
})

/** The note of a folder; undefined where it has none. */
export const readNamesFile = (folder: string): Effect.Effect<NamesFile | undefined, CheckpointError | ModelError> =>
  Effect.gen(function* () {
    const file = path.join(folder, namesFileName)
    const bytes = yield* Effect.result(readSmallFile(file, mostBytes))
    if (Result.isFailure(bytes)) {
      const { _tag } = bytes.failure.reason
      // A file or nothing at all in place of the folder is for others to name.
      return _tag === "NotFound" || _tag === "Unreadable" ? undefined : yield* bytes.failure
    }
    const read = Schema.decodeResult(NamesText, { onExcessProperty: "error" })(new TextDecoder().decode(bytes.success))
    if (Result.isSuccess(read)) return read.success
    return yield* modelError("InvalidLayout", {
      file,
      detail: `It is no note of names of this version: ${read.failure.message.replaceAll("\n", " ").slice(0, 400)}`,
      remedy: "Remove it, and name a checkpoint of the same model with --like."
    })
  })
