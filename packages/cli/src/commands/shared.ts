/** Flags and choices that `reshard` and `plan` have in common. */
import { formatParallelConfig, type ParallelConfig, parseParallelConfig } from "@tensorferry/core/layout/ModelLayout"
import * as Argument from "effect/cli/Argument"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
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

export const layoutConfig = {
  checkpoint: Argument.String("CHECKPOINT").pipe(
    Argument.withDescription("A .safetensors file, a folder of them, or a folder written by reshard")
  ),
  from: Flag.String("from").pipe(
    Flag.withDescription("Source layout, as tp=2,pp=1; by default that of the folder's manifest, else tp=1"),
    Flag.optional
  ),
  to: Flag.String("to").pipe(Flag.withDescription("Destination layout, as tp=4,pp=2")),
  ranks: Flag.Literals("ranks", ["collocated", "disjoint"]).pipe(
    Flag.withDescription("Whether both layouts share their ranks or the destination has ranks of its own"),
    Flag.withDefault("collocated" as const)
  ),
  rules: Flag.String("rules").pipe(
    Flag.withDescription("YAML or JSON file that says how tensors are sharded"),
    Flag.optional
  ),
  preset: Flag.String("preset").pipe(Flag.withDescription("Rules of a model family, as llama"), Flag.optional),
  default: Flag.Literals("default", ["replicate"]).pipe(
    Flag.withDescription("What to do with tensors that no rule matches, instead of refusing them"),
    Flag.optional
  )
}

export interface LayoutFlags {
  readonly from: Option.Option<string>
  readonly to: string
  readonly ranks: "collocated" | "disjoint"
  readonly rules: Option.Option<string>
  readonly preset: Option.Option<string>
  readonly default: Option.Option<"replicate">
}

const single: ParallelConfig = { tp: 1, pp: 1, dp: 1 }

const parse = (text: string) => Effect.fromResult(parseParallelConfig(text))

/** Layouts and rules from flags and, where the folder has one, its manifest. */
export const chooseLayouts = Effect.fnUntraced(function* (model: Model, flags: LayoutFlags) {
  const to = yield* parse(flags.to)
  const stated = Option.isSome(flags.from) ? yield* parse(flags.from.value) : undefined
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
