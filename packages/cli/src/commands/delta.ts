// SPDX-License-Identifier: Apache-2.0
/** `tensorferry delta`: what changed between two versions of a model as a file, applied again, and shown. */
import { stat } from "node:fs/promises"
import * as path from "node:path"
import { chooseCopyBackend } from "@tensorferry/core/backend/BackendLayer"
import { chainDeltas } from "@tensorferry/model/delta/applyDeltas"
import { type DeltaFile, deltaShapeOf, openDelta } from "@tensorferry/model/delta/DeltaFile"
import { type MadeChanges, type MadeDelta, makeDelta } from "@tensorferry/model/delta/makeDelta"
import { writeChainFile, writeChainFolder } from "@tensorferry/model/delta/writeChain"
import { modelError } from "@tensorferry/model/ModelError"
import { companionsOf } from "@tensorferry/model/outputs/companions"
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { backendRegistry } from "../job/backends.ts"
import { withFailures } from "../output/CliFailure.ts"
import { quiet } from "../output/quiet.ts"
import { formatBytes, table } from "../text/Table.ts"
import { plainLine, print } from "../text/terminal.ts"
import { usage } from "./meshFlags.ts"
import { chooseOutput, type OutputFlags, outputConfig } from "./outputFlags.ts"
import { pathArgument, pathFlag } from "./paths.ts"
import { type InputFlags, inputConfig, json, openPlain } from "./shared.ts"

/** Runs with the engine of host memory. */
const withHostEngine = <A, E, R>(body: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const { descriptor } = yield* chooseCopyBackend("torch-copy", "cpu")
    return yield* Effect.provide(body, descriptor.tensorEngine!({}))
  }).pipe(Effect.provide(backendRegistry([], import.meta.url)))

/** The file that --out names, which must not be there. */
const newFile = Effect.fnUntraced(function* (out: string) {
  const file = path.resolve(out)
  const isThere = yield* Effect.orElseSucceed(
    Effect.map(
      Effect.tryPromise(() => stat(file)),
      () => true
    ),
    () => false
  )
  if (!isThere) return file
  return yield* modelError("OutputExists", { file, detail: "It is there already.", remedy: "Name a new file." })
})

const percent = (part: number, whole: number): string =>
  whole === 0 ? "" : `${((100 * part) / whole).toPrecision(3)}%`

const short = (digest: string): string => digest.slice(0, 12)

const changesTable = (changes: ReadonlyArray<MadeChanges>): string =>
  table(
    ["tensor", "changed", "", "form", "bytes", "of full"],
    changes
      .filter(({ changed }) => changed > 0)
      .map(({ name, changed, elements, form, compression, bytes, fullBytes }) => [
        name,
        String(changed),
        percent(changed, elements),
        compression === "zstd" ? `${form}, zstd` : `${form}`,
        formatBytes(bytes),
        percent(bytes, fullBytes)
      ]),
    ["left", "right", "right", "left", "right", "right"]
  )

const sum = (changes: ReadonlyArray<MadeChanges>, key: "changed" | "elements" | "bytes" | "fullBytes"): number =>
  changes.reduce((total, one) => total + one[key], 0)

const madeText = (file: string, { base, result, tensors, bytes }: MadeDelta): string =>
  [
    changesTable(tensors),
    "",
    `${plainLine(file)}: ${formatBytes(bytes)}, ${percent(bytes, sum(tensors, "fullBytes"))} of the model`,
    `version ${short(base)} to ${short(result)}: ${percent(sum(tensors, "changed"), sum(tensors, "elements"))} of all elements in ${tensors.filter(({ changed }) => changed > 0).length} of ${tensors.length} tensors`
  ].join("\n")

interface MakeFlags extends InputFlags {
  readonly base: string
  readonly result: string
  readonly out: string
  readonly compress: "none" | "zstd"
  readonly json: boolean
}

const runMake = Effect.fnUntraced(function* (flags: MakeFlags) {
  const file = yield* newFile(flags.out)
  const [base, result] = [yield* openPlain(flags.base, flags), yield* openPlain(flags.result, flags)]
  const made = yield* withHostEngine(makeDelta(base, result, file, { compression: flags.compress }))
  yield* print(flags.json ? JSON.stringify({ ok: true, out: file, ...made }, null, 2) : madeText(file, made))
})

const makeCommand = Command.make(
  "make",
  {
    base: pathArgument("BASE", "path").pipe(
      Argument.withDescription("The model before, in any form that reshard reads")
    ),
    result: pathArgument("RESULT", "path").pipe(Argument.withDescription("The same tensors after")),
    ...inputConfig,
    out: pathFlag("out", "file").pipe(Flag.withDescription("The safetensors file for what changed")),
    compress: Flag.Literals("compress", ["none", "zstd"]).pipe(
      Flag.withDescription("Whether changes are compressed where that takes fewer bytes"),
      Flag.withDefault("zstd" as const)
    ),
    quiet,
    json
  },
  (flags) => withFailures(flags, Effect.scoped(runMake(flags)))
).pipe(
  Command.withDescription("Write what changed between two versions of a model, with the digests of both"),
  Command.withExamples([
    { command: "tensorferry delta make step-100/ step-101/ --out 101.delta.safetensors", description: "One step" }
  ])
)

