// SPDX-License-Identifier: Apache-2.0
/** `tensorferry reshard`: from one parallel layout to another, one process per rank, proved bit by bit. */
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import { chooseCopyBackend } from "@tensorferry/core/backend/BackendLayer"
import { fromEnvironment, readEnvironment } from "@tensorferry/core/group/ProcessGroupEnvironment"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { TraceRecord } from "@tensorferry/core/trace/TraceRecord"
import { jobLayouts, jobSize } from "@tensorferry/model/layouts"
import { checkTied } from "@tensorferry/model/names/checkTied"
import { namedLayouts } from "@tensorferry/model/names/namedLayouts"
import { resolveModel } from "@tensorferry/model/openModel"
import type { ConversionNote } from "@tensorferry/model/values/conversionNotes"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { backendOptions, readBackendOptions } from "../backends/optionsFlag.ts"
import { requireDevices } from "../device/requireDevices.ts"
import { agreeOnJob } from "../job/agreeOnJob.ts"
import { backendRegistry } from "../job/backends.ts"
import { runProcesses } from "../job/Coordinator.ts"
import { chooseDeadline, leastSeconds, mostSeconds } from "../job/deadline.ts"
import type { AnyJobSpec, JobSpec, MeshJobSpec, RankReport } from "../job/JobSpec.ts"
import { exchangeReports } from "../job/joinedReports.ts"
import { checkpointMeshPlans } from "../job/MeshJob.ts"
import { commandTrace } from "../job/Observed.ts"
import { checkProcesses } from "../job/processLimit.ts"
import { rankJob } from "../job/RankJob.ts"
import { printAround, reportFailure, withFailures } from "../output/CliFailure.ts"
import { makeProgressBar, type ProgressMode, progressFlag, progressMode } from "../output/ProgressBar.ts"
import { logsBeside, quiet } from "../output/quiet.ts"
import { conversionOf, describeReshard, reshardFacts } from "../output/ReshardText.ts"
import { checkTarget, type RunFiles, writeRunFiles } from "../report/runFiles.ts"
import { printText } from "../text/terminal.ts"
import { type ConversionFlags, chooseConversion, conversionConfig, convertModel } from "./conversionFlags.ts"
import { chooseMeshes, type MeshFlags, meshConfig, statedFlags, usage } from "./meshFlags.ts"
import { chooseOutput, type OutputFlags, outputConfig } from "./outputFlags.ts"
import { pathFlag } from "./paths.ts"
import {
  backend,
  backendPackages,
  checkpoint,
  chooseLayouts,
  chooseNames,
  device,
  type InputFlags,
  inputConfig,
  inputOptions,
  json,
  type LayoutFlags,
  layoutConfig,
  memoryLimit,
  noteAbsent,
  noteUnrecorded,
  openStated,
  parseTarget,
  withNotes
} from "./shared.ts"

/** All failures, those that name their own cause before those that only heard of it. */
const byWeight = (reason: string): number => (reason === "PeerGone" || reason === "DeadlineExceeded" ? 1 : 0)

/** Writes the files that were asked for, and reports what happened. */
const conclude = (
  spec: AnyJobSpec,
  reports: ReadonlyArray<RankReport>,
  { files, isJson, notes }: Output,
  command?: TraceRecord
) =>
  Effect.gen(function* () {
    // Since the process began.
    const seconds = performance.now() / 1000
    const written = [
      ...(files.trace === undefined ? [] : [`trace: ${files.trace} (open it in ui.perfetto.dev)`]),
      ...(files.record === undefined ? [] : [`record: ${files.record} (tensorferry report shows it)`])
    ]
    const write = writeRunFiles(files, {
      spec,
      conversion: conversionOf(spec),
      seconds,
      reports,
      ...(command === undefined ? {} : { command })
    })
    const isWritten = yield* printAround(isJson, write, {
      document: reshardFacts(spec, reports, notes),
      text: describeReshard(spec, reports, notes, seconds)
    })
    if (isWritten && !isJson && written.length > 0) yield* printText(written.join("\n"))
  })

/** What becomes of a run's results. */
interface Output {
  readonly files: RunFiles
  readonly isJson: boolean
  readonly progress: ProgressMode
  /** By the clock of `performance`. */
  readonly begun: number
  /** What a conversion does to the tensors. */
  readonly notes: ReadonlyArray<ConversionNote>
}

