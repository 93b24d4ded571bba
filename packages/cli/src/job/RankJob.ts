// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank of a reshard job does: load its source shards, take part in the copy, prove its destination shards
 * against the checkpoint, and write them. The same on every rank, for both kinds of layouts, and the same whether a parent
 * process or a launcher started it.
 */
import { digestOf } from "@tensorferry/core/base/Digest"
import { estimatePlans, hostLinkSpeeds } from "@tensorferry/core/planner/Estimate"
import { opsOf } from "@tensorferry/core/planner/MeshOps"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { inSpan } from "@tensorferry/core/service/Spans"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import {
  allocateTensors,
  byteCount,
  clearPadding,
  type HeldTensor,
  loadTensors,
  poison,
  type ReportProgress,
  verifyTensors
} from "@tensorferry/model/HeldTensors"
import { readQuantizationHint } from "@tensorferry/model/inputs/ConfigFile"
import { modelError } from "@tensorferry/model/ModelError"
import { openNamed } from "@tensorferry/model/names/files/openNamed"
import { openModel } from "@tensorferry/model/openModel"
import { chooseQuantized, readQuantized } from "@tensorferry/model/quantized/applyQuantize"
import { agreeOnFiles, checkFilesUnchanged } from "@tensorferry/model/SameFiles"
import { makeOutput } from "@tensorferry/model/ShardWriter"
import { denseModel } from "@tensorferry/model/values/denseModel"
import * as Effect from "effect/Effect"
import { type AnyJobSpec, isMeshJob, type RankReport } from "./JobSpec.ts"
import { loadBefore } from "./loadBefore.ts"
import { prepareMeshJob } from "./MeshJob.ts"
import { prepareModelJob } from "./ModelJob.ts"
import { prepareNamedJob } from "./NamedJob.ts"
import { clockName, type ObservedTensor, observed, originsOf, withTrace } from "./Observed.ts"
import type { PreparedJob } from "./PreparedJob.ts"
import { timedPhase, withJobServices } from "./services.ts"

/** What this rank ended up with, and where it came from. Scales come with the tensor that they belong to. */
const observedTensors = (
  { plan, tensorOf, shapeOf }: PreparedJob,
  held: ReadonlyArray<HeldTensor>,
  digests: ReadonlyMap<string, string>
): ReadonlyArray<ObservedTensor> => {
  const origins = originsOf(opsOf(plan), tensorOf)
  return held.map(({ local, bytes }) => ({
    name: local.name,
    dtype: local.dtype,
    shape: shapeOf(local),
    bytes: bytes.length,
    digest: digests.get(local.name) ?? null,
    from: origins.get(local.name) ?? []
  }))
}

const runJob = Effect.fnUntraced(function* (spec: AnyJobSpec, backendReason: string, progress: ReportProgress) {
  const group = yield* ProcessGroup
  const engine = yield* TensorEngine
  const { rank } = group
  const seconds: { [phase: string]: number } = {}
  const before = process.memoryUsage.rss()
  const stored =
    spec.stored === undefined
      ? yield* openModel(spec.checkpoint, spec.input)
      : yield* openNamed(spec.checkpoint, spec.stored, spec.input)
  yield* agreeOnFiles(group, stored, clockName())
  const conversion = isMeshJob(spec) ? undefined : spec.conversion
  const dense = yield* denseModel(stored, conversion, yield* readQuantizationHint(stored))
  const quantized = yield* chooseQuantized(dense, conversion)
  const model = yield* readQuantized(dense, quantized, group)
  const prepare = Effect.gen(function* () {
    return isMeshJob(spec)
      ? yield* prepareMeshJob(spec, model, rank)
      : spec.names === undefined
        ? yield* prepareModelJob(spec, model, rank, quantized?.config)
        : yield* prepareNamedJob(spec, spec.names, model, rank)
  })
  const { size, part } = yield* timedPhase(seconds, "plan", inSpan(prepare, "plan"))
  if (size !== group.size || part === undefined) {
    return yield* modelError("InvalidLayout", {
      rank,
      detail: `The layouts need ${size} ranks, the job has ${group.size}.`,
      remedy: "Start as many processes as the layouts need."
    })
  }
  yield* makeOutput(group, spec.out, part.destination)
  const { plan, transform, proof, write } = part
  const source = yield* allocateTensors(part.source)
  const destination = yield* allocateTensors(part.destination)
  for (const { tensor } of destination) yield* engine.fill(tensor, poison)
  const load = timedPhase(seconds, "load", loadTensors(part.input ?? model, group, source, progress))
  const deltaFrom = isMeshJob(spec) ? undefined : spec.deltaFrom
  const changes =
    deltaFrom === undefined ? undefined : yield* loadBefore(deltaFrom, part, [source, destination], progress)
  yield* load
  for (const held of [...source, ...destination]) yield* clearPadding(held)
  if (part.clear !== undefined) yield* part.clear(destination)
  const [from, into] = yield* part.dicts(source, destination)
  // Ranks load for as long as their disks take; who is done first waits here, and not within the copy.
  yield* timedPhase(seconds, "wait", group.barrier("loaded"))
  yield* progress("copy", 0, 1)
  const moved = yield* changes === undefined
    ? timedPhase(
        seconds,
        "copy",
        executeReshardPlan(plan, from, into, {
          ...(transform === undefined ? {} : { transform }),
          onProgress: (done, total) => progress("copy", done, Math.max(1, total))
        })
      )
    : timedPhase(seconds, "copy", changes.move)
  const digests = spec.verify
    ? yield* timedPhase(seconds, "verify", verifyTensors(proof, group, destination, progress))
    : new Map<string, string>()
  const traced =
    spec.verify && part.prove !== undefined
      ? yield* timedPhase(seconds, "prove", Effect.fromResult(part.prove()))
      : undefined
  // What was loaded, and what it was proved against, is what the path names now.
  yield* checkFilesUnchanged(model)
  if (write !== undefined) {
    yield* timedPhase(seconds, "write", write(destination, digests, progress))
  }
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
    tensorsVerified: digests.size,
    bytesVerified: spec.verify ? byteCount(destination) : 0,
    tensorsTraced: traced?.tensors ?? 0,
    elementsTraced: traced?.elements ?? 0,
    planDigest: digestOf(plan),
    rosterDigest: opsOf(plan).rosterDigest,
    peakMemory: process.resourceUsage().maxRSS * 1024,
    ...(spec.observe === true
      ? {
          observed: observed(
            { before, estimate: estimatePlans([plan], hostLinkSpeeds, part.estimate).ranks[0]!.peakBytes },
            observedTensors(part, destination, digests)
          )
        }
      : {})
  }
  return report
})

/** Runs this rank of the job to its end, watched where the job says so. */
export const rankJob = (spec: AnyJobSpec, progress: ReportProgress) => {
  const job = withJobServices(spec, (backendReason) => runJob(spec, backendReason, progress))
  return spec.observe === true ? withTrace(job) : job
}
