// SPDX-License-Identifier: Apache-2.0
/**
 * One rank of the device checks as a process of its own: joins a group on loopback, does its work with real memory of its
 * device, and prints a JSON line per result.
 */
import { readdirSync, readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { descriptors } from "@tensorferry/backend-cuda"
import { descriptors as nvshmem, nvshmemOf } from "@tensorferry/backend-nvshmem"
import { descriptor as tcp } from "@tensorferry/backend-tcp"
import { descriptor as torchCopy } from "@tensorferry/backend-torch-copy"
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { median } from "@tensorferry/core/base/Numbers"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import { parametersOf, type Roster } from "@tensorferry/core/layout/Roster"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import type { CopyReport } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { sliceTensor, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { type TensorDict, tensorDict } from "@tensorferry/core/tensor/TensorDict"
import { type MegatronCase, rostersOf } from "@tensorferry/golden/megatronPlans"
import { mappedDict } from "@tensorferry/model/names/mappedDict"
import type { MappedLayout } from "@tensorferry/model/names/mappedLayouts"
import { type CaseResult, meetAfterCase, runConformanceRank } from "@tensorferry/testing"
import {
  allocateSide,
  describeFault,
  fillSide,
  jobSize,
  judgeSide,
  oracleModel
} from "@tensorferry/testing/planning/oracle"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type { Scope } from "effect/Scope"
import { namedCase } from "./namedCases.ts"
import { deviceCase } from "./reshards.ts"
import type { RankLine, RankSpec, Work } from "./work.ts"

const print = (line: RankLine) => Effect.sync(() => void process.stdout.write(`${JSON.stringify(line)}\n`))

/** Host memory by the network alone, and memory of a device through it: neither uses what both ranks could reach. */
const overNetwork: Readonly<Record<string, Pick<Required<BackendDescriptor>, "copyDriver" | "tensorEngine">>> = {
  tcp: { copyDriver: () => tcp.copyDriver!({}), tensorEngine: () => torchCopy.tensorEngine!({}) },
  "staged-tcp": {
    copyDriver: () => tcp.stagedDriver!({}, torchCopy.tensorEngine!({}), {}),
    tensorEngine: (options) => descriptors[0]!.tensorEngine!(options)
  }
}

const descriptorOf = (name: string) => {
  const network = overNetwork[name]
  if (network !== undefined) return Effect.succeed(network)
  const descriptor = [...descriptors, ...nvshmem].find((one) => one.name === name)
  if (descriptor?.copyDriver === undefined || descriptor.tensorEngine === undefined) {
    return Effect.die(`There is no backend ${name} with a driver and an engine.`)
  }
  const { copyDriver, tensorEngine } = descriptor
  return Effect.succeed({ copyDriver, tensorEngine })
}

const conformance = Effect.fnUntraced(function* ({ backend, options }: RankSpec) {
  const group = yield* ProcessGroup
  const { copyDriver, tensorEngine } = yield* descriptorOf(backend)
  yield* runConformanceRank({
    group,
    engine: tensorEngine(options),
    driver: copyDriver(options),
    onOutcome: (name, outcome) => print({ event: "outcome", name, outcome })
  })
})

/** Three rounds with other values into poisoned memory, the last one into memory that was allocated anew. */
const goldenCase = Effect.fnUntraced(function* (recorded: MegatronCase, rank: number) {
  const rosters = rostersOf(recorded)
  const index = indexRosters(rosters.source, rosters.destination)
  if (Result.isFailure(index)) return undefined
  const model = oracleModel(rosters.source, rosters.destination)
  const plan = planRank(index.success, rank)
  const faults: Array<string> = []
  for (const rounds of [[0, 1], [2]]) {
    const found = yield* Effect.scoped(
      Effect.gen(function* () {
        const source = yield* allocateSide(model, "source", rank)
        const destination = yield* allocateSide(model, "destination", rank)
        const wrong: Array<string> = []
        for (const round of rounds) {
          if (source !== undefined) yield* fillSide(model, source, round)
          yield* executeReshardPlan(plan, source?.dict, destination?.dict)
          if (destination === undefined) continue
          for (const fault of yield* judgeSide(model, destination, rank, round)) {
            wrong.push(`round ${round}: ${describeFault(fault)}`)
          }
        }
        return wrong
      })
    )
    faults.push(...found)
  }
  return faults
})

/** One side does not tell how its packed blocks lie, so that the oracle, which reads each side by itself, cannot judge it. */
const isHalfTold = (source: Roster, destination: Roster): boolean => {
  const packed = (roster: Roster) =>
    new Set(
      roster.members.flatMap(({ rank }) =>
        parametersOf(roster, rank).flatMap(({ resolvedName, partitionSizes, isTp }) =>
          isTp ? [`${resolvedName} ${partitionSizes !== null}`] : []
        )
      )
    )
  const [from, to] = [packed(source), packed(destination)]
  return (
    [...from].some((told) => told.endsWith(" true") && to.has(told.replace(/true$/, "false"))) ||
    [...to].some((told) => told.endsWith(" true") && from.has(told.replace(/true$/, "false")))
  )
}

const golden = Effect.fnUntraced(function* ({ rank, size }: RankSpec, { file }: Extract<Work, { kind: "golden" }>) {
  const group = yield* ProcessGroup
  const text = gunzipSync(readFileSync(file)).toString("utf8")
  const { cases } = JSON.parse(text) as { readonly cases: ReadonlyArray<MegatronCase> }
  for (const recorded of cases) {
    const { source, destination } = rostersOf(recorded)
    if (jobSize(source, destination) > size) continue
    if (isHalfTold(source, destination)) continue
    const name = `${recorded.id} ${recorded.title}`
    const judged = yield* Effect.result(goldenCase(recorded, rank))
    const faults = Result.isFailure(judged) ? [String(judged.failure)] : judged.success
    const status = faults === undefined ? "skipped" : faults.length > 0 ? "failed" : "passed"
    const detail = faults === undefined ? "The planner refuses these rosters." : faults.slice(0, 3).join("; ")
    yield* print({ event: "outcome", name, outcome: { rank, status, detail } })
    yield* meetAfterCase(group, name)
  }
})

/** Gives memory for tensors one after the other. */
type Allocate = (dtype: DType, shape: Shape) => ReturnType<TensorEngineShape["allocate"]>

/** Tensors of a rank in one layout, each filled with a byte of its own. */
const allocate = Effect.fnUntraced(function* (
  roster: Roster,
  rank: number,
  byteOf: (name: string) => number,
  memory?: Allocate
) {
  const engine = yield* TensorEngine
  const parameters = parametersOf(roster, rank)
  if (parameters.length === 0) return undefined
  const tensors: Array<readonly [string, Tensor]> = []
  for (const { name, dtype, shape } of parameters) {
    const tensor = yield* (memory ?? engine.allocate)(dtype, shape)
    yield* engine.fill(tensor, byteOf(name))
    tensors.push([name, tensor])
  }
  return tensorDict(tensors)
})

const pieceBytes = (dtype: DType, shape: Shape): number =>
  Math.ceil(byteLengthOf(dtype, elementCount(shape)) / 256) * 256

/** One symmetric tensor that has room for the destination of every case on every rank, handed out from its start. */
const symmetricMemory = Effect.fnUntraced(function* (size: number, cases: ReadonlyArray<number>, shrink?: number) {
  const driver = nvshmemOf(yield* CopyDriver)
  if (driver === undefined) return yield* Effect.die("Only nvshmem has symmetric memory.")
  const ranks = Array.from({ length: size }, (_, rank) => rank)
  const lengths = cases.flatMap((at) =>
    ranks.map((rank) =>
      parametersOf(deviceCase(at, shrink).destination, rank).reduce(
        (sum, { dtype, shape }) => sum + pieceBytes(dtype, shape),
        0
      )
    )
  )
  const { storage } = yield* driver.allocateSymmetric("uint8", [Math.max(256, ...lengths)])
  return (): Allocate => {
    let byteOffset = 0
    return (dtype, shape) => {
      const tensor = tensorView(storage, dtype, shape, { byteOffset })
      byteOffset += pieceBytes(dtype, shape)
      return Effect.orDie(Effect.fromResult(tensor))
    }
  }
})

const poison = 0xd7

/** Moves both ways and within ranks. */
const repeatedCase = 1

/** The byte of a parameter on the rank that holds it in the source. */
const byteOf = (name: string, rank: number): number => {
  let hash = 17 + rank
  for (const character of name) hash = (hash * 31 + character.charCodeAt(0)) % 211
  return hash === poison ? 1 : hash
}

/** First, last and middle elements of each region that the plan brings, which must all hold the sender's byte. */
const sampleFaults = Effect.fnUntraced(function* (plan: ReshardPlan, destination: TensorDict | undefined) {
  const engine = yield* TensorEngine
  const faults: Array<string> = []
  for (const op of plan.recvOps) {
    const tensor = destination?.tensors.get(op.paramName) as Tensor | undefined
    if (tensor === undefined) continue
    for (const share of [0, 0.5, 1]) {
      const corner = op.mySlice.map(([start, stop]): [number, number] => {
        const at = Math.min(stop - 1, Math.floor(start + (stop - start) * share))
        return [at, at + 1]
      })
      const element = Result.getOrThrow(sliceTensor(tensor, corner))
      const bytes = new Uint8Array(2)
      yield* Effect.scoped(
        Effect.gen(function* () {
          const host = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), tensor.dtype, element.shape))
          yield* engine.copy([{ dst: host, src: element }])
        })
      )
      const wanted = byteOf(op.paramName, op.peerRank)
      if (bytes[0] !== wanted || bytes[1] !== wanted) {
        faults.push(`${op.paramName} at ${corner.map(([at]) => at).join(",")}: ${bytes.join(" ")} instead of ${wanted}`)
      }
    }
  }
  return faults
})