const runHere = Effect.fnUntraced(function* (spec: AnyJobSpec, size: number, output: Output) {
  const { isJson } = output
  const bar = makeProgressBar({
    size,
    phases: [
      "allocate",
      "load",
      "copy",
      ...(spec.verify ? (["verify"] as const) : []),
      ...(spec.out === null ? [] : (["write"] as const))
    ],
    mode: output.progress
  })
  const started = performance.now()
  const outcomes = yield* Effect.ensuring(
    Effect.scoped(Effect.provide(runProcesses(spec, size, bar.update), logsBeside(bar))),
    bar.clear
  )
  const failures = outcomes.flatMap((outcome) => (outcome._tag === "Failed" ? [outcome] : []))
  if (failures.length > 0) {
    const sorted = [...failures].sort((a, b) => byWeight(a.failure.reason) - byWeight(b.failure.reason))
    yield* reportFailure(sorted, isJson)
    return
  }
  const reports = outcomes.flatMap((outcome) => (outcome._tag === "Finished" ? [outcome.report] : []))
  const command = commandTrace(size, [
    { name: "process.load", start: 0, end: output.begun },
    { name: "command.prepare", start: output.begun, end: started },
    { name: "command.ranks", start: started, end: performance.now() }
  ])
  yield* conclude(spec, reports, output, command)
})

/** One process among those that a launcher started: its rank's part of the job; rank 0 prints. */
const runJoined = Effect.fnUntraced(function* (spec: AnyJobSpec, output: Output) {
  const begun = performance.now()
  const group = yield* Effect.updateService(fromEnvironment, ConfigProvider.ConfigProvider, (environment) =>
    ConfigProvider.orElse(
      ConfigProvider.fromEnvRecord({ TENSORFERRY_DEADLINE: String(spec.deadlineMillis / 1000) }),
      environment
    )
  )
  yield* agreeOnJob(group, spec)
  const joined: AnyJobSpec =
    spec.out === null
      ? spec
      : {
          ...spec,
          out: {
            ...spec.out,
            temporary: new TextDecoder().decode(
              yield* group.broadcast("output folder", 0, new TextEncoder().encode(spec.out.temporary))
            )
          }
        }
  const report = yield* Effect.provideService(
    rankJob(joined, () => Effect.void, [
      { name: "process.load", start: 0, end: output.begun },
      { name: "command.prepare", start: output.begun, end: begun },
      { name: "group.join", start: begun, end: performance.now() }
    ]),
    ProcessGroup,
    group
  )
  const reports = yield* exchangeReports(group, report)
  if (group.rank !== 0) return
  yield* conclude(joined, reports, output)
})

type Flags = LayoutFlags &
  InputFlags &
  MeshFlags &
  OutputFlags &
  ConversionFlags & {
    readonly checkpoint: string
    readonly tensor: Option.Option<string>
    readonly out: Option.Option<string>
    readonly prove: "sample" | "all"
    readonly deltaFrom: Option.Option<string>
  }

/** More processes than this are surely a mistyped rank. */
const mostProcesses = 4096

type Common = Pick<JobSpec, Exclude<keyof JobSpec & keyof MeshJobSpec, "out">>

