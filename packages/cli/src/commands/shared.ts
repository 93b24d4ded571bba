// SPDX-License-Identifier: Apache-2.0
/** Flags and choices that `reshard` and `plan` have in common. */

import type { ModelStructure } from "@tensorferry/model/describe/ModelStructure"
import { modelTypes } from "@tensorferry/model/families/families"
import { readModelConfig } from "@tensorferry/model/inputs/ConfigFile"
import { folderOf, type InputOptions } from "@tensorferry/model/inputs/openInput"
import { formatParallelConfig } from "@tensorferry/model/layout/ModelLayout"
import type { LayoutChoice } from "@tensorferry/model/layouts"
import type { Model } from "@tensorferry/model/Model"
import { modelError } from "@tensorferry/model/ModelError"
import { unrecordedType } from "@tensorferry/model/names/conventions/Convention"
import { findConvention } from "@tensorferry/model/names/conventions/conventions"
import { readNamesFile } from "@tensorferry/model/names/files/NamesFile"
import { openNamed, rankCount, unknownNames } from "@tensorferry/model/names/files/openNamed"
import { undoneBy } from "@tensorferry/model/names/files/undoneBy"
import { Mapping } from "@tensorferry/model/names/Mapping"
import type { NamedChoice, NamedSide, StoredNames } from "@tensorferry/model/names/NamedSide"
import { parseSide, parseSource, type StatedSide, single } from "@tensorferry/model/names/StatedSide"
import { openModel, resolveModel } from "@tensorferry/model/openModel"
import * as Argument from "effect/cli/Argument"
import * as CliError from "effect/cli/CliError"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import { deviceForms, parseDevices } from "../device/DeviceChoice.ts"
import { readLayoutFile, sideOf } from "../model/LayoutFile.ts"
import { chooseRules } from "../model/Rules.ts"
import { readTrainerSide } from "../model/TrainerNotes.ts"
import { readYamlFile } from "../model/YamlFile.ts"
import { parseByteSize } from "../text/byteSize.ts"
import { counted } from "../text/Table.ts"
import { plainLine, printError } from "../text/terminal.ts"
import { pathArgument, pathFlag } from "./paths.ts"

export const json = Flag.Boolean("json").pipe(
  Flag.withDescription("Print one JSON document on standard output instead of tables"),
  Flag.withDefault(false)
)

export const backend = Flag.String("backend").pipe(
  Flag.withDescription("Backend that moves the bytes, or auto"),
  Flag.withDefault("auto")
)

export const device = Flag.String("device").pipe(
  Flag.withDescription(
    "Hold tensors in memory of devices: cuda gives each rank the device of its number on its host, cuda:0 puts all ranks on one, cuda:0,1 lets them take turns; rocm alike. By default in memory of the host"
  ),
  Flag.mapEffect((value) => {
    const choice = parseDevices(value)
    return choice === undefined
      ? Effect.fail(new CliError.InvalidValue({ option: "device", value, expected: deviceForms, kind: "flag" }))
      : Effect.succeed(choice)
  }),
  Flag.optional
)

export const memoryLimit = Flag.String("memory-limit").pipe(
  Flag.withDescription(
    "Most memory that tensors and buffers of all ranks on one device may take, without --device on one host, as 60GiB: what needs more is refused before anything is loaded"
  ),
  Flag.mapEffect((value) => {
    const bytes = parseByteSize(value)
    const expected = "a size as 60GiB or 512MiB"
    return bytes === undefined
      ? Effect.fail(new CliError.InvalidValue({ option: "memory-limit", value, expected, kind: "flag" }))
      : Effect.succeed(bytes)
  }),
  Flag.optional
)

export const backendPackages = pathFlag("backend-package", "path").pipe(
  Flag.withDescription("Package to load more backends from (repeatable); it is imported from the current folder"),
  Flag.between(0, 64)
)

