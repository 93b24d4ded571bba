// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors that a rank of a job holds in memory: allocated, filled from the checkpoint piece by piece, and compared with it.
 * What the pieces are, the job's layout says.
 *
 * Invariant: beside the tensors, memory for a few portions of a bounded size is in use.
 */
import { createHash } from "node:crypto"
import { bitsOf } from "@tensorferry/core/base/DType"
import { formatRegion, type Region } from "@tensorferry/core/base/Region"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { type DigestPart, TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { ElementDigest } from "@tensorferry/core/tensor/ElementDigest"
import { sliceTensor, type Tensor, tensorByteLength, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { boundedBytes, boundedRegions, deviceInFlight } from "./BoundedRegions.ts"
import { type RegionRuns, regionRuns } from "./checkpoint/RegionRuns.ts"
import type { LocalTensor } from "./layout/ModelLayout.ts"
import type { Model } from "./Model.ts"
import { modelError } from "./ModelError.ts"
import type { Phase } from "./Phase.ts"
import { asOneRun, gather } from "./regionBytes.ts"
import { checkDigest, moveRegion } from "./ShardedModel.ts"
import { loadRegions, type StreamRead, storedOf } from "./stream/CheckpointStream.ts"
import { compareRegions } from "./stream/compareRegions.ts"
import { visitTensors } from "./stream/visitTensors.ts"

/** Called between portions of work, with the bytes done and the bytes of the whole phase. */
export type ReportProgress = (phase: Phase, done: number, total: number) => Effect.Effect<void>

/** Destination memory starts as this byte, so that an element which nobody wrote does not look right by chance. */
export const poison = 0xa5

/** A tensor of this rank in memory; those that share the storage of another one are not listed. */
export interface HeldTensor {
  readonly local: LocalTensor
  readonly tensor: Tensor
  /** Absent where the host cannot see the memory, as that of a device. */
  readonly bytes: Uint8Array | undefined
}

/** Allocates memory for each tensor that is not an alias. Fails as the engine does. */
export const allocateTensors = Effect.fnUntraced(function* (locals: ReadonlyArray<LocalTensor>) {
  const engine = yield* TensorEngine
  const held: Array<HeldTensor> = []
  for (const local of locals) {
    if (local.aliasOf !== undefined) continue
    const tensor = yield* engine.allocate(local.dtype, local.shape)
    held.push({ local, tensor, bytes: tensorBytes(tensor) })
  }
  return held
})

/** Bytes of all tensors together, padding included. */
export const byteCount = (held: ReadonlyArray<HeldTensor>): number =>
  held.reduce((sum, { tensor }) => sum + tensorByteLength(tensor), 0)

/** The InvalidLayout error of a shard that cannot be addressed, as when it begins inside a byte. */
export const viewFault = (rank: number, paramName: string, detail: string) =>
  modelError("InvalidLayout", {
    rank,
    paramName,
    detail: `A shard cannot be addressed: ${detail}.`,
    remedy: "Replicate the tensor, or choose a degree that cuts whole bytes."
  })

/** Padding is zero on both sides: nobody sends it, and it goes into files. */
export const clearPadding = Effect.fnUntraced(function* ({ local, tensor }: HeldTensor) {
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
    for (const portion of boundedRegions(local.dtype, piece.global)) {
      const place = moveRegion(portion.region, piece.global, piece.local)
      const runs = regionRuns(local.shape, place, bitsOf(local.dtype))
      if (Result.isFailure(runs)) return yield* viewFault(group.rank, local.name, runs.failure)
      yield* visit(portion.region, runs.success, portion.end - portion.start)
    }
  }
})

/** Memory for one portion at a time, used again: garbage of this size would pile up between collections. */
export const makeScratch = (): ((byteLength: number) => Uint8Array) => {
  let bytes = new Uint8Array(0)
  return (byteLength) => {
    if (bytes.length < byteLength) bytes = new Uint8Array(byteLength)
    return bytes.subarray(0, byteLength)
  }
}

/** SHA-256 of the dense bytes of tensors, in hexadecimal digits. Shows the group progress every 16 MiB. */
export const digestsOf = Effect.fnUntraced(function* (group: ProcessGroupShape, held: ReadonlyArray<HeldTensor>) {
  const hashes = held.map(() => createHash("sha256"))
  for (const [at, { bytes }] of held.entries()) {
    for (let start = 0; bytes !== undefined && start < bytes.length; start += boundedBytes) {
      hashes[at]!.update(bytes.subarray(start, start + boundedBytes))
      yield* group.reportProgress
    }
  }
  const unseen = [...held.keys()].filter((at) => held[at]!.bytes === undefined)
  const tensors = unseen.map((at) => ({ name: held[at]!.local.name, tensor: held[at]!.tensor }))
  yield* visitTensors(tensors, (number, bytes) => void hashes[unseen[number]!]!.update(bytes), {
    portionBytes: boundedBytes,
    onProgress: () => group.reportProgress
  })
  return hashes.map((hash) => hash.digest("hex"))
})

/** The same of one tensor. */
export const digestOf = (group: ProcessGroupShape, one: HeldTensor) =>
  Effect.map(digestsOf(group, [one]), ([digest]) => digest!)

/** What fills a tensor, piece by piece. */
const readsOf = (rank: number, { local, tensor }: HeldTensor) =>
  Effect.forEach(local.pieces, (piece) => {
    const runs = regionRuns(local.shape, piece.local, bitsOf(local.dtype))
    const into = sliceTensor(tensor, piece.local)
    return Result.isFailure(runs)
      ? Effect.fail(viewFault(rank, local.name, runs.failure))
      : Result.isFailure(into)
        ? Effect.fail(viewFault(rank, local.name, into.failure.detail))
        : Effect.succeed({ name: local.storedAs, region: piece.global, into: into.success })
  })

/** Portions of files under way at once. Values that are converted take memory of their own. */
const portionsInFlight = (model: Pick<Model, "readRegion" | "stored">, held: ReadonlyArray<HeldTensor>): number =>
  storedOf(model) === undefined ? 2 : held.some(({ bytes }) => bytes === undefined) ? deviceInFlight : 4

/** Parts that a device digests by one call; between calls others see that the rank goes on. */
const partsPerCall = 256

/** Digests of parts, in their order. */
export const digestParts = Effect.fnUntraced(function* (group: ProcessGroupShape, parts: ReadonlyArray<DigestPart>) {
  const engine = yield* TensorEngine
  const digests: Array<ElementDigest> = []
  for (let at = 0; at < parts.length; at += partsPerCall) {
    digests.push(...(yield* engine.digest(parts.slice(at, at + partsPerCall))))
    yield* group.reportProgress
  }
  return digests
})

/** Fails unless memory of a device holds what was read for it. */
const checkArrived = Effect.fnUntraced(function* (
  model: Model,
  group: ProcessGroupShape,
  reads: ReadonlyArray<StreamRead>,
  digests: ReadonlyArray<ElementDigest>
) {
  const { rank } = group
  const found = yield* digestParts(
    group,
    reads.map(({ into }) => ({ tensor: into }))
  )
  const at = found.findIndex((digest, read) => digest !== digests[read])
  if (at < 0) return
  const { name, region } = reads[at]!
  return yield* modelError("Different", {
    rank,
    paramName: name,
    file: model.path,
    op: "load",
    detail: `Region ${formatRegion(region)} of the device is not what was read from the file.`,
    remedy: "Run again; if it happens again, test the memory of the device."
  })
})

/**
 * Reads every piece that a rank holds, and compares what it got with the digest that the checkpoint states, if any. With
 * `isProven`, what devices hold is compared with what was read.
 */
export const loadTensors = Effect.fnUntraced(function* (
  model: Model,
  group: ProcessGroupShape,
  held: ReadonlyArray<HeldTensor>,
  progress: ReportProgress,
  isProven?: boolean
) {
  const total = byteCount(held)
  const reads = (yield* Effect.forEach(held, (one) => readsOf(group.rank, one))).flat()
  let done = 0
  const { digests } = yield* loadRegions(model, reads, {
    inFlight: portionsInFlight(model, held),
    portionBytes: boundedBytes,
    digests: isProven === true,
    onProgress: (bytes) =>
      Effect.suspend(() => {
        done += bytes
        return Effect.andThen(group.reportProgress, progress("load", done, total))
      })
  })
  if (digests !== undefined) yield* checkArrived(model, group, reads, digests)
  const stated = held.flatMap((one) => {
    const { name, pieces, shape, storedAs } = one.local
    const digest = storedAs === name ? model.digestOf(name, shape, pieces) : undefined
    return digest === undefined ? [] : [{ one, digest }]
  })
  for (const { one } of stated) yield* clearPadding(one)
  const found = yield* digestsOf(
    group,
    stated.map(({ one }) => one)
  )
  for (const [at, { digest, one }] of stated.entries())
    yield* checkDigest(model.path, one.local.name, digest, found[at]!)
})

/** What a comparison with the checkpoint found to be the same. */
export interface Verified {
  /** Tensors that were compared. */
  readonly tensors: number
  /** SHA-256 of bytes in memory, by name, where the host saw them. */
  readonly digests: ReadonlyMap<string, string>
}

const unlike = (rank: number, paramName: string, region: Region, [at, found, expected]: ReadonlyArray<number>) =>
  modelError("Different", {
    rank,
    paramName,
    op: "verify",
    detail: `Byte ${at} of region ${formatRegion(region)} is ${found}, the checkpoint has ${expected}.`,
    remedy: "Do not use the result. Report this with the command line."
  })

/** Compares memory of a device with the checkpoint, by digests of the device. */
const verifyOnDevice = Effect.fnUntraced(function* (
  model: Model,
  { rank, reportProgress }: ProcessGroupShape,
  held: ReadonlyArray<HeldTensor>,
  report: (bytes: number) => Effect.Effect<void>
) {
  const reads = (yield* Effect.forEach(held, (one) => readsOf(rank, one))).flat()
  const difference = yield* compareRegions(model, reads, {
    inFlight: portionsInFlight(model, held),
    portionBytes: boundedBytes,
    onProgress: (bytes) => Effect.andThen(reportProgress, report(bytes))
  })
  if (difference === undefined) return
  const { at, expected, found, name, region } = difference
  return yield* unlike(rank, name, region, [at, found, expected])
})

/** Compares destination memory with the checkpoint. */
export const verifyTensors = Effect.fnUntraced(function* (
  model: Model,
  group: ProcessGroupShape,
  held: ReadonlyArray<HeldTensor>,
  progress: ReportProgress
) {
  const total = byteCount(held)
  const digests = new Map<string, string>()
  const [wanted, gathered] = [makeScratch(), makeScratch()]
  let done = 0
  const report = (bytes: number) =>
    Effect.suspend(() => {
      done += bytes
      return progress("verify", done, total)
    })
  const [seen, unseen] = [
    held.filter(({ bytes }) => bytes !== undefined),
    held.filter(({ bytes }) => bytes === undefined)
  ]
  if (unseen.length > 0) yield* verifyOnDevice(model, group, unseen, report)
  for (const one of seen) {
    const { local } = one
    const bytes = one.bytes!
    yield* eachPortion(group, one, (region, runs, byteLength) =>
      Effect.gen(function* () {
        const expected = wanted(byteLength)
        yield* model.readRegion(local.storedAs, region, expected)
        const direct = asOneRun(runs, bytes)
        const found = direct ?? gathered(byteLength)
        if (direct === undefined) gather(runs, bytes, found)
        if (Buffer.compare(expected, found) !== 0) {
          const at = expected.findIndex((byte, index) => byte !== found[index])
          return yield* unlike(group.rank, local.name, region, [at, found[at]!, expected[at]!])
        }
        yield* group.reportProgress
        yield* report(byteLength)
      })
    )
    digests.set(local.name, yield* digestOf(group, one))
  }
  return { tensors: held.length, digests } satisfies Verified as Verified
})