/** What is moved and by how many processes, refused before any of them starts where it cannot work. */
const chooseJob = Effect.fnUntraced(function* (flags: Flags, common: Common) {
  const opened = yield* openStated(flags.checkpoint, flags)
  const meshes = statedFlags({ ...meshConfig, tensor: null }, flags)
  if (meshes.length === 0) {
    yield* noteAbsent(opened.model)
    const conversion = yield* chooseConversion(flags)
    const { model, notes } = yield* convertModel(opened.model, conversion)
    const sides = yield* withNotes(flags.checkpoint, flags)
    const choice = yield* chooseLayouts(model, sides)
    const names = yield* chooseNames(model, choice, sides)
    if (names !== undefined && conversion !== undefined)
      return yield* usage(
        "Types are converted between the checkpoint's own names only.",
        "Convert in a step of its own, or leave the convention out."
      )
    const converted = {
      ...choice,
      ...(conversion === undefined ? {} : { conversion }),
      ...(names === undefined ? {} : { names })
    }
    if (names === undefined) yield* Effect.fromResult(jobLayouts(model.tensors, converted))
    else {
      const { structure } = yield* Effect.fromResult(namedLayouts(model.tensors, names))
      yield* checkTied(model, structure, names.to)
      yield* noteUnrecorded(structure, [names.from, names.to])
    }
    if (
      Option.isSome(flags.deltaFrom) &&
      (names !== undefined || conversion !== undefined || opened.stored !== undefined)
    )
      return yield* usage(
        "What changed is told between the checkpoint's own names and types only.",
        "Leave --delta-from out, or the conversion."
      )
    const out = Option.isNone(flags.out) ? null : yield* chooseOutput(flags.out.value, flags)
    const { stored } = opened
    const spec: AnyJobSpec = {
      ...common,
      ...(stored === undefined ? {} : { stored }),
      ...converted,
      ...(Option.isNone(flags.deltaFrom) ? {} : { deltaFrom: resolveModel(flags.deltaFrom.value) }),
      prove: flags.prove,
      out
    }
    return { spec, size: jobSize(choice), notes }
  }
  const others = statedFlags({ ...layoutConfig, out: null, transform: null, dtype: null, deltaFrom: null }, flags)
  if (others.length > 0) {
    return yield* usage(
      `${others.join(", ")} ${others.length === 1 ? "does" : "do"} nothing between meshes.`,
      "State one kind of layout; a tensor moved between meshes is proved in memory and not written."
    )
  }
  const mesh = yield* chooseMeshes(flags)
  if (Option.isNone(flags.tensor)) {
    return yield* usage("No --tensor is stated.", "Name the tensor of the checkpoint that is moved between meshes.")
  }
  const tensor = flags.tensor.value
  const { size } = yield* Effect.fromResult(checkpointMeshPlans(opened.model, tensor, mesh))
  if (size > mostProcesses) {
    return yield* usage(`The meshes name rank ${size - 1}.`, `Name ranks below ${mostProcesses}; each is a process.`)
  }
  const spec: AnyJobSpec = { ...common, tensor, mesh, out: null }
  return { spec, size, notes: [] }
})

