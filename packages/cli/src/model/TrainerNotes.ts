// SPDX-License-Identifier: Apache-2.0
/**
 * What a run of Megatron-Core noted of itself beside a checkpoint, as a side: the arguments in `common.pt`, or the
 * configuration in `run_config.yaml`, as Megatron-Bridge writes it.
 */
import { readdir } from "node:fs/promises"
import * as path from "node:path"
import { systemCall } from "@tensorferry/model/checkpoint/FileAccess"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import { trainerSide } from "@tensorferry/model/names/files/trainerSide"
import type { StatedSide } from "@tensorferry/model/names/StatedSide"
import { commonFileName, readTrainerArgs, type TrainerArgs } from "@tensorferry/model/torch/MegatronArgs"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { readYamlFile } from "./YamlFile.ts"

const runConfigName = "run_config.yaml"

const byHand = "State the degrees, as in --from megatron:tp=2,pp=4."

const isPlain = (value: unknown): value is number | string | boolean | null =>
  value === null || ["number", "string", "boolean"].includes(typeof value)

/** The configuration of the model in a run's file; undefined where there is none. */
const readRunConfig = (folder: string): Effect.Effect<TrainerArgs | undefined, ModelError> =>
  Effect.gen(function* () {
    const file = path.join(folder, runConfigName)
    const read = yield* Effect.result(
      readYamlFile(file, Schema.Record(Schema.String, Schema.Unknown), (detail, remedy = byHand) =>
        modelError("InvalidLayout", { file, detail, remedy })
      )
    )
    if (Result.isFailure(read)) return yield* read.failure
    const { model } = read.success
    if (typeof model !== "object" || model === null) return undefined
    return new Map(Object.entries(model).flatMap(([name, value]) => (isPlain(value) ? [[name, value] as const] : [])))
  })

/** The side that the notes of a checkpoint's run state. Fails where there are none, or where they state no side. */
export const readTrainerSide = Effect.fnUntraced(function* (folder: string) {
  const names = yield* systemCall("Unreadable", folder, "list the folder", () => readdir(folder))
  const args = yield* readTrainerArgs(folder)
  const noted = args ?? (names.includes(runConfigName) ? yield* readRunConfig(folder) : undefined)
  const file = path.join(folder, args === undefined ? runConfigName : commonFileName)
  if (noted === undefined)
    return yield* modelError("InvalidUsage", {
      file: folder,
      detail: `It has no ${commonFileName} with arguments and no ${runConfigName}, so nothing says the degrees of the run.`,
      remedy: byHand
    })
  const side = trainerSide(noted)
  if (Result.isFailure(side))
    return yield* modelError("InvalidLayout", {
      file,
      detail: `The run that wrote it has no layout that is known: ${side.failure}.`,
      remedy: byHand
    })
  return side.success satisfies StatedSide
})
