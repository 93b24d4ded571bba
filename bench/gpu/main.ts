// SPDX-License-Identifier: Apache-2.0
/**
 * Proves and measures this package on the GPUs of a machine: `node main.js [--out FOLDER] [--only STAGE,...] [--simulator FILE]`.
 *
 * Stages: host (host kernels of this processor), facts, engine, replay, ways (of queueing replay copies), quantize
 * (recordings), rates (of it), changes (adapters and digests too), streams (checkpoints), ring (of replay on the device),
 * conformance, golden, reshard, names (between names of systems), repeats, bus, weights (a model through the bus), ferry
 * (through the Python package), sanitizer. Those up to ring, weights and ferry need one device. Each writes what it found to
 * `results.json` in the folder as soon as it has ended; tables come last.
 */
import { spawnSync } from "node:child_process"
import { mkdirSync, readFileSync, writeFileSync } from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { gunzipSync } from "node:zlib"
import { descriptors } from "@tensorferry/backend-cuda"
import { descriptors as nvshmem } from "@tensorferry/backend-nvshmem"
import { descriptor as torchCopy } from "@tensorferry/backend-torch-copy"
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { median } from "@tensorferry/core/base/Numbers"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { checkCasts, RecordedCasts } from "@tensorferry/golden/dtypeCasts"
import { formSets } from "@tensorferry/golden/engineForms"
import { type CaseResult, combineOutcomes, runTensorEngineCases } from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { agentMain, busProblem, checkBus, measureBusWeights } from "./bus.ts"
import { measureChanges } from "./changes.ts"
import { measureFerry } from "./ferry.ts"
import { type JobResult, runJob } from "./jobs.ts"
import { namedCases } from "./namedCases.ts"
import { driftPer100 } from "./numbers.ts"
import { goldenForms, goldenQuantize, measureQuantize } from "./quantize.ts"
import { rankMain } from "./rank.ts"
import { type Figure, measureReplay, replayCases } from "./replay.ts"
import { compareWays, formatWays } from "./replayWays.ts"
import { deviceCase, deviceCaseCount } from "./reshards.ts"
import { measureRing } from "./ring.ts"
import { measureStreams } from "./streams.ts"
import { printTables, type Row } from "./tables.ts"
import type { RankSpec, RepeatSample, ReshardTimes } from "./work.ts"

const folder = path.dirname(fileURLToPath(import.meta.url))
const data = (name: string): string => path.join(folder, "data", name)

const flag = (name: string): string | undefined => {
  const at = process.argv.indexOf(`--${name}`)
  return at < 0 ? undefined : process.argv[at + 1]
}
const out = flag("out") ?? "."
const only = flag("only")?.split(",")
const simulator = flag("simulator")
/** Names of backends; `staged-tcp` moves devices' memory over the network and `tcp` that of the host; `nvshmem:put` and `nvshmem:direct` choose its path, `nvshmem:symmetric` is direct into symmetric memory. */
const backends = flag("backends")?.split(",") ?? ["cuda-ipc", "nccl", "cuda"]
const devices = Number(flag("devices") ?? 2)
/** For rehearsals: divides long dimensions of the weights. */
const shrink = Number(flag("shrink") ?? 1)
/** Timed updates of each case. */
const rounds = Number(flag("rounds") ?? 5)
/** Updates before them. */
const warmUps = Number(flag("warm-ups") ?? 30)
/** Updates one after the other; drift is judged over the second half. */
const repeatCount = Number(flag("repeats") ?? 600)

/** Of the backends, as JSON. */
const stated = JSON.parse(flag("options") ?? "{}") as { readonly [name: string]: unknown }
const options =
  simulator === undefined
    ? stated
    : { ...stated, libraries: { runtime: simulator, driver: simulator, compiler: simulator, collectives: simulator } }