export const reshard = Command.make(
  "reshard",
  {
    checkpoint,
    ...inputConfig,
    ...layoutConfig,
    tensor: Flag.String("tensor").pipe(
      Flag.withDescription("Tensor of the checkpoint that is moved between device meshes"),
      Flag.optional
    ),
    ...meshConfig,
    backend,
    device,
    memoryLimit,
    options: backendOptions,
    backendPackages,
    ...conversionConfig,
    out: pathFlag("out", "folder").pipe(
      Flag.withDescription(
        "Folder for the destination shards and their manifest; without it the result is only proved"
      ),
      Flag.optional
    ),
    ...outputConfig,
    deltaFrom: pathFlag("delta-from", "path").pipe(
      Flag.withDescription(
        "The version before, in any form that CHECKPOINT has: ranks hold it already, and only what changed since travels"
      ),
      Flag.optional
    ),
    verify: Flag.Boolean("verify").pipe(
      Flag.withDescription("Compare every destination shard with the checkpoint (on by default; --no-verify skips it)"),
      Flag.withDefault(true)
    ),
    prove: Flag.Literals("prove", ["sample", "all"]).pipe(
      Flag.withDescription(
        "Elements that are traced to their ranks by the structure of the model: all edges and a sample, or all"
      ),
      Flag.withDefault("sample")
    ),
    trace: pathFlag("trace", "file").pipe(
      Flag.withDescription("File for a timeline of all ranks that Perfetto and Chrome show"),
      Flag.optional
    ),
    record: pathFlag("record", "file").pipe(
      Flag.withDescription("File for a record of the run that tensorferry report shows"),
      Flag.optional
    ),
    deadline: Flag.Finite("deadline").pipe(
      Flag.withDescription(
        "Seconds without progress after which the others stop waiting for a rank and fail (by default TENSORFERRY_DEADLINE, else 60)"
      ),
      Flag.withSchema(Schema.Finite.check(Schema.isBetween({ minimum: leastSeconds, maximum: mostSeconds }))),
      Flag.optional
    ),
    processes: Flag.Int("processes").pipe(
      Flag.withDescription(
        "Most processes to start here (by default as many as cores and memory of this machine bear)"
      ),
      Flag.withSchema(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 20 }))),
      Flag.optional
    ),
    progress: progressFlag,
    quiet,
    json
  },
  (flags) =>
    withFailures(
      flags,
      Effect.scoped(
        Effect.gen(function* () {
          const begun = performance.now()
          const packagesFrom = pathToFileURL(path.join(process.cwd(), "package.json")).href
          const target = (flag: Option.Option<string>) =>
            Option.getOrUndefined(Option.map(flag, (file) => path.resolve(file)))
          const files: RunFiles = { trace: target(flags.trace), record: target(flags.record) }
          const targets = [files.trace, files.record].filter((file) => file !== undefined)
          yield* Effect.forEach(targets, checkTarget, { discard: true })
          if (Option.isSome(flags.device)) yield* requireDevices(flags.device.value)
          const { spec, size, notes } = yield* Effect.scoped(
            chooseJob(flags, {
              checkpoint: resolveModel(parseTarget(flags.checkpoint).target),
              input: inputOptions(flags),
              backend: flags.backend,
              ...(Option.isNone(flags.options) ? {} : { options: yield* readBackendOptions(flags.options) }),
              backendPackages: flags.backendPackages,
              packagesFrom,
              ...(Option.isNone(flags.device) ? {} : { device: flags.device.value }),
              ...(Option.isNone(flags.memoryLimit) ? {} : { memoryLimit: flags.memoryLimit.value }),
              verify: flags.verify,
              observe: targets.length > 0,
              deadlineMillis: yield* chooseDeadline(flags.deadline)
            })
          )
          const registry = backendRegistry(flags.backendPackages, packagesFrom)
          const output: Output = {
            files,
            isJson: flags.json,
            progress: progressMode(flags),
            begun,
            notes
          }
          const run = Effect.gen(function* () {
            yield* chooseCopyBackend(flags.backend, spec.device?.family ?? "cpu")
            const environment = yield* readEnvironment
            if (environment.launcher === "none") {
              yield* checkProcesses(size, flags.processes)
              yield* runHere(spec, size, output)
            } else {
              yield* runJoined(spec, output)
            }
          })
          yield* Effect.provide(run, registry)
        })
      )
    )
).pipe(
  Command.withExamples([
    {
      command: "tensorferry reshard model.safetensors --from tp=2 --to tp=4,pp=2 --rules rules.yaml",
      description: "Prove a move"
    },
    {
      command: "tensorferry reshard llama/ --preset llama --from tp=1 --to tp=2 --out shards/",
      description: "Write shards"
    },
    {
      command: "tensorferry reshard step-101/ --to tp=4 --delta-from step-100/ --out shards/",
      description: "Send what changed since a version that ranks hold"
    },
    { command: "tensorferry reshard shards/ --to tp=1 --out whole/", description: "And back to one file" },
    {
      command: "tensorferry reshard hf:llama/ --from megatron:tp=2 --to vllm:tp=8 --out engine/",
      description: "From a trainer's tensors to an engine's"
    },
    {
      command:
        "tensorferry reshard llama/ --preset llama --from tp=1 --to tp=2 --transform mxfp8:rceil:sender --out fp8/",
      description: "Quantized on the way"
    },
    {
      command: "tensorferry reshard qwen3-moe/ --from tp=2,dp=2,ep=4 --to tp=4 --ranks disjoint",
      description: "Experts on ranks of their own, the preset from config.json"
    },
    {
      command: "tensorferry reshard synthetic:shapes.json.gz --preset llama --from tp=2 --to tp=4",
      description: "Real shapes, made-up data"
    },
    {
      command: "tensorferry reshard llama/ --to tp=4 --trace reshard.trace.json --record run.json",
      description: "Keep a timeline for ui.perfetto.dev, and a record for tensorferry report"
    },
    {
      command: "tensorferry reshard model.safetensors --tensor lm_head.weight --from-mesh 2x2:S0,R --to-mesh 3@4:S1",
      description: "One tensor between device meshes"
    }
  ])
)