/** What an update spends in each phase, and beside them, in milliseconds: medians over the rounds. */
const medianPhases = (
  rounds: ReadonlyArray<{ readonly copy: CopyReport; readonly own: number }>
): { readonly [phase: string]: number } => {
  const times = rounds.map(({ copy, own }) => {
    const phases = Object.entries(copy.phases).map(([phase, seconds]) => [phase, seconds * 1000] as const)
    const inside = phases.reduce((sum, [, milliseconds]) => sum + milliseconds, 0)
    const device = copy.peers.map(({ seconds }) => 1000 * (seconds?.wire ?? 0))
    return new Map([...phases, ["beside", own - inside], ["device", Math.max(0, ...device)]])
  })
  return Object.fromEntries(
    [...(times[0]?.keys() ?? [])].map((phase) => [phase, median(times.map((each) => each.get(phase)!))])
  )
}

const timedUpdate = Effect.fnUntraced(function* (
  plan: ReshardPlan,
  source: TensorDict | undefined,
  destination: TensorDict | undefined
) {
  const group = yield* ProcessGroup
  yield* group.barrier("bench")
  const begun = performance.now()
  const { copy } = yield* executeReshardPlan(plan, source, destination)
  const own = performance.now() - begun
  const told = yield* group.allGather("bench times", new Uint8Array(new Float64Array([own]).buffer))
  const milliseconds = Math.max(...told.map((bytes) => new Float64Array(bytes.slice().buffer)[0]!))
  return { copy, own, milliseconds }
})

