// SPDX-License-Identifier: Apache-2.0
/** Files of an output: tensors that a rank holds, read back and compared by digest, and the small ones beside them. */
import { createHash } from "node:crypto"
import * as path from "node:path"
import { fullRegion } from "@tensorferry/core/base/Region"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import { boundedBytes, boundedRegions, deviceInFlight } from "../BoundedRegions.ts"
import { writeFully } from "../checkpoint/FileAccess.ts"
import { openSafetensors } from "../checkpoint/Safetensors.ts"
import { stageFile, stageSafetensors, tensorSource } from "../checkpoint/SafetensorsWriter.ts"
import { digestOf, type HeldTensor, makeScratch } from "../HeldTensors.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { saveTensors } from "../stream/CheckpointStream.ts"
import { compareRegions } from "../stream/compareRegions.ts"

/** Writes a small file into the folder. */
export const writeSmallFile = (folder: string, name: string, bytes: Uint8Array) => {
  const file = path.join(folder, name)
  return Effect.scoped(
    Effect.flatMap(
      stageFile(file, bytes.length, (handle) => writeFully(file, handle, bytes, 0)),
      (staged) => staged.commit
    )
  )
}

/** What was read back is not what was written. */
export const readBackFault = (file: string, paramName: string, rank: number): ModelError =>
  modelError("Different", {
    rank,
    paramName,
    file,
    op: "write",
    detail: "What was read back from the file is not what was written.",
    remedy: "Check the disk."
  })

/** Writes tensors of the host and reads them back. */
const writeHost = Effect.fnUntraced(function* (
  group: ProcessGroupShape,
  file: string,
  held: ReadonlyArray<HeldTensor>,
  metadata: ReadonlyMap<string, string>,
  verified: ReadonlyMap<string, string>
) {
  const sources = yield* Effect.forEach(held, ({ local, tensor }) =>
    Effect.fromResult(tensorSource(local.name, tensor))
  )
  yield* group.keepAlive(
    Effect.scoped(Effect.flatMap(stageSafetensors(file, sources, metadata), (staged) => staged.commit))
  )
  const written = yield* openSafetensors(file)
  const scratch = makeScratch()
  const digests: Array<string> = []
  for (const one of held) {
    const { local } = one
    const digest = verified.get(local.name) ?? (yield* digestOf(group, one))
    const hash = createHash("sha256")
    for (const portion of boundedRegions(local.dtype, fullRegion(local.shape))) {
      const back = scratch(portion.end - portion.start)
      yield* written.readRegion(local.name, portion.region, back)
      hash.update(back)
      yield* group.reportProgress
    }
    if (hash.digest("hex") !== digest) return yield* readBackFault(file, local.name, group.rank)
    digests.push(digest)
  }
  return digests
})

/**
 * Writes tensors of a device by way of pinned buffers, and has the device compare the file with them. The digests are of what
 * was written: bytes come to the host once.
 */
const writeOfDevice = Effect.fnUntraced(function* (
  group: ProcessGroupShape,
  file: string,
  held: ReadonlyArray<HeldTensor>,
  metadata: ReadonlyMap<string, string>
) {
  const hashes = new Map(held.map(({ local }) => [local.name, createHash("sha256")]))
  const options = { inFlight: deviceInFlight, portionBytes: boundedBytes, onProgress: () => group.reportProgress }
  const tensors = held.map(({ local, tensor }) => ({ name: local.name, tensor }))
  const onBytes = (name: string, bytes: Uint8Array) => void hashes.get(name)!.update(bytes)
  // Synchronising a large file takes as long as the disk does.
  yield* group.keepAlive(saveTensors(file, tensors, metadata, { ...options, onBytes }))
  const reads = tensors.map(({ name, tensor }) => ({ name, region: fullRegion(tensor.shape), into: tensor }))
  const difference = yield* compareRegions(yield* openSafetensors(file), reads, options)
  if (difference !== undefined) return yield* readBackFault(file, difference.name, group.rank)
  return held.map(({ local }) => hashes.get(local.name)!.digest("hex"))
})

/** Writes a file and reads it back; the digest of each tensor, in their order. `verified` has those that are known. */
export const writeVerified = Effect.fnUntraced(function* (
  group: ProcessGroupShape,
  file: string,
  held: ReadonlyArray<HeldTensor>,
  metadata: ReadonlyMap<string, string>,
  verified: ReadonlyMap<string, string>
) {
  return held.some(({ bytes }) => bytes === undefined)
    ? yield* writeOfDevice(group, file, held, metadata)
    : yield* writeHost(group, file, held, metadata, verified)
})
