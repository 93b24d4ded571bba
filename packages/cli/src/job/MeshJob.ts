// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank does to bring a tensor of a checkpoint from one device mesh to another: load its source shard, take part in
 * the transfer, and prove its destination shard against the checkpoint. Ranks in neither mesh take part in what is agreed.
 */

import { digestOf } from "@tensorferry/core/base/Digest"
import type { Rank } from "@tensorferry/core/base/Ids"
import { formatShape, type Interval, lengthOf, type Shape } from "@tensorferry/core/base/Region"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import type { MeshError } from "@tensorferry/core/layout/MeshError"
import { formatMeshLayout } from "@tensorferry/core/layout/MeshText"
import type { LocalTensor, ModelTensor, Piece } from "@tensorferry/core/layout/ModelLayout"
import type { MeshLayout } from "@tensorferry/core/layout/Placement"
import { localShard } from "@tensorferry/core/layout/ShardIntervals"
import { agreeOnBucketBytes } from "@tensorferry/core/mesh/BucketSize"
import { executeMeshPlan } from "@tensorferry/core/mesh/executeMeshPlan"
import type { PlanError } from "@tensorferry/core/planner/PlanError"
import type { CopyReport } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { inSpan } from "@tensorferry/core/service/Spans"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import {
  allocateTensors,
  byteCount,
  type HeldTensor,
  loadTensors,
  poison,
  type ReportProgress,
  verifyTensors
} from "@tensorferry/model/HeldTensors"
import type { Model } from "@tensorferry/model/Model"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import { openModel } from "@tensorferry/model/openModel"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { MeshJobSpec, RankReport } from "./JobSpec.ts"
import { makeMeshEstimator } from "./meshEstimate.ts"
import { type MeshChoice, type MeshPlans, meshPlans } from "./meshPlans.ts"
import { type ObservedTensor, observed } from "./Observed.ts"
import { timedPhase, withJobServices } from "./services.ts"

/** A shard of more pieces than this is not read from a file piece by piece. */
const mostPieces = 2 ** 16

export interface MeshJobPlans extends MeshPlans {
  readonly tensor: ModelTensor
}

/** The plans for a tensor of a checkpoint, or why there are none. */
export const checkpointMeshPlans = (
  model: Model,
  name: string,
  choice: MeshChoice
): Result.Result<MeshJobPlans, ModelError | MeshError | PlanError> => {
  const tensor = model.tensors.find((one) => one.name === name)
  if (tensor === undefined) {
    const known = model.tensors.slice(0, 3).map((one) => one.name)
    return Result.fail(
      modelError("InvalidLayout", {
        file: model.path,
        paramName: name,
        detail: "The checkpoint has no such tensor.",
        remedy: `Name one of its ${model.tensors.length} tensors, such as ${known.join(", ")}.`
      })
    )
  }
  if (choice.from.placements.some((placement) => placement._tag === "Partial")) {
    return Result.fail(
      modelError("InvalidLayout", {
        paramName: name,
        detail: `${formatMeshLayout(choice.from)} is partial, but a checkpoint holds values, not contributions to them.`,
        remedy: "Shard or replicate the source; plans of partial sources are shown by tensorferry plan."
      })
    )
  }
  const { dtype, shape } = tensor
  const planned = meshPlans({ name, shape, sourceDtype: dtype, targetDtype: dtype }, choice)
  return Result.map(planned, (plans) => ({ ...plans, tensor }))
}

/** Positions of a shard's intervals in its own memory, and in the whole tensor. */
const placesOf = (intervals: ReadonlyArray<Interval>): ReadonlyArray<readonly [local: Interval, global: Interval]> => {
  let start = 0
  return intervals.map((global) => {
    const local: Interval = [start, start + lengthOf(global)]
    start = local[1]
    return [local, global] as const
  })
}

const piecesOf = (intervals: ReadonlyArray<ReadonlyArray<Interval>>): ReadonlyArray<Piece> =>
  intervals.reduce<ReadonlyArray<Piece>>(
    (pieces, held) =>
      pieces.flatMap((piece) =>
        placesOf(held).map(([local, global]) => ({
          local: [...piece.local, local],
          global: [...piece.global, global]
        }))
      ),
    [{ local: [], global: [] }]
  )