/** Processes that update weights do so again and again; JavaScript that ran a few times only is not compiled yet. */
const warmUp = Effect.fnUntraced(function* (rank: number, shrink = 1) {
  const small = deviceCase(repeatedCase, 64)
  const plan = planRank(yield* Effect.fromResult(indexRosters(small.source, small.destination)), rank)
  const update = Effect.gen(function* () {
    const source = yield* allocate(small.source, rank, () => 1)
    const destination = yield* allocate(small.destination, rank, () => poison)
    for (let round = 0; round < 2000 / shrink; round++) yield* timedUpdate(plan, source, destination)
  })
  yield* Effect.scoped(update)
})

/** Times updates between two sides, checks the last, and prints what was seen. */
const measure = Effect.fnUntraced(function* (
  name: string,
  plan: ReshardPlan,
  source: TensorDict | undefined,
  destination: TensorDict | undefined,
  { warmUps, rounds: count }: { readonly warmUps: number; readonly rounds: number }
) {
  const engine = yield* TensorEngine
  const rounds: Array<Effect.Success<ReturnType<typeof timedUpdate>>> = []
  for (let round = 0; round < warmUps + count; round++) {
    const update = yield* timedUpdate(plan, source, destination)
    if (round >= warmUps) rounds.push(update)
  }
  const { copy } = rounds.at(-1)!
  for (const tensor of destination?.tensors.values() ?? []) yield* engine.fill(tensor as Tensor, poison)
  yield* executeReshardPlan(plan, source, destination)
  const faults = yield* sampleFaults(plan, destination)
  yield* print({
    event: "reshard",
    times: {
      case: name,
      roundsMs: rounds.map(({ milliseconds }) => milliseconds),
      operations: plan.recvOps.length,
      localBytes: copy.localBytes,
      sentBytes: copy.remoteBytesSent,
      receivedBytes: copy.remoteBytesReceived,
      phasesMs: medianPhases(rounds),
      paths: copy.peers.map(({ peer, path, reason }) => `${peer}: ${path} (${reason})`),
      faults: faults.slice(0, 5)
    }
  })
})