const deltaArguments = pathArgument("DELTA", "path").pipe(
  Argument.withDescription("Files of `delta make`, in the order in which they follow one another"),
  Argument.between(1, 10_000)
)

/** Opens all of them. */
const openAll = (files: ReadonlyArray<string>) => Effect.forEach(files, (file) => openDelta(path.resolve(file)))

interface ApplyFlags extends InputFlags, OutputFlags {
  readonly base: string
  readonly deltas: ReadonlyArray<string>
  readonly out: Option.Option<string>
  readonly inPlace: boolean
  readonly json: boolean
}

const runApply = Effect.fnUntraced(function* (flags: ApplyFlags) {
  if (Option.isSome(flags.out) === flags.inPlace) {
    return yield* usage("The result goes to --out, or with --in-place over BASE.", "State one of the two.")
  }
  const base = yield* openPlain(flags.base, flags)
  if (flags.inPlace && !flags.base.endsWith(".safetensors")) {
    return yield* usage(
      "Only one .safetensors file is replaced in one step; several would be old and new for a while.",
      "Pass --out with a new folder."
    )
  }
  const [first, ...rest] = yield* openAll(flags.deltas)
  const chain = yield* chainDeltas(base, [first!, ...rest])
  const out = Option.getOrElse(flags.out, () => flags.base)
  if (flags.inPlace) yield* writeChainFile(chain, path.resolve(out))
  else if (out.endsWith(".safetensors")) yield* writeChainFile(chain, yield* newFile(out))
  else {
    const chosen = yield* chooseOutput(out, flags)
    const companions = flags.copyMetadata ? yield* companionsOf(base, {}) : []
    yield* writeChainFolder(chain, { ...chosen, companions })
  }
  const last = rest.at(-1) ?? first!
  const document = {
    ok: true,
    base: first!.base,
    result: last.result,
    deltas: flags.deltas.length,
    out: path.resolve(out)
  }
  yield* print(
    flags.json
      ? JSON.stringify(document, null, 2)
      : `${plainLine(out)}: version ${short(last.result)}, from ${short(first!.base)} by ${flags.deltas.length} deltas`
  )
})

const applyCommand = Command.make(
  "apply",
  {
    base: pathArgument("BASE", "path").pipe(Argument.withDescription("The version that the first delta was made from")),
    deltas: deltaArguments,
    ...inputConfig,
    out: pathFlag("out", "path").pipe(
      Flag.withDescription("Where the result goes: a new folder, or a new .safetensors file"),
      Flag.optional
    ),
    inPlace: Flag.Boolean("in-place").pipe(
      Flag.withDescription("Replace BASE, one .safetensors file, in one step: it is the old version or the new one"),
      Flag.withDefault(false)
    ),
    ...outputConfig,
    quiet,
    json
  },
  (flags) => withFailures(flags, Effect.scoped(runApply(flags)))
).pipe(
  Command.withDescription("Write the version that deltas lead to; refuse another base, another order, and damage"),
  Command.withExamples([
    {
      command: "tensorferry delta apply step-100/ 101.delta.safetensors 102.delta.safetensors --out step-102/",
      description: "Two steps at once"
    },
    {
      command: "tensorferry delta apply model.safetensors 101.delta.safetensors --in-place",
      description: "Over the file itself"
    }
  ])
)

/** What the heads of payloads say, for people; the payloads themselves are read when they are applied. */
const describeDelta = Effect.fnUntraced(function* (delta: DeltaFile) {
  const changes: Array<MadeChanges> = []
  for (const tensor of delta.tensors.values()) {
    const { elementBytes, elements } = deltaShapeOf(tensor)
    const shared = { name: tensor.name, elements, fullBytes: elements * elementBytes }
    const bytes = delta.payloadBytes.get(tensor.name)
    if (bytes === undefined) {
      changes.push({ ...shared, changed: 0, bytes: 0 })
      continue
    }
    const { changed, compression, form } = yield* delta.readHead(tensor.name)
    changes.push({ ...shared, changed, bytes, form, compression })
  }
  return { file: delta.path, base: delta.base, result: delta.result, tensors: changes, bytes: sum(changes, "bytes") }
})

const showCommand = Command.make("show", { deltas: deltaArguments, json }, (flags) =>
  withFailures(
    flags,
    Effect.scoped(
      Effect.gen(function* () {
        const found = yield* Effect.forEach(yield* openAll(flags.deltas), describeDelta)
        yield* print(
          flags.json
            ? JSON.stringify({ ok: true, deltas: found }, null, 2)
            : found.map((one) => madeText(one.file, one)).join("\n\n")
        )
      })
    )
  )
).pipe(Command.withDescription("Show what deltas change, and which versions they lead from and to"))

export const delta = Command.make("delta").pipe(
  Command.withSubcommands([makeCommand, applyCommand, showCommand]),
  Command.withExamples([
    { command: "tensorferry delta make old/ new/ --out new.delta.safetensors", description: "What changed, as a file" },
    { command: "tensorferry delta apply old/ new.delta.safetensors --out new/", description: "The new version again" },
    { command: "tensorferry delta show new.delta.safetensors", description: "How much changed, and where" }
  ])
)
