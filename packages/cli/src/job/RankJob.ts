// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank of a reshard job does: load its source shards, take part in the copy, prove its destination shards
 * against the checkpoint, and write them. The same on every rank, for both kinds of layouts, and the same whether a parent
 * process or a launcher started it.
 */
import { digestOf } from "@tensorferry/core/base/Digest"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import { estimatePlans, hostLinkSpeeds, type RankEstimate } from "@tensorferry/core/planner/Estimate"
import { opsOf } from "@tensorferry/core/planner/MeshOps"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { inSpan } from "@tensorferry/core/service/Spans"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import {
  allocateTensors,
  byteCount,
  clearPadding,
  type HeldTensor,
  loadTensors,
  poison,
  type ReportProgress,
  type Verified,
  verifyTensors
} from "@tensorferry/model/HeldTensors"
import { readQuantizationHint } from "@tensorferry/model/inputs/ConfigFile"
import type { Model } from "@tensorferry/model/Model"
import { modelError } from "@tensorferry/model/ModelError"
import { openModel } from "@tensorferry/model/openModel"
import { type DigestProof, differingByDigests } from "@tensorferry/model/proof/proveDigests"
import { agreeOnFiles, checkFilesUnchanged } from "@tensorferry/model/SameFiles"
import { denseModel } from "@tensorferry/model/values/denseModel"
import * as Effect from "effect/Effect"
import { askDevice } from "../device/askDevice.ts"
import { jobMemory } from "../device/jobMemory.ts"
import { checkMemory, type MemoryNeeds } from "./checkMemory.ts"
import { type AnyJobSpec, isMeshJob, type RankReport } from "./JobSpec.ts"
import { clockName, type EarlierPhase, type ObservedTensor, observed, originsOf, withTrace } from "./Observed.ts"
import type { PreparedJob } from "./PreparedJob.ts"
import { type JobClock, makeJobClock } from "./phases.ts"
import { withJobServices } from "./services.ts"

/** What this rank ended up with, and where it came from. Scales come with the tensor that they belong to. */
const observedTensors = (
  { plan, tensorOf, shapeOf }: PreparedJob,
  held: ReadonlyArray<HeldTensor>,
  digests: ReadonlyMap<string, string>
): ReadonlyArray<ObservedTensor> => {
  const origins = originsOf(opsOf(plan), tensorOf)
  return held.map(({ local, tensor }) => ({
    name: local.name,
    dtype: local.dtype,
    shape: shapeOf(local),
    bytes: tensorByteLength(tensor),
    digest: digests.get(local.name) ?? null,
    from: origins.get(local.name) ?? []
  }))
}

/** The model, as its files have it and as the job reads it. */
const openJob = Effect.fnUntraced(function* (spec: AnyJobSpec) {
  const group = yield* ProcessGroup
  const stored =
    spec.stored === undefined
      ? yield* openModel(spec.checkpoint, spec.input)
      : yield* (yield* Effect.promise(() => import("@tensorferry/model/names/files/openNamed"))).openNamed(
          spec.checkpoint,
          spec.stored,
          spec.input
        )
  yield* agreeOnFiles(group, stored, clockName())
  const conversion = isMeshJob(spec) ? undefined : spec.conversion
  const dense = yield* denseModel(stored, conversion, yield* readQuantizationHint(stored))
  if (conversion === undefined) return { model: dense, quantized: undefined }
  const { chooseQuantized, readQuantized } = yield* Effect.promise(
    () => import("@tensorferry/model/quantized/applyQuantize")
  )
  const quantized = yield* chooseQuantized(dense, conversion)
  return { model: yield* readQuantized(dense, quantized, group), quantized }
})

/** By the code for this kind of job alone: a rank's start is mostly the import of modules. */
const prepareJob = Effect.fnUntraced(function* (
  spec: AnyJobSpec,
  { model, quantized }: Effect.Success<ReturnType<typeof openJob>>,
  rank: number
) {
  if (isMeshJob(spec)) {
    const { prepareMeshJob } = yield* Effect.promise(() => import("./MeshJob.ts"))
    return yield* prepareMeshJob(spec, model, rank)
  }
  const { names } = spec
  if (names === undefined) {
    const { prepareModelJob } = yield* Effect.promise(() => import("./ModelJob.ts"))
    return yield* prepareModelJob(spec, model, rank, quantized?.config)
  }
  const { prepareNamedJob } = yield* Effect.promise(() => import("./NamedJob.ts"))
  return yield* prepareNamedJob(spec, names, model, rank)
})