/** A flag that states a side. */
export const sideFlag = (name: "from" | "to") =>
  Flag.mapEffect(Flag.String(name), (value) =>
    Result.match(name === "from" ? parseSource(value) : parseSide(value), {
      onSuccess: Effect.succeed,
      onFailure: (expected) => Effect.fail(new CliError.InvalidValue({ option: name, value, expected, kind: "flag" }))
    })
  )

export const checkpoint = pathArgument("CHECKPOINT", "path").pipe(
  Argument.withDescription(
    "A .safetensors file or index, a folder of them, of a distributed checkpoint or of torch.save, a folder written by reshard, or synthetic:SHAPES.json.gz for made-up data"
  )
)

/** How a model is read, whatever its format. */
export const inputConfig = {
  indexOnly: Flag.Boolean("index-only").pipe(
    Flag.withDescription(
      "Take what the index says: leave out what it places in files that are not here, and what files hold besides"
    ),
    Flag.withDefault(false)
  ),
  part: Flag.String("part").pipe(
    Flag.withDescription(
      "Take only tensors whose names begin so, without that beginning: --part model. of a training state"
    ),
    Flag.optional
  )
}

export interface InputFlags {
  readonly indexOnly: boolean
  readonly part: Option.Option<string>
}

/** Says on standard error what --index-only left out. */
export const noteAbsent = ({ absent = [], path }: Model): Effect.Effect<void> =>
  absent.length === 0
    ? Effect.void
    : printError(
        `note: ${counted(absent.length, "tensor")} of ${plainLine(path)} ${absent.length === 1 ? "is" : "are"} left out, as ${plainLine(absent[0]!)}: the files are not here`
      )

/** The same as the library takes it. */
export const inputOptions = (flags: InputFlags): InputOptions => ({
  ...(flags.indexOnly ? { indexOnly: true } : {}),
  ...(Option.isSome(flags.part) ? { part: flags.part.value } : {})
})

export const layoutConfig = {
  from: sideFlag("from").pipe(
    Flag.withDescription(
      "Source layout, as tp=2,pp=1 or, with the names of another system, megatron:tp=2; megatron alone takes the degrees that the run noted in the checkpoint megatron:DIR; by default that of the folder's manifest, else tp=1"
    ),
    Flag.optional
  ),
  to: sideFlag("to").pipe(
    Flag.withDescription(
      "Destination layout: tp=, pp=, dp=, and for experts ep= and etp=, as in tp=4,dp=2,ep=8; vllm:tp=8 names and joins tensors as vLLM does"
    ),
    Flag.optional
  ),
  layout: pathFlag("layout", "file").pipe(
    Flag.withDescription("YAML or JSON file with both layouts and how tensors are cut; flags override it"),
    Flag.optional
  ),
  like: pathFlag("like", "path").pipe(
    Flag.withDescription(
      "Checkpoint of the same model under its own names, where CHECKPOINT has those of a system: megatron:DIR, vllm:DIR"
    ),
    Flag.optional
  ),
  map: pathFlag("map", "file").pipe(
    Flag.withDescription("YAML or JSON file with the rules by which the destination names and joins tensors"),
    Flag.optional
  ),
  ranks: Flag.Literals("ranks", ["collocated", "disjoint"]).pipe(
    Flag.withDescription(
      "Whether both layouts share their ranks (the default) or the destination has ranks of its own"
    ),
    Flag.optional
  ),
  rules: pathFlag("rules", "file").pipe(
    Flag.withDescription("YAML or JSON file that says how tensors are sharded"),
    Flag.optional
  ),
  preset: Flag.Literals("preset", modelTypes).pipe(
    Flag.withDescription(
      "Model family by whose structure tensors are cut; by default that of the checkpoint's config.json"
    ),
    Flag.optional
  ),
  kvHeads: Flag.Literals("kv-heads", ["replicate", "rows"]).pipe(
    Flag.withDescription("With more ranks than key-value heads: give each rank a whole head (the default), or refuse"),
    Flag.optional
  ),
  default: Flag.Literals("default", ["replicate"]).pipe(
    Flag.withDescription("What to do with tensors that no rule matches, instead of refusing them"),
    Flag.optional
  )
}

