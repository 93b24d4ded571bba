/** Flags and choices that `reshard` and `plan` have in common. */
import { formatParallelConfig, type ParallelConfig, parseParallelConfig } from "@tensorferry/core/layout/ModelLayout"
import { presets } from "@tensorferry/core/layout/ShardingRules"
import * as Argument from "effect/cli/Argument"
import * as CliError from "effect/cli/CliError"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type { LayoutChoice } from "../job/layouts.ts"
import type { Model } from "../model/Model.ts"
import { modelError } from "../model/ModelError.ts"
import { chooseRules } from "../model/Rules.ts"

export const json = Flag.Boolean("json").pipe(
  Flag.withDescription("Print one JSON document on standard output instead of tables"),
  Flag.withDefault(false)
)

export const backend = Flag.String("backend").pipe(
  Flag.withDescription("Backend that moves the bytes, or auto"),
  Flag.withDefault("auto")
)

export const backendPackages = Flag.String("backend-package").pipe(
  Flag.withDescription("Package to load more backends from (repeatable); it is imported from the current folder"),
  Flag.between(0, 64)
)

const layoutFlag = (name: string) =>
  Flag.mapEffect(Flag.String(name), (value) =>
    Result.match(parseParallelConfig(value), {
      onSuccess: Effect.succeed,
      onFailure: ({ remedy }) =>
        Effect.fail(new CliError.InvalidValue({ option: name, value, expected: remedy, kind: "flag" }))
    })
  )

export const layoutConfig = {
  checkpoint: Argument.String("CHECKPOINT").pipe(
    Argument.withDescription("A .safetensors file, a folder of them, or a folder written by reshard")
  ),
  from: layoutFlag("from").pipe(
    Flag.withDescription("Source layout, as tp=2,pp=1; by default that of the folder's manifest, else tp=1"),
    Flag.optional
  ),
  to: layoutFlag("to").pipe(Flag.withDescription("Destination layout, as tp=4,pp=2")),
  ranks: Flag.Literals("ranks", ["collocated", "disjoint"]).pipe(
    Flag.withDescription("Whether both layouts share their ranks or the destination has ranks of its own"),
    Flag.withDefault("collocated" as const)
  ),
  rules: Flag.String("rules").pipe(
    Flag.withDescription("YAML or JSON file that says how tensors are sharded"),
    Flag.optional
  ),
  preset: Flag.Literals("preset", Object.keys(presets)).pipe(
    Flag.withDescription("Rules of a model family, as llama"),
    Flag.optional
  ),
  default: Flag.Literals("default", ["replicate"]).pipe(
    Flag.withDescription("What to do with tensors that no rule matches, instead of refusing them"),
    Flag.optional
  )
}

export interface LayoutFlags {
  readonly from: Option.Option<ParallelConfig>
  readonly to: ParallelConfig
  readonly ranks: "collocated" | "disjoint"
  readonly rules: Option.Option<string>
  readonly preset: Option.Option<string>
  readonly default: Option.Option<"replicate">
}

const single: ParallelConfig = { tp: 1, pp: 1, dp: 1 }

/** Layouts and rules from flags and, where the folder has one, its manifest. */
export const chooseLayouts = Effect.fnUntraced(function* (model: Model, flags: LayoutFlags) {
  const { to } = flags
  const stated = Option.getOrUndefined(flags.from)
  const stored = model.sharded?.layout
  if (stated !== undefined && stored !== undefined && formatParallelConfig(stated) !== formatParallelConfig(stored)) {
    return yield* modelError("InvalidLayout", {
      file: model.path,
      detail: `The folder holds layout ${formatParallelConfig(stored)}, --from says ${formatParallelConfig(stated)}.`,
      remedy: "Leave --from out."
    })
  }
  const rules = yield* chooseRules(model, {
    rulesFile: Option.getOrUndefined(flags.rules),
    preset: Option.getOrUndefined(flags.preset),
    replicateRest: Option.isSome(flags.default)
  })
  return { from: stated ?? stored ?? single, to, ranks: flags.ranks, rules } satisfies LayoutChoice
})