const planJob = (spec: AnyJobSpec, { model, quantized }: Effect.Success<ReturnType<typeof openJob>>) =>
  Effect.gen(function* () {
    const { rank, size: ranks } = yield* ProcessGroup
    const { size, part } = yield* prepareJob(spec, { model, quantized }, rank)
    if (size === ranks && part !== undefined) return part
    return yield* modelError("InvalidLayout", {
      rank,
      detail: `The layouts need ${size} ranks, the job has ${ranks}.`,
      remedy: "Start as many processes as the layouts need."
    })
  })

/** What this rank is going to take of the host, and of its device where it has one. */
const needsOf = Effect.fnUntraced(function* (spec: AnyJobSpec, part: PreparedJob, estimate: RankEstimate) {
  const { bufferBytes, peakBytes, transformBytes } = estimate
  const device = spec.device === undefined ? undefined : yield* askDevice(yield* TensorEngine)
  if (device === undefined) return { needed: peakBytes }
  const tensors = [...part.source, ...part.destination]
    .filter(({ aliasOf }) => aliasOf === undefined)
    .map(({ dtype, shape }) => byteLengthOf(dtype, elementCount(shape)))
  const isConverted = !isMeshJob(spec) && (spec.conversion !== undefined || spec.names !== undefined)
  const memory = jobMemory({ tensors, buffers: bufferBytes + transformBytes, isConverted })
  return { needed: memory.host + memory.pinned, device: { ...device, needed: memory.device } }
})

/** Memory of both sides. What nobody writes into the destination is seen there. */
const allocateSides = Effect.fnUntraced(function* (part: PreparedJob, progress: ReportProgress) {
  const group = yield* ProcessGroup
  const engine = yield* TensorEngine
  const source = yield* allocateTensors(part.source)
  const destination = yield* allocateTensors(part.destination)
  const total = byteCount(destination)
  let done = 0
  yield* progress("allocate", done, total)
  for (const { tensor } of destination) {
    yield* engine.fill(tensor, poison)
    done += tensorByteLength(tensor)
    yield* group.reportProgress
    yield* progress("allocate", done, total)
  }
  return { source, destination }
})

/** Compares shards on devices with what sources hold, and only what differs with the files, to say where. */
const compareDigests = Effect.fnUntraced(function* (
  digests: DigestProof,
  proof: Model,
  [source, destination]: readonly [ReadonlyArray<HeldTensor>, ReadonlyArray<HeldTensor>],
  progress: ReportProgress
) {
  const group = yield* ProcessGroup
  const differing = yield* differingByDigests(digests, group, source, destination)
  const total = byteCount(destination)
  if (differing.length === 0) {
    yield* progress("verify", total, total)
    return { tensors: destination.length, digests: new Map() } satisfies Verified
  }
  yield* verifyTensors(proof, group, differing, progress)
  return yield* modelError("Different", {
    rank: group.rank,
    paramName: differing[0]!.local.name,
    op: "verify",
    detail: "Its digest is not that of the parts that sources hold of it.",
    remedy: "Do not use the result. Report this with the command line."
  })
})