export interface LayoutFlags {
  readonly from: Option.Option<StatedSide>
  readonly to: Option.Option<StatedSide>
  readonly like: Option.Option<string>
  readonly map: Option.Option<string>
  readonly layout: Option.Option<string>
  readonly ranks: Option.Option<"collocated" | "disjoint">
  readonly rules: Option.Option<string>
  readonly preset: Option.Option<string>
  readonly kvHeads: Option.Option<"replicate" | "rows">
  readonly default: Option.Option<"replicate">
}

/** Layouts and rules from flags, a layout file and, where the folder has one, its manifest. */
export const chooseLayouts = Effect.fnUntraced(function* (model: Model, flags: LayoutFlags) {
  const file = Option.getOrUndefined(flags.layout)
  const stated = file === undefined ? {} : yield* readLayoutFile(file)
  const { from: fromSide, to: toSide, ranks = "collocated", types: _, ...common } = stated
  const nothing = { config: undefined, cut: {} }
  const from = fromSide === undefined ? nothing : yield* sideOf(file!, fromSide)
  const to = toSide === undefined ? nothing : yield* sideOf(file!, toSide)
  const destination = Option.getOrUndefined(flags.to)?.config ?? to.config
  if (destination === undefined) {
    return yield* modelError("InvalidUsage", {
      ...(file === undefined ? {} : { file }),
      detail: "No destination layout is stated.",
      remedy: "Pass --to, as in --to tp=4,pp=2, or a layout file that has it."
    })
  }
  const source = Option.getOrUndefined(flags.from)?.config ?? from.config
  const stored = model.sharded?.layout
  if (source !== undefined && stored !== undefined && formatParallelConfig(source) !== formatParallelConfig(stored)) {
    return yield* modelError("InvalidLayout", {
      file: model.path,
      detail: `The folder holds layout ${formatParallelConfig(stored)}, not ${formatParallelConfig(source)}.`,
      remedy: "Leave the source layout out."
    })
  }
  const rulesOf = (side: typeof from) =>
    chooseRules(model, {
      rulesFile: Option.getOrUndefined(flags.rules),
      cuts: [side.cut, common],
      preset: Option.getOrUndefined(flags.preset),
      placement: Option.isSome(flags.kvHeads) ? { kvHeads: flags.kvHeads.value } : {},
      replicateRest: Option.isSome(flags.default)
    })
  const rules = yield* rulesOf(to)
  const sourceRules = model.sharded?.rules ?? (yield* rulesOf(from))
  const isSame = JSON.stringify(sourceRules) === JSON.stringify(rules)
  return {
    from: source ?? stored ?? single,
    to: destination,
    ranks: Option.getOrElse(flags.ranks, () => ranks),
    rules,
    ...(isSame ? {} : { sourceRules })
  } satisfies LayoutChoice
})

const mappingExample =
  'Write rules as YAML or JSON: {rules: [{name: "{owner...}.qkv.weight", from: {concat: ["{owner...}.q.weight", "{owner...}.k.weight"]}}], others: keep}.'

/** A checkpoint, and how its tensors are named: `hf:DIR`. */
export const parseTarget = (target: string): { readonly target: string; readonly convention: string | undefined } => {
  const found = /^([a-z][a-z0-9-]*):(.*)$/.exec(target)
  return found === null || findConvention(found[1]!) === undefined
    ? { target, convention: undefined }
    : { target: found[2]!, convention: found[1]! }
}

/** The family of a model: what --preset says, or the config.json beside it. */
export const familyOf = Effect.fnUntraced(function* (model: Model, { preset }: Pick<LayoutFlags, "preset">) {
  const { family } = yield* chooseRules(model, {
    rulesFile: undefined,
    cuts: [],
    preset: Option.getOrUndefined(preset),
    placement: {},
    replicateRest: false
  })
  return family ?? (yield* noFamily(model.path))
})