/** What a rank keeps of the tensor; nothing where the mesh does not have the rank. */
const heldOf = (
  { name, dtype, shape }: ModelTensor,
  layout: MeshLayout,
  rank: Rank
): Result.Result<ReadonlyArray<LocalTensor>, MeshError | ModelError> => {
  if (!layout.mesh.ranks.includes(rank)) return Result.succeed([])
  return Result.flatMap(localShard(layout, shape, rank), ({ intervals, shape: held }) => {
    const count = intervals.reduce((product, some) => product * some.length, 1)
    if (count > mostPieces) return tooManyPieces(name, held, count)
    return Result.succeed([
      {
        name,
        dtype,
        shape: held,
        pieces: piecesOf(intervals),
        padding: undefined,
        storedAs: name,
        aliasOf: undefined,
        isPrimary: true
      }
    ])
  })
}

const tooManyPieces = (paramName: string, shape: Shape, count: number): Result.Result<never, ModelError> =>
  Result.fail(
    modelError("InvalidLayout", {
      paramName,
      detail: `The shard ${formatShape(shape)} consists of ${count} regions of the tensor; at most ${mostPieces} can be read.`,
      remedy: "Use smaller split factors."
    })
  )

const dictOf = (held: ReadonlyArray<HeldTensor>) =>
  held.length === 0 ? undefined : tensorDict(held.map(({ local, tensor }) => [local.name, tensor] as const))

/** Device times of one peer, where the driver knows them. */
const joinedSeconds = (waves: CopyReport["peers"]): Pick<CopyReport["peers"][number], "seconds"> => {
  const known = waves.flatMap(({ seconds }) => (seconds === undefined ? [] : [seconds]))
  if (known.length === 0) return {}
  const sum = (part: "pack" | "wire" | "unpack") => known.reduce((total, seconds) => total + seconds[part], 0)
  return { seconds: { pack: sum("pack"), wire: sum("wire"), unpack: sum("unpack") } }
}

/** The waves of one transfer as one. */
const joined = (copies: ReadonlyArray<CopyReport>, localBytes: number): CopyReport => {
  const [first] = copies
  const sum = (of: (copy: CopyReport) => number): number => copies.reduce((total, copy) => total + of(copy), 0)
  const phase = (name: keyof CopyReport["phases"]): number => sum((copy) => copy.phases[name])
  const peers = Map.groupBy(
    copies.flatMap((copy) => copy.peers),
    ({ peer }) => peer
  )
  return {
    ...first!,
    localBytes,
    localOps: sum((copy) => copy.localOps),
    remoteBytesSent: sum((copy) => copy.remoteBytesSent),
    remoteBytesReceived: sum((copy) => copy.remoteBytesReceived),
    remoteOps: sum((copy) => copy.remoteOps),
    messages: sum((copy) => copy.messages),
    stagingBytes: copies.reduce((most, copy) => Math.max(most, copy.stagingBytes), 0),
    reusedProgram: copies.every((copy) => copy.reusedProgram),
    phases: {
      handshake: phase("handshake"),
      prepare: phase("prepare"),
      pack: phase("pack"),
      local: phase("local"),
      transfer: phase("transfer"),
      unpack: phase("unpack"),
      writeback: phase("writeback"),
      outcome: phase("outcome")
    },
    peers: [...peers.values()].map((waves) => ({
      ...waves.at(-1)!,
      bytesSent: waves.reduce((total, wave) => total + wave.bytesSent, 0),
      bytesReceived: waves.reduce((total, wave) => total + wave.bytesReceived, 0),
      ...joinedSeconds(waves)
    }))
  }
}

/** What tensors and buffers of this rank need. */
const estimateOf = (plan: MeshPlan): number => {
  const estimator = makeMeshEstimator()
  estimator.add(plan)
  return estimator.finish().ranks[0]?.peakBytes ?? 0
}