const runJob = Effect.fnUntraced(function* (
  spec: AnyJobSpec,
  { phase, seconds }: JobClock,
  backendReason: string,
  progress: ReportProgress
) {
  const group = yield* ProcessGroup
  const { rank } = group
  const before = process.memoryUsage.rss()
  const opened = yield* phase("open", openJob(spec))
  const { model } = opened
  const { needs, part } = yield* phase(
    "plan",
    Effect.gen(function* () {
      const part = yield* inSpan(planJob(spec, opened), "plan")
      const estimate = estimatePlans([part.plan], hostLinkSpeeds, part.estimate).ranks[0]!
      // Before anything is loaded.
      const needs: MemoryNeeds = { ...(yield* needsOf(spec, part, estimate)), limit: spec.memoryLimit }
      yield* checkMemory(group, needs)
      const { makeOutput } = yield* Effect.promise(() => import("@tensorferry/model/ShardWriter"))
      yield* makeOutput(group, spec.out, part.destination)
      return { needs, part }
    })
  )
  const { plan, transform, proof, write } = part
  const { source, destination } = yield* phase("allocate", allocateSides(part, progress))
  const byDigests = spec.verify && spec.device !== undefined ? part.digests?.() : undefined
  const deltaFrom = isMeshJob(spec) ? undefined : spec.deltaFrom
  const { changes, from, into } = yield* phase(
    "load",
    Effect.gen(function* () {
      const changes =
        deltaFrom === undefined
          ? undefined
          : yield* (yield* Effect.promise(() => import("./loadBefore.ts"))).loadBefore(
              deltaFrom,
              part,
              [source, destination],
              progress
            )
      yield* loadTensors(part.input ?? model, group, source, progress, byDigests !== undefined)
      for (const held of [...source, ...destination]) yield* clearPadding(held)
      if (part.clear !== undefined) yield* part.clear(destination)
      const [from, into] = yield* part.dicts(source, destination)
      // Ranks load for as long as their disks take; who is done first waits here, and not within the copy.
      yield* group.barrier("loaded")
      return { changes, from, into }
    })
  )
  yield* progress("copy", 0, 1)
  const moved = yield* phase(
    "copy",
    changes === undefined
      ? executeReshardPlan(plan, from, into, {
          ...(transform === undefined ? {} : { transform }),
          onProgress: (done, total) => progress("copy", done, Math.max(1, total))
        })
      : changes.move
  )
  const compare = spec.verify
    ? byDigests === undefined
      ? verifyTensors(proof, group, destination, progress)
      : compareDigests(byDigests, proof, [source, destination], progress)
    : Effect.succeed<Verified>({ tensors: 0, digests: new Map() })
  // What was loaded, and what it was proved against, is what the path names now.
  const { digests, tensors: compared } = yield* phase("verify", Effect.tap(compare, checkFilesUnchanged(model)))
  const { prove } = part
  const traced =
    spec.verify && prove !== undefined
      ? yield* phase(
          "prove",
          Effect.suspend(() => Effect.fromResult(prove()))
        )
      : undefined
  if (write !== undefined) yield* phase("write", write(destination, digests, progress))
  return yield* phase(
    "finish",
    Effect.gen(function* () {
      yield* group.barrier("job done")
      yield* progress("finish", 1, 1)
      const report: RankReport = {
        rank,
        sourceBytes: byteCount(source),
        destinationBytes: byteCount(destination),
        seconds,
        copy: moved.copy,
        waves: moved.waves,
        bufferBytes: moved.bufferBytes,
        backendReason,
        tensorsVerified: compared,
        bytesVerified: spec.verify ? byteCount(destination) : 0,
        tensorsTraced: traced?.tensors ?? 0,
        elementsTraced: traced?.elements ?? 0,
        planDigest: digestOf(plan),
        rosterDigest: opsOf(plan).rosterDigest,
        peakMemory: process.resourceUsage().maxRSS * 1024,
        ...(needs.device === undefined ? {} : { device: needs.device }),
        ...(spec.observe === true
          ? {
              observed: observed({ before, estimate: needs.needed }, observedTensors(part, destination, digests))
            }
          : {})
      }
      return report
    })
  )
})

/** Runs this rank of the job to its end, watched where the job says so; `earlier` is what the process did before. */
export const rankJob = (spec: AnyJobSpec, progress: ReportProgress, earlier: ReadonlyArray<EarlierPhase> = []) =>
  Effect.gen(function* () {
    const clock = makeJobClock((earlier.at(-1)?.end ?? 0) / 1000)
    const group = clock.watched(yield* ProcessGroup)
    const job = withJobServices(spec, clock, (backendReason) =>
      Effect.provideService(runJob(spec, clock, backendReason, progress), ProcessGroup, group)
    )
    return yield* spec.observe === true ? withTrace(job, earlier) : job
  })
