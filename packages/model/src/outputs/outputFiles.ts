// SPDX-License-Identifier: Apache-2.0
/** Files of an output: tensors that a rank holds, read back and compared by digest, and the small ones beside them. */
import { createHash } from "node:crypto"
import * as path from "node:path"
import { fullRegion } from "@tensorferry/core/base/Region"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import { boundedRegions } from "../BoundedRegions.ts"
import { writeFully } from "../checkpoint/FileAccess.ts"
import { openSafetensors } from "../checkpoint/Safetensors.ts"
import { stageFile, stageSafetensors, tensorSource } from "../checkpoint/SafetensorsWriter.ts"
import { digestOf, type HeldTensor, makeScratch } from "../HeldTensors.ts"
import { type ModelError, modelError } from "../ModelError.ts"

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

/** Writes a file and reads it back; the digest of each tensor, in their order. `verified` has those that are known. */
export const writeVerified = Effect.fnUntraced(function* (
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
  for (const { local, bytes } of held) {
    const digest = verified.get(local.name) ?? (yield* digestOf(group, bytes))
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