/** The backend that a name of `backends` means, with its options; those of `nvshmem` are stated by a flag of their own. */
const chosen = (name: string): Pick<RankSpec, "backend" | "options" | "symmetric"> => {
  const [backend, way] = name.split(":") as [string, string | undefined]
  if (backend !== "nvshmem") return { backend, options }
  const own = JSON.parse(flag("nvshmem-options") ?? "{}") as { readonly [option: string]: unknown }
  const libraries = { runtime: simulator, driver: simulator, compiler: simulator, nvshmem: simulator }
  const symmetric = way === "symmetric"
  const chosenPath = symmetric ? "direct" : way
  return {
    backend,
    symmetric,
    options: {
      ...own,
      ...(chosenPath === undefined ? {} : { path: chosenPath }),
      ...(simulator === undefined ? {} : { libraries })
    }
  }
}
/** What PyTorch does in the same run, on a real device. */
const torchScript = (name: string) => (simulator === undefined ? data(`bus/${name}_torch.py`) : undefined)
const program = [process.execPath, "--expose-gc", fileURLToPath(import.meta.url)]

const report: { [name: string]: unknown } = {
  date: new Date().toISOString().slice(0, 10),
  host: { processor: os.cpus()[0]?.model, cores: os.availableParallelism(), node: process.version }
}
const rows: Array<Row> = []
const figures: Array<Figure> = []
const summary: Array<string> = []

const save = (): void => {
  mkdirSync(out, { recursive: true })
  writeFileSync(path.join(out, "results.json"), `${JSON.stringify({ ...report, rows, figures }, null, 1)}\n`)
}

const tell = (line: string): void => {
  summary.push(line)
  console.log(line)
}

const note = (figure: Figure): void => {
  figures.push(figure)
  console.log(`${figure.case}: ${figure.value.toPrecision(4)} ${figure.unit} (${figure.detail})`)
  save()
}

const judge = (stage: string, results: ReadonlyArray<CaseResult>): void => {
  const count = (status: CaseResult["status"]) => results.filter((result) => result.status === status).length
  tell(`${stage}: ${count("passed")} passed, ${count("failed")} failed, ${count("skipped")} skipped`)
  const failed = results.filter((result) => result.status === "failed")
  for (const { name, detail } of failed.slice(0, 8)) tell(`  failed: ${name}: ${detail.slice(0, 600)}`)
  report[stage] = {
    passed: count("passed"),
    failed: failed,
    skipped: results.filter((result) => result.status === "skipped")
  }
}

/** Outcomes of all ranks as one result per case; a job that broke off is a failure of its own. */
const resultsOf = (job: JobResult): ReadonlyArray<CaseResult> => {
  const byCase = new Map<string, Array<Parameters<typeof combineOutcomes>[1][number]>>()
  for (const lines of job.lines) {
    for (const line of lines) {
      if (line.event === "outcome") byCase.set(line.name, [...(byCase.get(line.name) ?? []), line.outcome])
    }
  }
  return [
    ...[...byCase].map(([name, outcomes]) => combineOutcomes(name, outcomes)),
    ...job.lines.flat().flatMap((line) => (line.event === "result" ? [line.result] : [])),
    ...job.failures.map((detail): CaseResult => ({ name: "processes", status: "failed", detail }))
  ]
}

const casts = (descriptor: BackendDescriptor, with_: { readonly [name: string]: unknown }) =>
  Effect.gen(function* () {
    const recorded = Schema.decodeUnknownSync(RecordedCasts)(
      JSON.parse(gunzipSync(readFileSync(data("dtype_casts.json.gz"))).toString("utf8"))
    )
    const verdicts = yield* checkCasts(yield* TensorEngine, recorded)
    return verdicts.map(
      ({ name, fault }): CaseResult => ({
        name,
        status: fault === undefined ? "passed" : "failed",
        detail: fault ?? ""
      })
    )
  }).pipe(Effect.provide(descriptor.tensorEngine!(with_)))

const engineDescriptor = descriptors.find(({ tensorEngine }) => tensorEngine !== undefined)!

const conformanceSizes = (backend: string): ReadonlyArray<number> =>
  // Collectives take one rank per device.
  [1, 2, 3].filter((size) => backend === "cuda-ipc" || size <= devices)

