// SPDX-License-Identifier: Apache-2.0
/** `tensorferry convert`: from files under one system's names to files of another's ranks, by one process. */
import { formatParallelConfig, worldSizeOf } from "@tensorferry/model/layout/ModelLayout"
import type { Model } from "@tensorferry/model/Model"
import { type ConvertedFile, convertFiles } from "@tensorferry/model/names/files/convertFiles"
import type { NamedSide } from "@tensorferry/model/names/NamedSide"
import { type StatedSide, single } from "@tensorferry/model/names/StatedSide"
import { companionsOf } from "@tensorferry/model/outputs/companions"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type { DeviceChoice } from "../device/DeviceChoice.ts"
import { requireDevices } from "../device/requireDevices.ts"
import { withFailures } from "../output/CliFailure.ts"
import { makeProgressBar, type ProgressMode, progressFlag, progressMode } from "../output/ProgressBar.ts"
import { quiet } from "../output/quiet.ts"
import { sideText } from "../text/sideText.ts"
import { counted, formatBytes, table } from "../text/Table.ts"
import { plainLine, printEither } from "../text/terminal.ts"
import { usage } from "./meshFlags.ts"
import { chooseOutput, type OutputFlags, outputConfig } from "./outputFlags.ts"
import { pathFlag } from "./paths.ts"
import {
  checkpoint,
  device,
  familyOf,
  type InputFlags,
  inputConfig,
  json,
  type LayoutFlags,
  layoutConfig,
  memoryLimit,
  noteAbsent,
  noteUnrecorded,
  openStated,
  parseTarget,
  readMapping,
  sideFlag
} from "./shared.ts"

type Flags = Pick<LayoutFlags, "like" | "map" | "preset"> &
  InputFlags &
  OutputFlags & {
    readonly checkpoint: string
    readonly from: Option.Option<StatedSide>
    readonly to: StatedSide
    readonly out: string
    readonly progress: ProgressMode
    readonly device: Option.Option<DeviceChoice>
    readonly memoryLimit: Option.Option<number>
    readonly json: boolean
    readonly quiet: boolean
  }

/** How the files name and hold the model: by the prefix of CHECKPOINT, by --from, or by both. */
const sourceSide = Effect.fnUntraced(function* ({ checkpoint, from }: Flags) {
  const { target, convention: prefix } = parseTarget(checkpoint)
  const stated = Option.getOrUndefined(from)
  const convention = prefix ?? stated?.convention ?? "hf"
  if (stated?.convention !== undefined && stated.convention !== convention)
    return yield* usage(
      `CHECKPOINT has the names of ${convention}, --from those of ${stated.convention}.`,
      "State how the files name their tensors once."
    )
  const config = stated?.config ?? single
  if (convention === "hf" && worldSizeOf(config) > 1)
    return yield* usage(
      `The checkpoint's own names are stated with ${formatParallelConfig(config)}.`,
      "Leave --from out; a folder that reshard wrote says itself how it is cut."
    )
  return {
    target,
    side: { convention, config } satisfies NamedSide,
    isStated: prefix !== undefined || stated?.convention !== undefined
  }
})

/** How ranks name and hold it. */
const destinationSide = Effect.fnUntraced(function* ({ to, map }: Flags) {
  const convention = to.convention ?? "hf"
  if (Option.isSome(map)) return { convention, config: to.config, mapping: yield* readMapping(map.value) }
  if (convention === "hf" && worldSizeOf(to.config) > 1)
    return yield* usage(
      `--to ${formatParallelConfig(to.config)} names no system.`,
      "Put its name in front, as in --to vllm:tp=8; reshard cuts a model under its own names."
    )
  return { convention, config: to.config } satisfies NamedSide
})

/** What was written, for people. */
const describe = (
  model: Model,
  [from, to]: readonly [NamedSide, NamedSide],
  files: ReadonlyArray<ConvertedFile>,
  folder: string
): string => {
  const sum = (of: (file: ConvertedFile) => number): number => files.reduce((total, file) => total + of(file), 0)
  return [
    `${sideText(from.config, from.convention)} → ${sideText(to.config, to.convention)}, ${counted(model.tensors.length, "tensor")} of ${plainLine(model.path)}`,
    "",
    table(
      ["file", "tensors", "bytes"],
      files.map(({ file, tensors, bytes }) => [file, `${tensors}`, formatBytes(bytes)]),
      ["left", "right", "right"]
    ),
    "",
    `read back: ${counted(
      sum(({ tensors }) => tensors),
      "tensor"
    )}, ${formatBytes(sum(({ bytes }) => bytes))}, bit-identical to what was written`,
    `written: ${plainLine(folder)}`
  ].join("\n")
}

