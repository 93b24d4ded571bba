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
import { formatRegion, fullRegion } from "@tensorferry/core/base/Region"
import { syncFolder, systemCall, writeFully } from "@tensorferry/core/checkpoint/FileAccess"
import { openSafetensors } from "@tensorferry/core/checkpoint/Safetensors"
import { stageFile, stageSafetensors, tensorSource } from "@tensorferry/core/checkpoint/SafetensorsWriter"
import { executeReshardPlan } from "@tensorferry/core/exec/executeReshardPlan"
import { planDigest } from "@tensorferry/core/ir/ReshardPlan"
import type { ModelLayout, Shard } from "@tensorferry/core/layout/ModelLayout"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorByteLength, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { encodeManifest, manifestFileName, ShardFile } from "../model/Manifest.ts"
import { checkDigest, type Model, openModel } from "../model/Model.ts"
import { modelError } from "../model/ModelError.ts"
import { piecesOf } from "../model/pieces.ts"
import { backendRegistry } from "./backends.ts"
import type { JobSpec, Phase, RankReport } from "./JobSpec.ts"
import { jobLayouts } from "./layouts.ts"

export type ReportProgress = (phase: Phase, done: number, total: number) => Effect.Effect<void>

/** Destination memory starts as this byte, so that an element which nobody wrote does not look right by chance. */
const poison = 0xa5

/** Other ranks may still be writing into the folder when it is removed. */
const removal = { recursive: true, force: true, maxRetries: 20, retryDelay: 50 } as const

interface LoadedShard {
  readonly shard: Shard
  readonly tensor: Tensor
  readonly bytes: Uint8Array
}

const allocateShards = Effect.fnUntraced(function* (shards: ReadonlyArray<Shard>) {
  const engine = yield* TensorEngine
  const loaded: Array<LoadedShard> = []
  for (const shard of shards) {
    const owner = loaded.find((other) => other.shard.name === shard.aliasOf)
    const tensor = owner?.tensor ?? (yield* engine.allocate(shard.dtype, shard.shape))
    const bytes = tensorBytes(tensor)
    if (bytes === undefined) {
      return yield* modelError("Unsupported", {
        paramName: shard.name,
        backend: engine.name,
        detail: "The backend's memory is not visible to the host, so it cannot be filled from a file.",
        remedy: "Reshard checkpoints with a host backend, as torch-copy."
      })
    }
    loaded.push({ shard, tensor, bytes })
  }
  return loaded
})

const owned = (shards: ReadonlyArray<LoadedShard>): ReadonlyArray<LoadedShard> =>
  shards.filter(({ shard }) => shard.aliasOf === undefined)

const byteCount = (shards: ReadonlyArray<LoadedShard>): number =>
  owned(shards).reduce((sum, { tensor }) => sum + tensorByteLength(tensor), 0)

const toDict = (shards: ReadonlyArray<LoadedShard>) =>
  tensorDict(
    owned(shards).map(({ shard, tensor }) => [shard.name, tensor] as const),
    {
      aliases: new Map(
        shards.flatMap(({ shard }) => (shard.aliasOf === undefined ? [] : [[shard.name, shard.aliasOf] as const]))
      )
    }
  )

/** Reads every shard of a rank, piece by piece, and compares it with the digest that the checkpoint states, if any. */
const loadShards = Effect.fnUntraced(function* (
  model: Model,
  group: ProcessGroupShape,
  shards: ReadonlyArray<LoadedShard>,
  progress: ReportProgress
) {
  const total = byteCount(shards)
  let done = 0
  for (const { shard, bytes } of owned(shards)) {
    const stated = model.digestOf(shard.name, shard.region)
    const hash = createHash("sha256")
    for (const piece of piecesOf(shard.dtype, shard.region)) {
      const into = bytes.subarray(piece.start, piece.end)
      yield* model.readRegion(shard.name, piece.region, into)
      if (stated !== undefined) hash.update(into)
      done += piece.end - piece.start
      yield* group.reportProgress
      yield* progress("load", done, total)
    }
    if (stated !== undefined) yield* checkDigest(model.path, shard.name, stated, hash.digest("hex"))
  }
})