const stages: { readonly [name: string]: () => Promise<void> } = {
  host: async () => {
    for (const kernels of ["baseline", "avx2", "widest"]) {
      const env = { ...process.env, ...(kernels === "widest" ? {} : { TENSORFERRY_KERNELS: kernels }) }
      const child = spawnSync(program[0]!, [...program.slice(1), "host-casts"], { env, encoding: "utf8" })
      const last = child.stdout.trim().split("\n").at(-1) ?? ""
      tell(`host kernels, ${kernels}: ${last || child.stderr.slice(-500)}`)
      report[`host ${kernels}`] = last
    }
  },
  facts: async () => {
    const found = await Promise.all(
      [...descriptors, ...nvshmem].map(async ({ name, probe }) => [name, await Effect.runPromise(probe)] as const)
    )
    report.backends = Object.fromEntries(found)
    for (const [name, probe] of found) {
      tell(
        `${name}: ${probe._tag === "Available" ? `${probe.detail} ${JSON.stringify(probe.versions)}` : probe.cause.slice(0, 300)}`
      )
    }
  },
  engine: async () => {
    const layer = engineDescriptor.tensorEngine!(options)
    judge("engine", await Effect.runPromise(runTensorEngineCases(layer)))
    judge("casts recorded with PyTorch", await Effect.runPromise(Effect.scoped(casts(engineDescriptor, options))))
  },
  replay: async () => {
    const spec = { options, vendor: stated.vendor === "rocm" ? "rocm" : "cuda", shrink } as const
    judge("replay", await Effect.runPromise(replayCases(spec, simulator !== undefined)))
    await Effect.runPromise(measureReplay(spec, note))
  },
  ways: async () => {
    const spec = { options, vendor: stated.vendor === "rocm" ? "rocm" : "cuda", shrink } as const
    const { rows: compared, notes } = await Effect.runPromise(compareWays(spec))
    report.ways = compared
    for (const line of [...formatWays(compared), ...notes]) tell(line)
  },
  quantize: async () => {
    const recordedOf = (set: string): unknown =>
      JSON.parse(gunzipSync(readFileSync(data(`${set}.json.gz`))).toString("utf8"))
    const verdictsOf = ({ count, faults }: Effect.Success<ReturnType<typeof goldenForms>>) => [
      ...faults.map(({ name, fault }): CaseResult => ({ name, status: "failed", detail: fault ?? "" })),
      ...Array.from(
        { length: count - faults.length },
        (): CaseResult => ({ name: "recorded block", status: "passed", detail: "" })
      )
    ]
    const blocks = goldenQuantize(engineDescriptor, options, recordedOf("mxfp8"))
    judge("recorded MXFP8 blocks", verdictsOf(await Effect.runPromise(Effect.scoped(blocks))))
    for (const set of Object.keys(formSets)) {
      const verdicts = goldenForms(engineDescriptor, options, set, recordedOf(set))
      judge(`recorded ${set}`, verdictsOf(await Effect.runPromise(Effect.scoped(verdicts))))
    }
  },
  rates: () => Effect.runPromise(measureQuantize(engineDescriptor, options, shrink, note)),
  changes: () => Effect.runPromise(measureChanges(engineDescriptor, options, shrink, note)),
  streams: () => Effect.runPromise(measureStreams(engineDescriptor, options, shrink, torchScript("streams"), note)),
  ring: () => Effect.runPromise(measureRing(engineDescriptor, options, shrink, torchScript("ring"), note)),
  conformance: async () => {
    for (const backend of backends) {
      for (const size of conformanceSizes(backend)) {
        const job = await runJob(program, { size, ...chosen(backend), work: { kind: "conformance" } }, 240)
        judge(`conformance ${backend}, ${size} ranks`, resultsOf(job))
      }
    }
  },
  golden: async () => {
    const file = data("megatron_plans.json.gz")
    const sized: ReadonlyArray<readonly [string, number]> = [
      ["cuda-ipc", 8],
      ["nccl", 2],
      ["cuda", 2]
    ]
    const others = backends.filter((name) => name.startsWith("nvshmem")).map((name) => [name, 2] as const)
    for (const [backend, size] of others.length > 0 ? others : sized) {
      const job = await runJob(program, { size, ...chosen(backend), work: { kind: "golden", file } }, 240)
      judge(`golden rosters ${backend}, up to ${size} ranks`, resultsOf(job))
    }
  },
  reshard: async () => {
    const cases = flag("cases")?.split(",").map(Number) ?? Array.from({ length: deviceCaseCount }, (_, at) => at)
    for (const backend of backends) {
      const work = { kind: "reshard", cases, warmUps, rounds } as const
      const job = await runJob(program, { size: 2, ...chosen(backend), shrink, work }, 300)
      const told = job.lines.map((lines) => lines.flatMap((line) => (line.event === "reshard" ? [line.times] : [])))
      report[`reshard ${backend}`] = told
      for (const at of cases) {
        const one = deviceCase(at, shrink)
        const times = told.flatMap((list): ReadonlyArray<ReshardTimes> => list.filter((each) => each.case === one.name))
        if (times.length === 0) continue
        rows.push({
          case: one.name,
          path: backend,
          medianMs: median(times[0]!.roundsMs),
          targetMs: backend === "nccl" ? one.collectivesTargetMs : one.targetMs,
          referenceMs: one.referenceMs,
          limitMs: one.limitMs,
          bytesRemote: Math.max(...times.map(({ receivedBytes }) => receivedBytes)),
          ops: times.reduce((sum, { operations }) => sum + operations, 0)
        })
        for (const { faults } of times) for (const fault of faults) tell(`  wrong: ${backend}, ${one.name}: ${fault}`)
      }
      for (const failure of resultsOf(job))
        if (failure.status === "failed") tell(`  failed: ${backend}: ${failure.detail.slice(0, 1500)}`)
    }
  },
  names: async () => {
    const cases = flag("cases")?.split(",").map(Number) ?? namedCases.map((_, at) => at)
    for (const backend of backends) {
      const work = { kind: "names", cases, warmUps, rounds } as const
      const job = await runJob(program, { size: 2, ...chosen(backend), shrink, work }, 300)
      const told = job.lines.map((lines) => lines.flatMap((line) => (line.event === "reshard" ? [line.times] : [])))
      report[`names ${backend}`] = told
      for (const at of cases) {
        const { name } = namedCases[at]!
        const times = told.flatMap((list): ReadonlyArray<ReshardTimes> => list.filter((each) => each.case === name))
        if (times.length === 0) continue
        const received = Math.max(...times.map(({ receivedBytes }) => receivedBytes))
        tell(
          `${backend}, ${name}: median ${median(times[0]!.roundsMs).toFixed(2)} ms, ${(received / 1e9).toFixed(2)} GB, ${times.reduce((sum, { operations }) => sum + operations, 0)} operations`
        )
        for (const { faults } of times) for (const fault of faults) tell(`  wrong: ${backend}, ${name}: ${fault}`)
      }
      for (const failure of resultsOf(job))
        if (failure.status === "failed") tell(`  failed: ${backend}: ${failure.detail.slice(0, 1500)}`)
    }
  },
  repeats: async () => {
    for (const backend of backends) {
      const job = await runJob(
        program,
        { size: 2, ...chosen(backend), shrink, work: { kind: "repeats", count: repeatCount } },
        300
      )
      for (const [rank, lines] of job.lines.entries()) {
        const samples = lines.flatMap(
          (line): ReadonlyArray<RepeatSample> => (line.event === "sample" ? [line.sample] : [])
        )
        // Compilers and caches settle first.
        const settled = samples.slice(Math.floor(samples.length / 2))
        const drifts = Object.fromEntries(
          (["milliseconds", "heapBytes", "residentBytes", "descriptors"] as const).map((field) => [
            field,
            driftPer100(settled.map((sample) => sample[field]))
          ])
        )
        report[`repeats ${backend}, rank ${rank}`] = { count: samples.length, drifts }
        const text = Object.entries(drifts).map(([field, drift]) => `${field} ${(drift * 100).toFixed(2)}%`)
        tell(`repeats ${backend}, rank ${rank}: ${samples.length} samples, drift per 100: ${text.join(", ")}`)
      }
      for (const failure of job.failures) tell(`  failed: ${failure}`)
    }
  },
  bus: async () => {
    // Over the simulated driver the package's own tests do it; here tensors of the host rehearse everything around it.
    const onGpu = simulator === undefined
    const problem = busProblem(onGpu)
    if (problem !== undefined) return tell(`bus: skipped: ${problem}`)
    const [batches, rounds] = onGpu ? [5, 40] : [2, 4]
    const results = await checkBus({
      program,
      data: data("bus"),
      onGpu,
      backends: onGpu ? ["cuda-ipc", "cuda", "nccl", "auto"] : ["auto"],
      batches,
      rounds,
      megabytes: Math.max(1, Math.floor(512 / shrink))
    })
    for (const [backend, { passed, lines, facts }] of results) {
      report[`bus ${backend}`] = { passed, facts }
      tell(`bus ${backend}, PyTorch, ${batches * rounds} transfers both ways: ${passed ? "passed" : "failed"}`)
      for (const line of lines) tell(`  ${line.slice(0, 1500)}`)
    }
  },
  weights: async () => {
    const onGpu = simulator === undefined
    const problem = busProblem(onGpu, 1)
    if (problem !== undefined) return tell(`weights: skipped: ${problem}`)
    const backend = onGpu ? "auto" : "torch-copy"
    const check = { program, data: data("bus"), onGpu, backends: [], batches: 1, rounds: 2 + rounds, megabytes: 0 }
    const { passed, lines, facts } = await measureBusWeights(check, backend, onGpu ? shrink : Math.max(shrink, 16))
    report.weights = { passed, facts }
    tell(`weights: llama-8b, PyTorch to PyTorch through two agents: ${passed ? "passed" : "failed"}`)
    for (const line of lines) tell(`  ${line.slice(0, 1500)}`)
  },
  ferry: async () => {
    const onGpu = simulator === undefined
    const problem = busProblem(onGpu, 1)
    if (problem !== undefined) return tell(`ferry: skipped: ${problem}`)
    const command = [process.execPath, path.join(folder, "command/command.js")]
    const where = { data: data("bus"), packageFolder: data("python"), command, onGpu }
    const smaller = onGpu ? shrink : Math.max(shrink, 16)
    const { passed, lines, facts } = await measureFerry({ ...where, rounds: 1 + 2 * rounds, shrink: smaller })
    report.ferry = { passed, facts }
    tell(`ferry: llama-8b, PyTorch to PyTorch through the Python package: ${passed ? "passed" : "failed"}`)
    for (const line of lines) tell(`  ${line.slice(0, 1500)}`)
  },
  sanitizer: async () => {
    for (const tool of ["memcheck", "racecheck"]) {
      const args = [
        "--tool",
        tool,
        "--error-exitcode",
        "9",
        ...program,
        "--only",
        "engine",
        "--out",
        path.join(out, tool)
      ]
      const child = spawnSync("compute-sanitizer", args, { encoding: "utf8", timeout: 120_000, maxBuffer: 2 ** 26 })
      const lines = `${child.stdout}${child.stderr}`
        .split("\n")
        .filter((line) => /ERROR SUMMARY|RACECHECK|engine:/.test(line))
      tell(
        `compute-sanitizer ${tool}: ${child.error === undefined ? `exit ${child.status}` : String(child.error)}; ${lines.join("; ").slice(0, 300)}`
      )
      report[`sanitizer ${tool}`] = { status: child.status, lines }
    }
  }
}