/** Backends take long to load, for who converts on the host. */
const onDevice = (model: Model, choice: DeviceChoice, limit: number | undefined) =>
  Effect.flatMap(
    Effect.promise(() => import("../job/filesOnDevice.ts")),
    ({ filesOnDevice }) => filesOnDevice(model, choice, limit)
  )

const runConvert = Effect.fnUntraced(function* (flags: Flags) {
  if (Option.isSome(flags.device)) yield* requireDevices(flags.device.value)
  const source = yield* sourceSide(flags)
  const to = yield* destinationSide(flags)
  const out = yield* chooseOutput(flags.out, flags)
  const { checkpoint, model, stored } = yield* openStated(
    source.isStated ? `${source.side.convention}:${source.target}` : source.target,
    { ...flags, from: Option.map(flags.from, () => source.side) }
  )
  const from = stored ?? source.side
  yield* noteAbsent(model)
  const family = yield* familyOf(model, flags)
  const structure = yield* Effect.fromResult(structureOf(model.tensors, family))
  yield* noteUnrecorded(structure, [from, to])
  const companions = flags.copyMetadata ? yield* companionsOf(model, {}) : []
  const bar = makeProgressBar({
    size: 1,
    phases: ["write"],
    mode: progressMode(flags)
  })
  const files = yield* Effect.ensuring(
    convertFiles(
      model,
      to,
      family,
      { ...out, companions },
      (done, total) => bar.update({ rank: 0, phase: "write", done, total }),
      Option.isNone(flags.device)
        ? undefined
        : yield* onDevice(model, flags.device.value, Option.getOrUndefined(flags.memoryLimit))
    ),
    bar.clear
  )
  yield* printEither(
    flags.json,
    () => ({
      ok: true,
      checkpoint,
      from: { convention: from.convention, config: from.config },
      to,
      out: out.folder,
      files,
      copied: companions.map(({ name }) => name)
    }),
    () => describe(model, [from, to], files, out.folder)
  )
})

const { like, map, preset } = layoutConfig

export const convert = Command.make(
  "convert",
  {
    checkpoint,
    ...inputConfig,
    from: sideFlag("from").pipe(
      Flag.withDescription(
        "How the files of CHECKPOINT name and hold the model, as vllm:tp=8; hf by default, the model's own names"
      ),
      Flag.optional
    ),
    to: sideFlag("to").pipe(
      Flag.withDescription("How ranks are to name and hold it, as vllm:tp=8; hf: writes a published checkpoint")
    ),
    like,
    map,
    preset,
    out: pathFlag("out", "folder").pipe(Flag.withDescription("Folder for the files")),
    device: device.pipe(
      Flag.withDescription(
        "Hold the model in memory of this device, as cuda:0, make the tensors of ranks there and write them from it; the host by default"
      )
    ),
    memoryLimit: memoryLimit.pipe(
      Flag.withDescription("With --device, most memory of it that the model and one file may take, as 60GiB")
    ),
    ...outputConfig,
    progress: progressFlag,
    quiet,
    json
  },
  (flags) => withFailures(flags, Effect.scoped(runConvert(flags)))
).pipe(
  Command.withExamples([
    {
      command: "tensorferry convert llama/ --to vllm:tp=8 --out engine/",
      description: "Files of an engine's ranks"
    },
    {
      command: "tensorferry convert vllm:engine/ --from vllm:tp=8 --like llama/ --to hf: --out back/",
      description: "And back to a published checkpoint"
    },
    {
      command: "tensorferry convert megatron:iter_0001000/ --like llama/ --to hf: --out published/",
      description: "A trainer's distributed checkpoint"
    },
    {
      command: "tensorferry convert llama/ --to hf:tp=2 --map rules.yaml --out own/",
      description: "By rules of your own"
    }
  ])
)
