// SPDX-License-Identifier: Apache-2.0
/** `tensorferry describe`: what the tensors of a model mean, and how they can be cut. */
import { unknownModel } from "@tensorferry/model/describe/unknownTensors"
import { findFamily, modelTypes } from "@tensorferry/model/families/families"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import { summaryOf } from "@tensorferry/model/placement/structureSummary"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { readConfig } from "../model/Rules.ts"
import { withFailures } from "../output/CliFailure.ts"
import { describeStructure, structureDocument } from "../output/StructureText.ts"
import { printEither } from "../text/terminal.ts"
import { checkpoint, inputConfig, json, noteAbsent, openPlain } from "./shared.ts"

export const describe = Command.make(
  "describe",
  {
    checkpoint,
    ...inputConfig,
    preset: Flag.Literals("preset", modelTypes).pipe(
      Flag.withDescription("Model family by which the tensors are read; by default that of config.json"),
      Flag.optional
    ),
    json
  },
  (flags) =>
    withFailures(
      flags,
      Effect.scoped(
        Effect.gen(function* () {
          const model = yield* openPlain(flags.checkpoint, flags)
          yield* noteAbsent(model)
          const read = yield* readConfig(model)
          const config = read === undefined ? model.sharded?.rules.family?.config : yield* Effect.fromResult(read)
          const own = config?.model_type as string | undefined
          const preset = Option.getOrUndefined(flags.preset) ?? model.sharded?.rules.family?.preset ?? own
          if (preset === undefined || findFamily(preset) === undefined) {
            return yield* Effect.fail(unknownModel(model.tensors, config))
          }
          const choice = { preset, placement: {}, ...(config === undefined ? {} : { config }) }
          const structure = yield* Effect.fromResult(structureOf(model.tensors, choice))
          const summary = summaryOf(structure)
          yield* printEither(
            flags.json,
            () => structureDocument(structure, summary),
            () => describeStructure(structure, summary)
          )
        })
      )
    )
).pipe(
  Command.withExamples([
    { command: "tensorferry describe llama/", description: "Stacks, structures, forms and the degrees that fit" },
    {
      command: "tensorferry describe kimi/ --preset deepseek_v3 --json",
      description: "Read by another family, for tools"
    }
  ])
)
