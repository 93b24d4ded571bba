// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank of a reshard job does: load its source shards, take part in the copy, prove its destination shards
 * against the checkpoint, and write them. The same on every rank, and the same whether a parent process or a launcher
 * started it.
 *
 * Invariant: the output folder gets its name only after every rank has written and proved its file.
 */
import { createHash } from "node:crypto"
import { mkdir, rename, rm } from "node:fs/promises"
import * as path from "node:path"
import { fullRegion } from "@tensorferry/core/base/Region"
import { syncFolder, systemCall, writeFully } from "@tensorferry/core/checkpoint/FileAccess"
import { openSafetensors } from "@tensorferry/core/checkpoint/Safetensors"
import { stageFile, stageSafetensors, tensorSource } from "@tensorferry/core/checkpoint/SafetensorsWriter"
import { exchangePayloads, jsonPayloads } from "@tensorferry/core/group/Exchange"
import { planDigest, type ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { LocalParameter, ModelLayout } from "@tensorferry/core/layout/ModelLayout"
import { estimatePlans, hostLinkSpeeds } from "@tensorferry/core/planner/Estimate"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { inSpan } from "@tensorferry/core/service/Spans"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { mxfp8Recipe, type QuantizedTensor } from "@tensorferry/core/tensor/QuantizedTensor"
import { sliceTensor, type Tensor } from "@tensorferry/core/tensor/Tensor"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import { mxfp8 } from "@tensorferry/core/transform/Mxfp8"
import { mxfp8BufferBytes } from "@tensorferry/core/transform/Mxfp8Memory"
import { scaleRegion } from "@tensorferry/core/transform/QuantizedRegion"
import type { ReshardTransform } from "@tensorferry/core/transform/ReshardTransform"
import { boundedRegions } from "@tensorferry/model/BoundedRegions"
import { convertedModel } from "@tensorferry/model/ConvertedModel"
import { type Conversion, convertedRules, isQuantized, scaleNameOf } from "@tensorferry/model/conversion"
import {
  allocateTensors,
  byteCount,
  clearPadding,
  digestOf,
  type HeldTensor,
  loadTensors,
  makeScratch,
  poison,
  type ReportProgress,
  verifyTensors,
  viewFault
} from "@tensorferry/model/HeldTensors"
import { type JobLayouts, jobLayouts } from "@tensorferry/model/layouts"
import { encodeManifest, manifestFileName, ShardFile, type ShardTensor } from "@tensorferry/model/Manifest"
import type { Model } from "@tensorferry/model/Model"
import { modelError } from "@tensorferry/model/ModelError"
import { openModel } from "@tensorferry/model/openModel"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { JobSpec, RankReport } from "./JobSpec.ts"
import { type ObservedTensor, observed, originsOf } from "./Observed.ts"
import { timedPhase, withJobServices } from "./services.ts"

/** Other ranks may still be writing into the folder when it is removed. */
const removal = { recursive: true, force: true, maxRetries: 20, retryDelay: 50 } as const

/** Views of the tensors under the names of the plan. */
const toDict = Effect.fnUntraced(function* (
  held: ReadonlyArray<HeldTensor>,
  parameters: ReadonlyArray<LocalParameter>,
  conversion?: Conversion
) {
  const tensors = new Map(held.map(({ local, tensor }) => [local.name, tensor]))
  const views: Array<readonly [string, Tensor | QuantizedTensor]> = []
  const aliases = new Map<string, string>()
  for (const { metadata, tensor: name, view } of parameters) {
    if (metadata.aliasOf !== null) {
      aliases.set(metadata.name, metadata.aliasOf)
      continue
    }
    const sliced = sliceTensor(tensors.get(name)!, view)
    if (Result.isFailure(sliced)) return yield* viewFault(metadata.ownerRank, metadata.name, sliced.failure.detail)
    const scales = conversion?.transform == null ? undefined : tensors.get(scaleNameOf(name))
    if (scales === undefined || conversion?.transform == null) {
      views.push([metadata.name, sliced.success])
      continue
    }
    const scale = sliceTensor(scales, scaleRegion(view))
    if (Result.isFailure(scale)) return yield* viewFault(metadata.ownerRank, metadata.name, scale.failure.detail)
    const recipe = mxfp8Recipe(conversion.transform.rule)
    views.push([metadata.name, { _tag: "QuantizedTensor", data: sliced.success, scale: scale.success, recipe }])
  }
  return tensorDict(views, { aliases })
})

/** The transform of a job, for the parameters that end quantized on any rank. */
const transformOf = (
  { conversion }: JobSpec,
  names: ReadonlySet<string>
): { readonly transform?: ReshardTransform } => {
  if (conversion?.transform == null) return {}
  const { rule, side } = conversion.transform
  return { transform: { ...mxfp8({ rule, side }), shouldTransform: (paramName) => names.has(paramName) } }
}

/** Names of the plan's parameters that end quantized, the same on every rank. */
const quantizedNames = (spec: JobSpec, layouts: JobLayouts, model: Model): ReadonlySet<string> => {
  const chosen = new Set(model.tensors.filter((tensor) => isQuantized(spec.conversion, tensor)).map(({ name }) => name))
  const names = new Set<string>()
  for (const rank of layouts.destination.ranks) {
    const stored = new Map(layouts.destination.tensorsOf(rank).map(({ name, storedAs }) => [name, storedAs]))
    for (const { metadata, tensor } of layouts.destination.parametersOf(rank))
      if (chosen.has(stored.get(tensor) ?? "")) names.add(metadata.name)
  }
  return names
}

const fileNameOf = (layout: ModelLayout, rank: number): string =>
  layout.ranks.length === 1
    ? "model.safetensors"
    : `rank-${String(rank - layout.ranks[0]!).padStart(5, "0")}.safetensors`

/** Writes this rank's file into the temporary folder and reads it back; describes it for the manifest. */
const writeTensors = Effect.fnUntraced(function* (
  folder: string,
  layout: ModelLayout,
  model: Model,
  group: ProcessGroupShape,
  held: ReadonlyArray<HeldTensor>,
  verified: ReadonlyMap<string, string>,
  progress: ReportProgress
) {
  const name = fileNameOf(layout, group.rank)
  const file = path.join(folder, name)
  const sources = yield* Effect.forEach(held, ({ local, tensor }) =>
    Effect.fromResult(tensorSource(local.name, tensor))
  )
  const total = byteCount(held)
  yield* progress("write", 0, total)
  yield* group.keepAlive(
    Effect.scoped(Effect.flatMap(stageSafetensors(file, sources, model.metadata), (staged) => staged.commit))
  )
  const written = yield* openSafetensors(file)
  const scratch = makeScratch()
  const tensors: Array<ShardTensor> = []
  for (const { local, bytes } of held) {
    const digest = verified.get(local.name) ?? (yield* digestOf(group, bytes))
    const hash = createHash("sha256")
    for (const portion of boundedRegions(local.dtype, fullRegion(local.shape))) {
      const back = scratch(portion.end - portion.start)
      yield* written.readRegion(local.name, portion.region, back)
      hash.update(back)
      yield* group.reportProgress
    }
    if (hash.digest("hex") !== digest) {
      return yield* modelError("Different", {
        rank: group.rank,
        paramName: local.name,
        file,
        op: "write",
        detail: "What was read back from the file is not what was written.",
        remedy: "Check the disk."
      })
    }
    tensors.push({ name: local.name, shape: local.shape, pieces: local.pieces, digest })
  }
  yield* progress("write", total, total)
  return { file: name, rank: group.rank - layout.ranks[0]!, tensors } satisfies ShardFile
})

const shardPayloads = jsonPayloads(Schema.NullOr(ShardFile))

/** Rank 0 writes the manifest and gives the folder its name, after all files are in it. */
const publish = Effect.fnUntraced(function* (
  spec: JobSpec,
  out: { readonly folder: string; readonly temporary: string },
  layout: ModelLayout,
  model: Model,
  group: ProcessGroupShape,
  shard: ShardFile | null
) {
  // Only rank 0 reads what all have written.
  const payloads = group.rank === 0 ? shardPayloads : { ...shardPayloads, decodeAll: () => Result.succeed([]) }
  const written = yield* exchangePayloads(group, "written shards", payloads, shard).pipe(
    Effect.catchTag("UnreadableAnswer", ({ rank }) =>
      Effect.fail(
        modelError("InvalidManifest", {
          rank: group.rank,
          file: out.temporary,
          op: "write",
          detail: `Rank ${rank} described its shard in a form that this version cannot read.`,
          remedy: "Run the same version on all ranks."
        })
      )
    )
  )
  if (group.rank === 0) {
    const shards = written.filter((one) => one !== null)
    const manifest = yield* encodeManifest({
      format: "tensorferry.checkpoint",
      version: 2,
      layout: spec.to,
      rules: convertedRules(spec.rules, spec.conversion),
      metadata: Object.fromEntries(model.metadata),
      tensors: layout.tensors.map(({ name, dtype, shape }) => ({ name, dtype, shape })),
      shards
    })
    const bytes = new TextEncoder().encode(`${manifest}\n`)
    const file = path.join(out.temporary, manifestFileName)
    yield* Effect.scoped(
      Effect.flatMap(
        stageFile(file, bytes.length, (handle) => writeFully(file, handle, bytes, 0)),
        (staged) => staged.commit
      )
    )
    yield* systemCall("WriteFailed", out.folder, "give the output folder its name", () =>
      rename(out.temporary, out.folder)
    )
    yield* syncFolder(path.dirname(out.folder))
  }
  yield* group.barrier("output published")
})

/** What tensors and buffers of this rank need. */
const estimateOf = ({ conversion }: JobSpec, plan: ReshardPlan, quantized: ReadonlySet<string>): number => {
  const transform = conversion?.transform
  const options =
    transform == null ? {} : { transformBytes: mxfp8BufferBytes({ ...transform, parameters: [...quantized] }) }
  return estimatePlans([plan], hostLinkSpeeds, options).ranks[0]!.peakBytes
}

/** What this rank ended up with, and where it came from. Scales come with the tensor that they belong to. */
const observedTensors = (
  plan: ReshardPlan,
  layouts: JobLayouts,
  rank: number,
  held: ReadonlyArray<HeldTensor>,
  digests: ReadonlyMap<string, string>
): ReadonlyArray<ObservedTensor> => {
  const names = new Map(layouts.destination.parametersOf(rank).map(({ metadata, tensor }) => [metadata.name, tensor]))
  const origins = originsOf(plan, (paramName) => names.get(paramName) ?? paramName)
  const shapes = new Map(layouts.result.tensors.map(({ name, shape }) => [name, shape]))
  return held.map(({ local, bytes }) => ({
    name: local.name,
    dtype: local.dtype,
    shape: shapes.get(local.storedAs) ?? local.shape,
    bytes: bytes.length,
    digest: digests.get(local.name) ?? null,
    from: origins.get(local.name) ?? []
  }))
}

const runJob = Effect.fnUntraced(function* (spec: JobSpec, backendReason: string, progress: ReportProgress) {
  const group = yield* ProcessGroup
  const engine = yield* TensorEngine
  const seconds: { [phase: string]: number } = {}
  const before = process.memoryUsage.rss()
  const model = yield* openModel(spec.checkpoint)
  const layouts = yield* timedPhase(
    seconds,
    "plan",
    Effect.suspend(() => Effect.fromResult(jobLayouts(model.tensors, spec)))
  )
  if (layouts.size !== group.size) {
    return yield* modelError("InvalidLayout", {
      rank: group.rank,
      detail: `The layouts need ${layouts.size} ranks, the job has ${group.size}.`,
      remedy: "Start as many processes as the layouts need."
    })
  }
  if (spec.out !== null && group.rank === 0) {
    const { temporary } = spec.out
    yield* Effect.acquireRelease(
      systemCall("WriteFailed", temporary, "create the output folder", () => mkdir(temporary, { mode: 0o755 })),
      () => Effect.ignore(Effect.tryPromise(() => rm(temporary, removal)))
    )
  }
  const plan = yield* inSpan(
    Effect.sync(() => layouts.planFor(group.rank)),
    "plan"
  )
  const source = yield* allocateTensors(layouts.source.tensorsOf(group.rank))
  yield* timedPhase(seconds, "load", loadTensors(model, group, source, progress))
  const destination = yield* allocateTensors(layouts.result.tensorsOf(group.rank))
  for (const { tensor } of destination) yield* engine.fill(tensor, poison)
  for (const held of [...source, ...destination]) yield* clearPadding(held)
  const sourceDict = yield* toDict(source, layouts.source.parametersOf(group.rank))
  const destinationDict = yield* toDict(destination, layouts.destination.parametersOf(group.rank), spec.conversion)
  yield* progress("copy", 0, 1)
  const executed = yield* timedPhase(
    seconds,
    "copy",
    executeReshardPlan(plan, sourceDict, destinationDict, {
      ...transformOf(spec, quantizedNames(spec, layouts, model)),
      onProgress: (moved, total) => progress("copy", moved, Math.max(1, total))
    })
  )
  const converted = yield* convertedModel(model, spec.conversion)
  const digests = spec.verify
    ? yield* timedPhase(seconds, "verify", verifyTensors(converted, group, destination, progress))
    : new Map<string, string>()
  if (spec.out !== null) {
    const { out } = spec
    const write = Effect.gen(function* () {
      const written = destination.filter(({ local }) => local.isPrimary && local.storedAs === local.name)
      // The first rank writes even an empty model.
      const shard =
        written.length > 0 || group.rank === layouts.destination.ranks[0]
          ? yield* writeTensors(out.temporary, layouts.result, model, group, written, digests, progress)
          : null
      yield* inSpan(publish(spec, out, layouts.result, model, group, shard), "job.commit")
    })
    yield* timedPhase(seconds, "write", write)
  }
  yield* group.barrier("job done")
  yield* progress("finish", 1, 1)
  const report: RankReport = {
    rank: group.rank,
    sourceBytes: byteCount(source),
    destinationBytes: byteCount(destination),
    seconds,
    copy: executed.copy,
    backendReason,
    tensorsVerified: digests.size,
    bytesVerified: spec.verify ? byteCount(destination) : 0,
    planDigest: planDigest(plan),
    rosterDigest: plan.rosterDigest,
    peakMemory: process.resourceUsage().maxRSS * 1024,
    ...(spec.observe === true
      ? {
          observed: observed(
            { before, estimate: estimateOf(spec, plan, quantizedNames(spec, layouts, model)) },
            observedTensors(plan, layouts, group.rank, destination, digests)
          )
        }
      : {})
  }
  return report
})

/** Runs this rank of the job to its end. */
export const rankJob = (spec: JobSpec, progress: ReportProgress) =>
  withJobServices(spec, (backendReason) => runJob(spec, backendReason, progress))
