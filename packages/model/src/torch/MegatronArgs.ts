// SPDX-License-Identifier: Apache-2.0
/**
 * The arguments of the run that wrote a checkpoint of Megatron-Core, as its `common.pt` keeps them: plain numbers, texts and
 * truth values by name.
 *
 * Invariant: nothing is executed or looked up. Whatever else the file holds, as types and functions, is a mark and left out.
 */
import { join } from "node:path"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import { openForReading } from "../checkpoint/FileAccess.ts"
import { type PickleRules, type PickleValue, readClosedPickle, textEntries } from "../pickle/ClosedPickle.ts"
import { openArchive } from "./TorchArchive.ts"

/** Name of the file beside `.metadata`. */
export const commonFileName = "common.pt"

/** Arguments by name; those that are no plain values are left out. */
export type TrainerArgs = ReadonlyMap<string, number | string | boolean | null>

/** Names are many and mean nothing here. */
type Mark = "Namespace" | "other"

const rules: PickleRules<Mark> = {
  protocols: [2, 3, 4, 5],
  mostBytes: 16 * 1024 * 1024,
  mostValues: 1024 * 1024,
  nameOf: (module, name) => (module === "argparse" && name === "Namespace" ? "Namespace" : "other"),
  users: "arguments of a trainer",
  dicts: new Set<Mark>(["other"]),
  allowsReferences: true
}

const plainOf = (value: PickleValue<Mark>): number | string | boolean | null | undefined => {
  if (value.type === "none") return null
  return value.type === "int" || value.type === "float" || value.type === "text" || value.type === "bool"
    ? value.value
    : undefined
}

/** The arguments in the pickle of a `common.pt`; undefined where it has none. */
export const parseTrainerArgs = (bytes: Uint8Array): Result.Result<TrainerArgs | undefined, string> => {
  const read = readClosedPickle(bytes, rules)
  if (Result.isFailure(read)) return Result.fail(read.failure.detail)
  const args = textEntries(read.success)?.get("args")
  const entries = textEntries(args?.type === "object" && args.name === "Namespace" ? args.state : args)
  if (entries === undefined) return Result.succeed(undefined)
  return Result.succeed(
    new Map(
      [...entries].flatMap(([name, value]) => {
        const plain = plainOf(value)
        return plain === undefined ? [] : [[name, plain] as const]
      })
    )
  )
}

/** The arguments that a folder notes; undefined where it has no such file, or the file notes none. */
export const readTrainerArgs = (folder: string): Effect.Effect<TrainerArgs | undefined, CheckpointError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const path = join(folder, commonFileName)
      const opened = yield* Effect.result(openForReading(path))
      if (Result.isFailure(opened)) {
        const { _tag } = opened.failure.reason
        return _tag === "NotFound" ? undefined : yield* opened.failure
      }
      const file = opened.success
      const archive = yield* openArchive({ file, offset: 0, length: file.size })
      const args = parseTrainerArgs(yield* archive.pickle)
      if (Result.isSuccess(args)) return args.success
      return yield* checkpointError("Unsupported", {
        detail: `Its arguments cannot be read: ${args.failure}`,
        remedy: "State the degrees, as in --from megatron:tp=2.",
        file: path
      })
    })
  )