const noFamily = (file: string) =>
  modelError("InvalidUsage", {
    file,
    detail: "Names of a system follow from what tensors mean, and nothing says the model's family.",
    remedy: "Pass --preset, or put the model's config.json beside the checkpoint."
  })

/** Rules of a file for --map. */
export const readMapping = (file: string) =>
  readYamlFile(file, Mapping, (detail, remedy = mappingExample) => modelError("InvalidRules", { file, detail, remedy }))

/** Flags that say how the files of a checkpoint name it. */
type StoredFlags = Pick<LayoutFlags, "from" | "like" | "preset"> & InputFlags

/** Another checkpoint of the same model under its own names. */
const resolveLike = (stated: string): string => {
  const named = parseTarget(stated)
  return resolveModel(named.convention === "hf" ? named.target : stated)
}

/** What files say of themselves, held against what is stated. */
const notedNames = Effect.fnUntraced(function* (
  checkpoint: string,
  convention: string | undefined,
  flags: StoredFlags
) {
  const noted = yield* readNamesFile(checkpoint)
  if (noted === undefined) return undefined
  const { side, family } = noted
  const from = Option.getOrUndefined(flags.from)
  const isStated = from !== undefined && (from.convention ?? "hf") === side.convention
  const names = convention ?? side.convention
  if (
    names !== side.convention ||
    (isStated && formatParallelConfig(from.config) !== formatParallelConfig(side.config))
  )
    return yield* modelError("InvalidLayout", {
      file: checkpoint,
      detail: `The folder holds ${side.convention}:${formatParallelConfig(side.config)}.`,
      remedy: "Leave its names and degrees out."
    })
  return { ...side, family } satisfies StoredNames
})

/** Degrees by which files were written, where --from states some. */
const statedConfig = (convention: string, { from }: StoredFlags) => {
  const side = Option.getOrUndefined(from)
  return side?.convention === convention ? side.config : undefined
}

/** Names of files that have the model's config.json beside them, and no note. */
const namesByConfig = Effect.fnUntraced(function* (checkpoint: string, convention: string, flags: StoredFlags) {
  const config = statedConfig(convention, flags)
  const read = yield* readModelConfig({ path: checkpoint, config: undefined })
  if (read === undefined || Result.isFailure(read)) return yield* unknownNames(checkpoint, convention)
  if (convention === "vllm") {
    // What vLLM saves of a dense model is known by itself: then the folder is its own template.
    const opened = yield* Effect.result(openModel(checkpoint))
    if (Result.isFailure(opened)) return yield* unknownNames(checkpoint, convention)
    const family = yield* familyOf(opened.success, flags)
    const ranks = yield* rankCount(checkpoint)
    return { convention, config: config ?? { ...single, tp: ranks }, like: checkpoint, family } satisfies StoredNames
  }
  const preset = Option.getOrUndefined(flags.preset) ?? read.success.model_type
  if (typeof preset !== "string" || !convention.startsWith("megatron"))
    return yield* unknownNames(checkpoint, convention)
  const family = { preset, placement: {}, config: read.success }
  return { convention, config: config ?? single, family } satisfies StoredNames
})

/**
 * A checkpoint as a user names it, opened. Under the names of a system it is read as the model that --like has, or as the
 * files say themselves.
 */
