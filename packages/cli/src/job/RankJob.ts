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
import { chooseCopyBackend, copyService } from "@tensorferry/core/backend/BackendLayer"
import type { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import { bitsOf } from "@tensorferry/core/base/DType"
import { formatRegion, fullRegion, type Region } from "@tensorferry/core/base/Region"
import { syncFolder, systemCall, writeFully } from "@tensorferry/core/checkpoint/FileAccess"
import { type RegionRuns, regionRuns } from "@tensorferry/core/checkpoint/RegionRuns"
import { openSafetensors } from "@tensorferry/core/checkpoint/Safetensors"
import { stageFile, stageSafetensors, tensorSource } from "@tensorferry/core/checkpoint/SafetensorsWriter"
import { executeReshardPlan } from "@tensorferry/core/exec/executeReshardPlan"
import { planDigest } from "@tensorferry/core/ir/ReshardPlan"
import type { LocalParameter, LocalTensor, ModelLayout } from "@tensorferry/core/layout/ModelLayout"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { sliceTensor, type Tensor, tensorByteLength, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { encodeManifest, manifestFileName, ShardFile, type ShardTensor } from "../model/Manifest.ts"
import { type Model, openModel } from "../model/Model.ts"
import { modelError } from "../model/ModelError.ts"
import { pieceBytes, piecesOf } from "../model/pieces.ts"
import { asOneRun, gather, scatter } from "../model/regionBytes.ts"
import { checkDigest, moveRegion } from "../model/ShardedModel.ts"
import { backendRegistry } from "./backends.ts"
import type { JobSpec, Phase, RankReport } from "./JobSpec.ts"
import { jobLayouts } from "./layouts.ts"

export type ReportProgress = (phase: Phase, done: number, total: number) => Effect.Effect<void>

/** Destination memory starts as this byte, so that an element which nobody wrote does not look right by chance. */
const poison = 0xa5

/** Other ranks may still be writing into the folder when it is removed. */
const removal = { recursive: true, force: true, maxRetries: 20, retryDelay: 50 } as const

/** A tensor of this rank in memory; those that share the storage of another one are not listed. */
interface HeldTensor {
  readonly local: LocalTensor
  readonly tensor: Tensor
  readonly bytes: Uint8Array
}

const allocateTensors = Effect.fnUntraced(function* (locals: ReadonlyArray<LocalTensor>) {
  const engine = yield* TensorEngine
  const held: Array<HeldTensor> = []
  for (const local of locals) {
    if (local.aliasOf !== undefined) continue
    const tensor = yield* engine.allocate(local.dtype, local.shape)
    const bytes = tensorBytes(tensor)
    if (bytes === undefined) {
      return yield* modelError("Unsupported", {
        paramName: local.name,
        backend: engine.name,
        detail: "The backend's memory is not visible to the host, so it cannot be filled from a file.",
        remedy: "Reshard checkpoints with a host backend, as torch-copy."
      })
    }
    held.push({ local, tensor, bytes })
  }
  return held
})

const byteCount = (held: ReadonlyArray<HeldTensor>): number =>
  held.reduce((sum, { tensor }) => sum + tensorByteLength(tensor), 0)

const viewFault = (rank: number, paramName: string, detail: string) =>
  modelError("InvalidLayout", {
    rank,
    paramName,
    detail: `A shard cannot be addressed: ${detail}.`,
    remedy: "Replicate the tensor, or choose a degree that cuts whole bytes."
  })

/** Views of the tensors under the names of the plan. */
const toDict = Effect.fnUntraced(function* (
  held: ReadonlyArray<HeldTensor>,
  parameters: ReadonlyArray<LocalParameter>
) {
  const tensors = new Map(held.map(({ local, tensor }) => [local.name, tensor]))
  const views: Array<readonly [string, Tensor]> = []
  const aliases = new Map<string, string>()
  for (const { metadata, tensor: name, view } of parameters) {
    if (metadata.aliasOf !== null) {
      aliases.set(metadata.name, metadata.aliasOf)
      continue
    }
    const sliced = sliceTensor(tensors.get(name)!, view)
    if (Result.isFailure(sliced)) return yield* viewFault(metadata.ownerRank, metadata.name, sliced.failure.detail)
    views.push([metadata.name, sliced.success])
  }
  return tensorDict(views, { aliases })
})

/** Padding is zero on both sides: nobody sends it, and it goes into files. */
const clearPadding = Effect.fnUntraced(function* ({ local, tensor }: HeldTensor) {
  if (local.padding === undefined) return
  const engine = yield* TensorEngine
  const view = sliceTensor(tensor, local.padding)
  if (Result.isFailure(view)) return yield* viewFault(0, local.name, view.failure.detail)
  yield* engine.fill(view.success, 0)
})

/**
 * Visits every piece of a tensor in portions of bounded size: the portion's region of the whole tensor, and where it lies
 * among the tensor's bytes.
 */
const eachPortion = Effect.fnUntraced(function* <E, R>(
  group: ProcessGroupShape,
  { local }: HeldTensor,
  visit: (region: Region, runs: RegionRuns, byteLength: number) => Effect.Effect<void, E, R>
) {
  for (const piece of local.pieces) {
    for (const portion of piecesOf(local.dtype, piece.global)) {
      const place = moveRegion(portion.region, piece.global, piece.local)
      const runs = regionRuns(local.shape, place, bitsOf(local.dtype))
      if (Result.isFailure(runs)) return yield* viewFault(group.rank, local.name, runs.failure)
      yield* visit(portion.region, runs.success, portion.end - portion.start)
    }
  }
})

/** Memory for one portion at a time, used again: garbage of this size would pile up between collections. */
const makeScratch = (): ((byteLength: number) => Uint8Array) => {
  let bytes = new Uint8Array(0)
  return (byteLength) => {
    if (bytes.length < byteLength) bytes = new Uint8Array(byteLength)
    return bytes.subarray(0, byteLength)
  }
}

const digestOf = Effect.fnUntraced(function* (group: ProcessGroupShape, bytes: Uint8Array) {
  const hash = createHash("sha256")
  for (let start = 0; start < bytes.length; start += pieceBytes) {
    hash.update(bytes.subarray(start, start + pieceBytes))
    yield* group.reportProgress
  }
  return hash.digest("hex")
})

/** Reads every piece that a rank holds, and compares what it got with the digest that the checkpoint states, if any. */
const loadTensors = Effect.fnUntraced(function* (
  model: Model,
  group: ProcessGroupShape,
  held: ReadonlyArray<HeldTensor>,
  progress: ReportProgress
) {
  const total = byteCount(held)
  const scratch = makeScratch()
  let done = 0
  for (const one of held) {
    const { local, bytes } = one
    yield* eachPortion(group, one, (region, runs, byteLength) =>
      Effect.gen(function* () {
        const direct = asOneRun(runs, bytes)
        const into = direct ?? scratch(byteLength)
        yield* model.readRegion(local.storedAs, region, into)
        if (direct === undefined) scatter(runs, into, bytes)
        done += byteLength
        yield* group.reportProgress
        yield* progress("load", done, total)
      })
    )
    const stated = local.storedAs === local.name ? model.digestOf(local.name, local.shape, local.pieces) : undefined
    if (stated === undefined) continue
    yield* clearPadding(one)
    yield* checkDigest(model.path, local.name, stated, yield* digestOf(group, bytes))
  }
})

/** Compares destination memory with the checkpoint; gives each tensor's digest. */
const verifyTensors = Effect.fnUntraced(function* (
  model: Model,
  group: ProcessGroupShape,
  held: ReadonlyArray<HeldTensor>,
  progress: ReportProgress
) {
  const total = byteCount(held)
  const digests = new Map<string, string>()
  const [wanted, gathered] = [makeScratch(), makeScratch()]
  let done = 0
  for (const one of held) {
    const { local, bytes } = one
    yield* eachPortion(group, one, (region, runs, byteLength) =>
      Effect.gen(function* () {
        const expected = wanted(byteLength)
        yield* model.readRegion(local.storedAs, region, expected)
        const direct = asOneRun(runs, bytes)
        const found = direct ?? gathered(byteLength)
        if (direct === undefined) gather(runs, bytes, found)
        if (Buffer.compare(expected, found) !== 0) {
          const at = expected.findIndex((byte, index) => byte !== found[index])
          return yield* modelError("Different", {
            rank: group.rank,
            paramName: local.name,
            op: "verify",
            detail: `Byte ${at} of region ${formatRegion(region)} is ${found[at]}, the checkpoint has ${expected[at]}.`,
            remedy: "Do not use the result. Report this with the command line."
          })
        }
        done += byteLength
        yield* group.reportProgress
        yield* progress("verify", done, total)
      })
    )
    digests.set(local.name, yield* digestOf(group, bytes))
  }
  return digests
})

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
    for (const portion of piecesOf(local.dtype, fullRegion(local.shape))) {
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

const shardCodec = Schema.fromJsonString(Schema.NullOr(ShardFile))

/** Rank 0 writes the manifest and gives the folder its name, after all files are in it. */
const publish = Effect.fnUntraced(function* (
  spec: JobSpec,
  out: { readonly folder: string; readonly temporary: string },
  layout: ModelLayout,
  model: Model,
  group: ProcessGroupShape,
  shard: ShardFile | null
) {
  const text = yield* Effect.orDie(Schema.encodeEffect(shardCodec)(shard))
  const payloads = yield* group.allGather("written shards", new TextEncoder().encode(text))
  if (group.rank === 0) {
    const shards: Array<ShardFile> = []
    for (const payload of payloads) {
      const decoded = Schema.decodeResult(shardCodec)(new TextDecoder().decode(payload))
      if (Result.isSuccess(decoded) && decoded.success !== null) shards.push(decoded.success)
    }
    const manifest = yield* encodeManifest({
      format: "tensorferry.checkpoint",
      version: 2,
      layout: spec.to,
      rules: spec.rules,
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

const timedPhase = <A, E, R>(seconds: { [phase: string]: number }, phase: Phase, effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const start = yield* Clock.currentTimeNanos
    const value = yield* effect
    seconds[phase] = Number((yield* Clock.currentTimeNanos) - start) / 1e9
    return value
  })

const runJob = Effect.fnUntraced(function* (spec: JobSpec, backendReason: string, progress: ReportProgress) {
  const group = yield* ProcessGroup
  const service = yield* CopyService
  const engine = yield* TensorEngine
  const seconds: { [phase: string]: number } = {}
  const model = yield* openModel(spec.checkpoint)
  const layouts = yield* Effect.fromResult(jobLayouts(model.tensors, spec))
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
  const plan = layouts.planFor(group.rank)
  const source = yield* allocateTensors(layouts.source.tensorsOf(group.rank))
  yield* timedPhase(seconds, "load", loadTensors(model, group, source, progress))
  const destination = yield* allocateTensors(layouts.destination.tensorsOf(group.rank))
  for (const { tensor } of destination) yield* engine.fill(tensor, poison)
  for (const held of [...source, ...destination]) yield* clearPadding(held)
  const sourceDict = yield* toDict(source, layouts.source.parametersOf(group.rank))
  const destinationDict = yield* toDict(destination, layouts.destination.parametersOf(group.rank))
  yield* progress("copy", 0, 1)
  const executed = yield* timedPhase(
    seconds,
    "copy",
    executeReshardPlan(plan, sourceDict, destinationDict, {
      onProgress: (moved, total) => progress("copy", moved, Math.max(1, total))
    })
  )
  const digests = spec.verify
    ? yield* timedPhase(seconds, "verify", verifyTensors(model, group, destination, progress))
    : new Map<string, string>()
  if (spec.out !== null) {
    const { out } = spec
    const write = Effect.gen(function* () {
      const written = destination.filter(({ local }) => local.isPrimary && local.storedAs === local.name)
      // The first rank writes even an empty model.
      const shard =
        written.length > 0 || group.rank === layouts.destination.ranks[0]
          ? yield* writeTensors(out.temporary, layouts.destination, model, group, written, digests, progress)
          : null
      yield* publish(spec, out, layouts.destination, model, group, shard)
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
    peakMemory: process.resourceUsage().maxRSS * 1024
  }
  return { report, service: service.backend }
})

/** Runs this rank of the job to its end. */
export const rankJob = (spec: JobSpec, progress: ReportProgress) =>
  Effect.gen(function* () {
    const { descriptor, reason } = yield* chooseCopyBackend(spec.backend, "cpu")
    const services = copyService({
      backend: descriptor.name,
      deadline: Duration.millis(spec.deadlineMillis)
    })
    const { report } = yield* Effect.provide(Effect.scoped(runJob(spec, reason, progress)), services)
    return report
  }).pipe(
    Effect.provide(
      backendRegistry(spec.backendPackages, spec.packagesFrom) satisfies Layer.Layer<BackendRegistry, unknown>
    )
  )
