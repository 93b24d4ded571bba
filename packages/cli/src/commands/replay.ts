// SPDX-License-Identifier: Apache-2.0
/** `tensorferry replay`: a collector process and a learner loop over a replay pipeline, measured or verified. */
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import { backendError } from "@tensorferry/core/backend/BackendDescriptor"
import { hostMemory, replayTransfer, tensorEngine } from "@tensorferry/core/backend/BackendLayer"
import { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import { parseDevice } from "@tensorferry/core/tensor/Device"
import { makeTrace } from "@tensorferry/core/trace/TraceFile"
import * as CliError from "effect/cli/CliError"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { backendRegistry } from "../job/backends.ts"
import { chooseDeadline, leastSeconds, mostSeconds } from "../job/deadline.ts"
import { writeWhole } from "../model/writeWhole.ts"
import { printAround, withFailures } from "../output/CliFailure.ts"
import { makeProgressBar, progressMode } from "../output/ProgressBar.ts"
import { logsBeside, quiet } from "../output/quiet.ts"
import type { ReplayJob } from "../replay/ReplayJob.ts"
import { runDeviceLearner } from "../replay/runDeviceLearner.ts"
import { runLearner } from "../replay/runLearner.ts"
import type { ReplayResult } from "../replay/runTicks.ts"
import { checkTarget } from "../report/runFiles.ts"
import { counted, formatBytes, formatSeconds, table } from "../text/Table.ts"
import { pathFlag } from "./paths.ts"
import { backendPackages, json } from "./shared.ts"

const count = (name: string, description: string, minimum: number, maximum: number) =>
  Flag.Int(name).pipe(
    Flag.withSchema(Schema.Int.check(Schema.isBetween({ minimum, maximum }))),
    Flag.withDescription(description)
  )

/** The same with a default that the help shows. */
const countOr = (byDefault: number, name: string, description: string, minimum: number, maximum: number) =>
  count(name, `${description} (${byDefault} by default)`, minimum, maximum).pipe(Flag.withDefault(byDefault))

const device = Flag.mapEffect(Flag.String("device"), (value) =>
  parseDevice(value) === undefined
    ? Effect.fail(
        new CliError.InvalidValue({
          option: "device",
          value,
          expected: "a device such as cpu, cuda:0 or xpu:0",
          kind: "flag"
        })
      )
    : Effect.succeed(value)
).pipe(Flag.withDescription("Where batches go: cpu, cuda:0, xpu:0 (cpu by default)"), Flag.withDefault("cpu"))

const flags = {
  device,
  rows: countOr(4096, "rows", "Rows of a batch", 1, 2 ** 24),
  width: countOr(256, "width", "Numbers (float32) in the observation of a row", 1, 2 ** 20),
  ring: Flag.Literals("ring", ["host", "device"]).pipe(
    Flag.withDescription(
      "Where the ring's rows lie: host, or device, which draws its batches itself (host by default)"
    ),
    Flag.withDefault("host")
  ),
  depth: countOr(2, "depth", "Slots that batches rotate through: 1 without overlap, 2 hot and cold, more ahead", 1, 64),
  capacity: count("capacity", "Rows that the ring holds; by default four batches", 1, 2 ** 31).pipe(Flag.optional),
  append: count("append", "New rows that the collector appends per batch; by default a quarter of it", 0, 2 ** 31).pipe(
    Flag.optional
  ),
  seed: countOr(0, "seed", "Fixes which rows each batch holds", 0, Number.MAX_SAFE_INTEGER),
  compute: Flag.Finite("compute").pipe(
    Flag.withSchema(Schema.Finite.check(Schema.isBetween({ minimum: 0, maximum: 60_000 }))),
    Flag.withDescription("Milliseconds that the learner works on each batch (20 by default)"),
    Flag.withDefault(20)
  ),
  trace: pathFlag("trace", "file").pipe(
    Flag.withDescription("File for a trace of packs, copies and waits that Perfetto and Chrome show"),
    Flag.optional
  ),
  deadline: Flag.Finite("deadline").pipe(
    Flag.withSchema(Schema.Finite.check(Schema.isBetween({ minimum: leastSeconds, maximum: mostSeconds }))),
    Flag.withDescription("Seconds without progress after which the command fails"),
    Flag.optional
  ),
  backendPackages,
  quiet,
  json
}

interface Flags {
  readonly device: string
  readonly rows: number
  readonly width: number
  readonly ring: ReplayJob["ring"]
  readonly depth: number
  readonly ticks: number
  readonly capacity: Option.Option<number>
  readonly append: Option.Option<number>
  readonly seed: number
  readonly compute: number
  readonly trace: Option.Option<string>
  readonly deadline: Option.Option<number>
  readonly backendPackages: ReadonlyArray<string>
  readonly quiet: boolean
  readonly json: boolean
}

/** The part of the copies that the learner did not wait for. */
const overlapOf = ({ copySeconds, stallSeconds }: ReplayResult): number =>
  copySeconds === 0 ? 0 : Math.max(0, 1 - stallSeconds / copySeconds)

const gigabytesPerSecond = (bytes: number, seconds: number): string =>
  seconds === 0 ? "" : `${(bytes / seconds / 1e9).toFixed(2)} GB/s`

const describe = (job: ReplayJob, result: ReplayResult): string => {
  const { attributes, batches, bytes, copySeconds, packSeconds, rowBytes, rows, seconds, stallSeconds } = result
  const row = (name: string, value: number, rate = "") => [
    name,
    formatSeconds(value),
    formatSeconds(value / batches),
    rate
  ]
  return [
    `${counted(batches, "batch", "batches")} of ${counted(job.rows, "row")} (${formatBytes(job.rows * rowBytes)}) to ${job.device}, ring depth ${job.ringDepth}, ` +
      `by ${attributes.h2dSubmitter} from ${attributes.hostMemoryKind}`,
    "",
    table(
      ["", "in all", "per batch", "rate"],
      [
        row("learner loop", seconds, gigabytesPerSecond(bytes, seconds)),
        row(
          job.ring === "host" ? "pack (collector)" : "draw (device)",
          packSeconds,
          gigabytesPerSecond(bytes, packSeconds)
        ),
        row("device copy", copySeconds, gigabytesPerSecond(bytes, copySeconds)),
        row("stall", stallSeconds)
      ],
      ["left", "right", "right", "right"]
    ),
    "",
    `throughput ${Math.round(rows / seconds)} rows/s, overlap ${(overlapOf(result) * 100).toFixed(1)}%`,
    ...(result.redrawn === 0
      ? []
      : [`${result.redrawn} rows were overwritten while the collector packed them, and others were drawn instead`]),
    ...(job.verify
      ? [`verified: ${counted(result.rowsVerified, "row")}, each whole and the row that seed and tick determine`]
      : [])
  ].join("\n")
}

const asJson = (job: ReplayJob, result: ReplayResult) => ({
  ok: true,
  ...job,
  ...result,
  // Of all batches, where the job states those of one.
  rowsPerBatch: job.rows,
  rowsPerSecond: result.rows / result.seconds,
  bytesPerSecond: result.bytes / result.seconds,
  overlap: overlapOf(result)
})

/** Of several engines of a family, that of the backend which copies to it: it knows the memory of the slots. */
const engineBeside = (family: string) =>
  Layer.unwrap(
    Effect.gen(function* () {
      const registry = yield* BackendRegistry
      const { name, deviceFamilies, tensorEngine: own } = yield* registry.forFamily(family, "replayTransfer")
      const isOwner = own !== undefined && deviceFamilies.includes(family)
      return tensorEngine({ deviceFamily: family, ...(isOwner ? { backend: name } : {}) })
    })
  )

/** A family that no backend names has no engine; that is said with those that there are, before anything starts. */
const requireFamily = (family: string) =>
  Effect.gen(function* () {
    const { descriptors } = yield* BackendRegistry
    const known = new Set(descriptors.flatMap(({ deviceFamilies }) => deviceFamilies))
    known.delete("*")
    if (known.has(family)) return
    return yield* backendError("UnknownBackend", {
      detail: `No backend serves device family ${family}.`,
      remedy: `Choose one of ${[...known].sort().join(", ")}, or load a package that serves it (--backend-package).`
    })
  })

const body = (flags: Flags, verify: boolean) =>
  Effect.gen(function* () {
    if (Option.isSome(flags.trace)) yield* checkTarget(path.resolve(flags.trace.value))
    const deadlineMillis = yield* chooseDeadline(flags.deadline)
    const capacity = Option.getOrElse(flags.capacity, () => 4 * flags.rows)
    const job: ReplayJob = {
      device: flags.device,
      rows: flags.rows,
      width: flags.width,
      ring: flags.ring,
      ringDepth: flags.depth,
      ticks: flags.ticks,
      capacity,
      append: Option.getOrElse(flags.append, () => Math.ceil(flags.rows / 4)),
      seed: flags.seed,
      computeMillis: flags.compute,
      deadlineMillis,
      verify
    }
    const trace = makeTrace({ processName: "learner" })
    const bar = makeProgressBar({ size: 1, phases: ["copy"], mode: progressMode(flags), counts: "items" })
    const onTick = (done: number, total: number) => bar.update({ rank: 0, phase: "copy", done, total })
    const family = parseDevice(job.device)!.family
    const memories = Layer.merge(hostMemory(), engineBeside(family))
    const transfer = replayTransfer({
      device: job.device,
      ringDepth: job.ringDepth,
      deadline: Duration.millis(deadlineMillis),
      timing: true
    })
    const from = pathToFileURL(path.join(process.cwd(), "package.json")).href
    const registry = backendRegistry(flags.backendPackages, from)
    yield* Effect.provide(requireFamily(family), registry)
    const work = Effect.gen(function* () {
      if (job.ring === "device") return yield* runDeviceLearner(job, onTick)
      return yield* Effect.provide(runLearner(job, onTick), Layer.provide(transfer, registry))
    })
    const learner = work.pipe(
      Option.isSome(flags.trace) ? Effect.withTracer(trace.tracer) : (effect) => effect,
      Effect.provide(Layer.merge(Layer.provide(memories, registry), logsBeside(bar))),
      Effect.ensuring(bar.clear)
    )
    const result = yield* learner
    const write = Option.match(flags.trace, {
      onNone: () => Effect.void,
      onSome: (file) => writeWhole(path.resolve(file), "the trace", trace.json())
    })
    yield* printAround(flags.json, write, { document: asJson(job, result), text: describe(job, result) })
  })

const subcommand = (name: string, ticks: number, verify: boolean) =>
  Command.make(name, { ...flags, ticks: countOr(ticks, "ticks", "Batches to take", 1, 10 ** 7) }, (stated) =>
    withFailures(stated, body(stated, verify))
  )

const bench = subcommand("bench", 100, false).pipe(
  Command.withDescription("Measure throughput, stall and overlap of batches on their way to a device"),
  Command.withExamples([
    { command: "tensorferry replay bench", description: "To host memory, with the defaults" },
    {
      command: "tensorferry replay bench --device cuda:0 --rows 16384 --width 1024 --trace replay.json",
      description: "To a GPU, with a trace for ui.perfetto.dev"
    },
    { command: "tensorferry replay bench --ring device", description: "From a ring whose rows lie on the device" }
  ])
)

const demo = subcommand("demo", 20, true).pipe(
  Command.withDescription("Do the same as bench, and compare every row of every batch with what the collector wrote"),
  Command.withExamples([
    { command: "tensorferry replay demo --rows 64 --depth 3", description: "Small batches, two prepared ahead" }
  ])
)

export const replay = Command.make("replay").pipe(Command.withSubcommands([bench, demo]))