const reshard = Effect.fnUntraced(function* (spec: RankSpec, work: Extract<Work, { kind: "reshard" }>) {
  const { rank } = spec
  yield* warmUp(rank, spec.shrink)
  const symmetric = spec.symmetric === true ? yield* symmetricMemory(spec.size, work.cases, spec.shrink) : undefined
  for (const at of work.cases) {
    const one = deviceCase(at, spec.shrink)
    yield* Effect.scoped(
      Effect.gen(function* () {
        const [from, to] = [one.source, one.destination]
        const plan = planRank(yield* Effect.fromResult(indexRosters(from, to)), rank)
        const source = yield* allocate(from, rank, (name) => byteOf(name, rank))
        const destination = yield* allocate(to, rank, () => poison, symmetric?.())
        yield* measure(one.name, plan, source, destination, work)
      })
    )
  }
})

/** A rank's own tensors by the names of its system, as views by the names of the plan; every view filled with a byte. */
const allocateNamed = Effect.fnUntraced(function* (layout: MappedLayout, rank: number, fill: (name: string) => number) {
  const engine = yield* TensorEngine
  const own = layout.rankOf(rank)
  if (own.tensors.length === 0) return undefined
  const tensors = new Map<string, Tensor>()
  for (const { name, dtype, shape } of own.tensors) tensors.set(name, yield* engine.allocate(dtype, shape))
  const dict = yield* Effect.fromResult(mappedDict(own, layout.parametersOf(rank), tensors))
  for (const [name, tensor] of dict.tensors) yield* engine.fill(tensor as Tensor, fill(name))
  return dict
})

const names = Effect.fnUntraced(function* (spec: RankSpec, work: Extract<Work, { kind: "names" }>) {
  const { rank } = spec
  yield* warmUp(rank, spec.shrink)
  for (const at of work.cases) {
    const one = namedCase(at, spec.shrink)
    yield* Effect.scoped(
      Effect.gen(function* () {
        const plan = planRank(yield* Effect.fromResult(indexRosters(one.source.roster, one.destination.roster)), rank)
        const source = yield* allocateNamed(one.source, rank, (name) => byteOf(name, rank))
        const destination = yield* allocateNamed(one.destination, rank, () => poison)
        yield* measure(one.name, plan, source, destination, work)
      })
    )
  }
})

const repeats = Effect.fnUntraced(function* (
  { rank, shrink }: RankSpec,
  { count }: Extract<Work, { kind: "repeats" }>
) {
  const { source: from, destination: to } = deviceCase(repeatedCase, shrink)
  const plan = planRank(yield* Effect.fromResult(indexRosters(from, to)), rank)
  const source = yield* allocate(from, rank, (name) => byteOf(name, rank))
  const lasting = yield* allocate(to, rank, () => poison)
  for (let round = 0; round < count; round++) {
    const isFresh = round % 10 === 9
    const update = Effect.gen(function* () {
      const destination = isFresh ? yield* allocate(to, rank, () => poison) : lasting
      return yield* timedUpdate(plan, source, destination)
    })
    const { milliseconds } = yield* Effect.scoped(update)
    if (isFresh) continue
    globalThis.gc?.()
    const { heapUsed, external, rss } = process.memoryUsage()
    const descriptors = readdirSync("/proc/self/fd").length
    yield* print({
      event: "sample",
      sample: { milliseconds, heapBytes: heapUsed + external, residentBytes: rss, descriptors }
    })
  }
})

const results = (outcome: CaseResult) => print({ event: "result", result: outcome })

/** Runs one rank to its end. */
export const rankMain = (spec: RankSpec): Effect.Effect<void, unknown> =>
  Effect.scoped(
    Effect.gen(function* () {
      const group = yield* ProcessGroupTcp.make({
        rank: spec.rank,
        size: spec.size,
        host: "127.0.0.1",
        port: spec.port,
        deadline: "30 seconds",
        onListening: (port) => print({ event: "port", port })
      })
      const { work } = spec
      if (work.kind === "conformance") {
        return yield* Effect.provideService(conformance(spec), ProcessGroup, group)
      }
      const { copyDriver, tensorEngine } = yield* descriptorOf(spec.backend)
      const driver = copyDriver(spec.options)
      const services = copyServiceLayer(driver).pipe(
        // The same layer, and so the same driver.
        Layer.merge(driver),
        Layer.provideMerge(tensorEngine(spec.options)),
        Layer.provideMerge(Layer.succeed(ProcessGroup, group))
      )
      const program: Effect.Effect<void, unknown, Layer.Success<typeof services> | Scope> =
        work.kind === "golden"
          ? golden(spec, work)
          : work.kind === "reshard"
            ? reshard(spec, work)
            : work.kind === "names"
              ? names(spec, work)
              : repeats(spec, work)
      yield* Effect.provide(program, services)
    })
  ).pipe(Effect.tapError((error) => results({ name: `rank ${spec.rank}`, status: "failed", detail: String(error) })))