/** Compares destination memory with the checkpoint; gives each shard's digest. */
const verifyShards = Effect.fnUntraced(function* (
  model: Model,
  group: ProcessGroupShape,
  shards: ReadonlyArray<LoadedShard>,
  progress: ReportProgress
) {
  const total = byteCount(shards)
  const digests = new Map<string, string>()
  let done = 0
  for (const { shard, bytes } of owned(shards)) {
    const hash = createHash("sha256")
    for (const piece of piecesOf(shard.dtype, shard.region)) {
      const expected = new Uint8Array(piece.end - piece.start)
      yield* model.readRegion(shard.name, piece.region, expected)
      const found = bytes.subarray(piece.start, piece.end)
      if (Buffer.compare(expected, found) !== 0) {
        const at = expected.findIndex((byte, index) => byte !== found[index])
        return yield* modelError("Different", {
          rank: group.rank,
          paramName: shard.name,
          op: "verify",
          detail: `Byte ${piece.start + at} of region ${formatRegion(shard.region)} is ${found[at]}, the checkpoint has ${expected[at]}.`,
          remedy: "Do not use the result. Report this with the command line."
        })
      }
      hash.update(found)
      done += piece.end - piece.start
      yield* group.reportProgress
      yield* progress("verify", done, total)
    }
    digests.set(shard.name, hash.digest("hex"))
  }
  return digests
})

const digestOf = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex")

const fileNameOf = (layout: ModelLayout, rank: number): string =>
  layout.ranks.length === 1
    ? "model.safetensors"
    : `rank-${String(rank - layout.ranks[0]!).padStart(5, "0")}.safetensors`

/** Writes this rank's file into the temporary folder and reads it back; describes it for the manifest. */
const writeShards = Effect.fnUntraced(function* (
  folder: string,
  layout: ModelLayout,
  model: Model,
  group: ProcessGroupShape,
  shards: ReadonlyArray<LoadedShard>,
  digests: ReadonlyMap<string, string>,
  progress: ReportProgress
) {
  const name = fileNameOf(layout, group.rank)
  const file = path.join(folder, name)
  const sources = yield* Effect.forEach(owned(shards), ({ shard, tensor }) =>
    Effect.fromResult(tensorSource(shard.name, tensor))
  )
  const total = byteCount(shards)
  yield* progress("write", 0, total)
  yield* group.keepAlive(
    Effect.scoped(Effect.flatMap(stageSafetensors(file, sources, model.metadata), (staged) => staged.commit))
  )
  const written = yield* openSafetensors(file)
  for (const { shard, bytes } of owned(shards)) {
    const hash = createHash("sha256")
    for (const piece of piecesOf(shard.dtype, fullRegion(shard.shape))) {
      const back = new Uint8Array(piece.end - piece.start)
      yield* written.readRegion(shard.name, piece.region, back)
      hash.update(back)
      yield* group.reportProgress
    }
    if (hash.digest("hex") !== (digests.get(shard.name) ?? digestOf(bytes))) {
      return yield* modelError("Different", {
        rank: group.rank,
        paramName: shard.name,
        file,
        op: "write",
        detail: "What was read back from the file is not what was written.",
        remedy: "Check the disk."
      })
    }
  }
  yield* progress("write", total, total)
  return {
    file: name,
    rank: group.rank - layout.ranks[0]!,
    tensors: owned(shards).map(({ shard, bytes }) => ({
      name: shard.name,
      region: shard.region,
      digest: digests.get(shard.name) ?? digestOf(bytes)
    }))
  } satisfies ShardFile
})

const shardCodec = Schema.fromJsonString(Schema.NullOr(ShardFile))

/** Ranks whose file belongs to the output: one replica of every shard. */
const writes = (layout: ModelLayout, rank: number): boolean =>
  layout.ranks.includes(rank) && Math.floor((rank - layout.ranks[0]!) / layout.config.tp) % layout.config.dp === 0

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
      version: 1,
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
  const source = yield* allocateShards(layouts.source.shardsOf(group.rank))
  yield* timedPhase(seconds, "load", loadShards(model, group, source, progress))
  const destination = yield* allocateShards(layouts.destination.shardsOf(group.rank))
  for (const { tensor } of owned(destination)) yield* engine.fill(tensor, poison)
  yield* progress("copy", 0, 1)
  const executed = yield* timedPhase(
    seconds,
    "copy",
    executeReshardPlan(plan, toDict(source), toDict(destination), {
      onProgress: (moved, total) => progress("copy", moved, Math.max(1, total))
    })
  )
  const digests = spec.verify
    ? yield* timedPhase(seconds, "verify", verifyShards(model, group, destination, progress))
    : new Map<string, string>()
  if (spec.out !== null) {
    const { out } = spec
    const write = Effect.gen(function* () {
      const shard = writes(layouts.destination, group.rank)
        ? yield* writeShards(out.temporary, layouts.destination, model, group, destination, digests, progress)
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