export const openStated = Effect.fnUntraced(function* (stated: string, flags: StoredFlags) {
  const { target, convention } = parseTarget(stated)
  const checkpoint = resolveModel(target)
  const input = inputOptions(flags)
  if (Option.isNone(flags.like)) {
    const noted = yield* notedNames(checkpoint, convention, flags)
    if (noted !== undefined) return { checkpoint, stored: noted, model: yield* openNamed(checkpoint, noted, input) }
  }
  const isOwn = convention === undefined || convention === "hf"
  if (isOwn) return { checkpoint, stored: undefined, model: yield* openModel(checkpoint, input) }
  if (Option.isNone(flags.like)) {
    const own = yield* namesByConfig(checkpoint, convention, flags)
    return { checkpoint, stored: own, model: yield* openNamed(checkpoint, own, input) }
  }
  const like = resolveLike(flags.like.value)
  const template = yield* openModel(like)
  const family = yield* familyOf(template, flags)
  const config = statedConfig(convention, flags) ?? single
  const stored = { convention, config, like, family } satisfies StoredNames
  return { checkpoint, stored, model: yield* openNamed(checkpoint, stored, input) }
})

/** The flags with the degrees, stages and convention that the run noted, where `--from megatron` leaves them to it. */
export const withNotes = Effect.fnUntraced(function* <F extends LayoutFlags>(stated: string, flags: F) {
  if (Option.getOrUndefined(flags.from)?.isNoted !== true) return flags
  const { target, convention } = parseTarget(stated)
  if (convention?.startsWith("megatron") !== true)
    return yield* modelError("InvalidUsage", {
      detail: "--from megatron takes the degrees that a run noted, and CHECKPOINT is not named as one of a run.",
      remedy: "Name it as megatron:DIR, or state the degrees, as in --from megatron:tp=2."
    })
  return { ...flags, from: Option.some(yield* readTrainerSide(folderOf(resolveModel(target)))) }
})

/** The same where nothing but the checkpoint is stated. */
export const openPlain = (stated: string, flags: InputFlags) =>
  Effect.map(
    openStated(stated, { ...flags, from: Option.none(), like: Option.none(), preset: Option.none() }),
    ({ model }) => model
  )

/** What sides name by rules that were not held against models of this type. */
export const unrecordedOf = (structure: ModelStructure, sides: ReadonlyArray<NamedSide>): ReadonlyArray<string> => [
  ...new Set(
    sides.flatMap(({ convention, mapping }) => {
      const known = mapping === undefined ? findConvention(convention) : undefined
      return known === undefined ? [] : (unrecordedType(known, structure) ?? [])
    })
  )
]

/** What rules of a user leave undone. */
const undoneOf = (structure: ModelStructure, sides: ReadonlyArray<NamedSide>): ReadonlyArray<string> =>
  sides.flatMap(({ mapping }) => (mapping === undefined ? [] : undoneBy(mapping, structure)))

/** Says on standard error what names rest on no record, and what rules leave undone. */
export const noteUnrecorded = (structure: ModelStructure, sides: ReadonlyArray<NamedSide>): Effect.Effect<void> =>
  Effect.forEach(
    [...unrecordedOf(structure, sides), ...undoneOf(structure, sides)],
    (text) => printError(`note: ${text}`),
    {
      discard: true
    }
  )

/** Both sides with names, where any are stated: by a prefix of a side, or by a file of rules. */
export const chooseNames = Effect.fnUntraced(function* (model: Model, choice: LayoutChoice, flags: LayoutFlags) {
  const placement = Option.getOrUndefined(flags.from)?.placement
  const [from, stated] = [Option.getOrUndefined(flags.from)?.convention, Option.getOrUndefined(flags.to)?.convention]
  // The checkpoint's own names need no mapping.
  const to = stated === "hf" ? undefined : stated
  const file = Option.getOrUndefined(flags.map)
  if ((from === undefined || from === "hf") && to === undefined && file === undefined) return undefined
  const { family } = choice.rules
  if (family === undefined) return yield* noFamily(model.path)
  const mapping = file === undefined ? undefined : yield* readMapping(file)
  return {
    from: { convention: from ?? "hf", config: choice.from, ...(placement === undefined ? {} : { placement }) },
    to: { convention: to ?? "hf", config: choice.to, ...(mapping === undefined ? {} : { mapping }) },
    ranks: choice.ranks,
    family
  } satisfies NamedChoice
})