/** What this rank ended up with, and where it came from: a job moves one tensor. */
const observedTensors = (
  { shape }: ModelTensor,
  held: ReadonlyArray<HeldTensor>,
  digests: ReadonlyMap<string, string>,
  { rank, localBytes, peers }: CopyReport
): ReadonlyArray<ObservedTensor> =>
  held.map(({ local, bytes }) => ({
    name: local.name,
    dtype: local.dtype,
    shape,
    bytes: bytes.length,
    digest: digests.get(local.name) ?? null,
    from: [
      ...(localBytes === 0 ? [] : [[rank, localBytes] as const]),
      ...peers.flatMap(({ peer, bytesReceived }) => (bytesReceived === 0 ? [] : [[peer, bytesReceived] as const]))
    ]
  }))

const runMeshJob = Effect.fnUntraced(function* (spec: MeshJobSpec, backendReason: string, progress: ReportProgress) {
  const group = yield* ProcessGroup
  const engine = yield* TensorEngine
  const seconds: { [phase: string]: number } = {}
  const before = process.memoryUsage.rss()
  const model = yield* openModel(spec.checkpoint)
  // All ranks may be processes of one host, which share its memory.
  const freeBytes = process.availableMemory() / group.size
  const bucketBytes = spec.mesh.bucketBytes ?? (yield* agreeOnBucketBytes({ freeBytes }))
  const plans = yield* Effect.fromResult(checkpointMeshPlans(model, spec.tensor, { ...spec.mesh, bucketBytes }))
  if (plans.size !== group.size) {
    return yield* modelError("InvalidLayout", {
      rank: group.rank,
      detail: `The meshes need ${plans.size} ranks, the job has ${group.size}.`,
      remedy: "Start as many processes as the largest rank of the meshes needs."
    })
  }
  const plan = yield* inSpan(
    Effect.sync(() => plans.planFor(group.rank)),
    "plan"
  )
  const { source: from, target: to } = plans.map
  const source = yield* allocateTensors(yield* Effect.fromResult(heldOf(plans.tensor, from, group.rank)))
  yield* timedPhase(seconds, "load", loadTensors(model, group, source, progress))
  const destination = yield* allocateTensors(yield* Effect.fromResult(heldOf(plans.tensor, to, group.rank)))
  for (const { tensor } of destination) yield* engine.fill(tensor, poison)
  yield* progress("copy", 0, 1)
  const moved = yield* timedPhase(
    seconds,
    "copy",
    executeMeshPlan(plan, dictOf(source), dictOf(destination), {
      onProgress: (done, total) => progress("copy", done, Math.max(1, total))
    })
  )
  const digests = spec.verify
    ? yield* timedPhase(seconds, "verify", verifyTensors(model, group, destination, progress))
    : new Map<string, string>()
  yield* group.barrier("job done")
  yield* progress("finish", 1, 1)
  const { waves, bucketsSent, bucketsReceived, bufferBytes, launchesDeferred } = moved
  const copy = joined(moved.copies, moved.localBytes)
  const report: RankReport = {
    rank: group.rank,
    sourceBytes: byteCount(source),
    destinationBytes: byteCount(destination),
    seconds,
    copy,
    mesh: { waves, bucketsSent, bucketsReceived, bufferBytes, launchesDeferred },
    backendReason,
    tensorsVerified: digests.size,
    bytesVerified: spec.verify ? byteCount(destination) : 0,
    planDigest: digestOf(plan),
    rosterDigest: plan.sharedDigest,
    peakMemory: process.resourceUsage().maxRSS * 1024,
    ...(spec.observe === true
      ? {
          observed: observed(
            { before, estimate: estimateOf(plan) },
            observedTensors(plans.tensor, destination, digests, copy)
          )
        }
      : {})
  }
  return report
})

/** Runs this rank of the job to its end. */
export const meshRankJob = (spec: MeshJobSpec, progress: ReportProgress) =>
  withJobServices(spec, (backendReason) => runMeshJob(spec, backendReason, progress))
