// SPDX-License-Identifier: Apache-2.0
/** What a command states of names and places of a model's tensors, read and checked. */
import type { FamilyChoice } from "@tensorferry/model/Cutting"
import { findFamily, modelTypes } from "@tensorferry/model/families/families"
import { readModelConfig } from "@tensorferry/model/inputs/ConfigFile"
import type { Model } from "@tensorferry/model/Model"
import { Mapping } from "@tensorferry/model/names/Mapping"
import type { NamedSide } from "@tensorferry/model/names/NamedSide"
import { parseSide } from "@tensorferry/model/names/StatedSide"
import { Placement } from "@tensorferry/model/placement/Placement"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type BusError, busError } from "../BusError.ts"

/** Who states it, for errors: the command, and what it is about. */
export interface Stating {
  readonly op: string
  /** "Batch weights", as a message begins. */
  readonly subject: string
}

const invalid = ({ op, subject }: Stating, detail: string, remedy: string): BusError =>
  busError("InvalidCommand", { op, detail: `${subject}: ${detail}`, remedy })

/** What a command states as JSON. */
export const statedJson = <A>(
  stating: Stating,
  what: string,
  schema: Schema.Codec<A, unknown>,
  text: string,
  remedy: string
): Result.Result<A, BusError> =>
  Result.mapError(
    Schema.decodeResult(Schema.fromJsonString(schema), { onExcessProperty: "error" })(text),
    ({ message }) => invalid(stating, `${what}: ${message.replaceAll("\n", " ").slice(0, 400)}`, remedy)
  )

/** A side by a convention, or by rules of its own in place of the convention's. */
export const statedSide = (stating: Stating, names: string, rules: string | null): Result.Result<NamedSide, BusError> =>
  Result.gen(function* () {
    const side = yield* Result.mapError(parseSide(names), (expected) =>
      invalid(stating, `${JSON.stringify(names.slice(0, 80))} names no side.`, `State ${expected}.`)
    )
    const named = { convention: side.convention ?? "hf", config: side.config }
    if (rules === null) return named
    const remedy = 'State rules as JSON: {"rules": [...], "others": "keep"}.'
    return { ...named, mapping: yield* statedJson(stating, "its rules are no mapping", Mapping, rules, remedy) }
  })

/** Where a side puts layers, experts and vocabulary; nothing where the command does not say. */
export const statedPlacement = (stating: Stating, placement: string | null): Result.Result<Placement, BusError> =>
  placement === null
    ? Result.succeed({})
    : statedJson(
        stating,
        "its placement is none",
        Placement,
        placement,
        'State a placement as JSON: {"vocabulary": {"multipleOf": 128, "of": "share"}}.'
      )

/** The family of a model: as the command says, else as the model's config.json does. */
export const statedFamily = Effect.fnUntraced(function* (
  stating: Stating,
  model: Pick<Model, "config" | "path">,
  preset: string | null
) {
  const read = yield* readModelConfig(model)
  if (read !== undefined && Result.isFailure(read))
    return yield* invalid(stating, `${read.failure.file}: ${read.failure.detail}`, "Correct it.")
  const config = read?.success
  const type = preset ?? config?.model_type
  if (typeof type !== "string" || findFamily(type) === undefined)
    return yield* invalid(
      stating,
      typeof type !== "string" ? `nothing says the family of model ${model.path}.` : `there is no family ${type}.`,
      `State a preset, or put the model's config.json beside it. Known are ${modelTypes.join(", ")}.`
    )
  return { preset: type, placement: {}, ...(config === undefined ? {} : { config }) } satisfies FamilyChoice
})