const hostCasts = async (): Promise<void> => {
  const results = await Effect.runPromise(Effect.scoped(casts(torchCopy, {})))
  const probe = await Effect.runPromise(torchCopy.probe)
  const failed = results.filter(({ status }) => status === "failed")
  const engine = await Effect.runPromise(runTensorEngineCases(torchCopy.tensorEngine!({})))
  const broken = engine.filter(({ status }) => status === "failed")
  console.log(
    `${probe._tag === "Available" ? probe.detail : probe.cause} ${results.length} casts, ${failed.length} wrong; ${engine.length} engine cases, ${broken.length} failed`
  )
}

const [first, second] = process.argv.slice(2)
if (first === "rank") await Effect.runPromise(rankMain(JSON.parse(second!) as RankSpec))
else if (first === "agent") agentMain(process.argv.slice(3))
else if (first === "host-casts") await hostCasts()
else {
  for (const [name, run] of Object.entries(stages)) {
    if (only !== undefined && !only.includes(name)) continue
    const begun = performance.now()
    try {
      await run()
    } catch (error) {
      tell(
        `${name}: broke off: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`.slice(0, 2000)
      )
    }
    console.log(`(${name} took ${((performance.now() - begun) / 1000).toFixed(0)} s)`)
    save()
  }
  printTables(summary, figures, rows)
}
