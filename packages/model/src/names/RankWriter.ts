// SPDX-License-Identifier: Apache-2.0
/**
 * Writes what each rank of a job holds of a model under a system's own names, and the configuration beside it.
 *
 * Invariant: the output folder has its name only when all ranks have written and proved their files.
 */
import { createHash } from "node:crypto"
import * as path from "node:path"
import { fullRegion } from "@tensorferry/core/base/Region"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import { boundedRegions } from "../BoundedRegions.ts"
import { openSafetensors } from "../checkpoint/Safetensors.ts"
import { stageSafetensors, tensorSource } from "../checkpoint/SafetensorsWriter.ts"
import { byteCount, digestOf, type HeldTensor, makeScratch, type ReportProgress } from "../HeldTensors.ts"
import type { Model } from "../Model.ts"
import type { ShardOutput } from "../ShardWriter.ts"
import { namedFiles, namedMetadata, publishFolder, readBackFault, writeIndex } from "./NamedFiles.ts"
import type { NamedSide } from "./namedLayouts.ts"

/** Writes a file and reads it back. */
const writeFile = Effect.fnUntraced(function* (
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
  }
})

/** Writes this rank's files, reads them back, and, where all ranks have written theirs, gives the folder its name. */
export const writeRank = Effect.fnUntraced(function* (
  { companions, out, side }: Pick<ShardOutput, "companions" | "out"> & { readonly side: NamedSide },
  model: Pick<Model, "metadata">,
  /** Counted within the destination; undefined where the rank is none of it. One that holds nothing has a file all the same. */
  position: number | undefined,
  held: ReadonlyArray<HeldTensor>,
  verified: ReadonlyMap<string, string>,
  progress: ReportProgress
) {
  const group = yield* ProcessGroup
  const total = byteCount(held)
  yield* progress("write", 0, total)
  if (position !== undefined) {
    const tensors = held.map((one) => ({ ...one, ...one.local, name: one.local.name }))
    const parts = namedFiles(side, position, tensors, out.maxFileBytes)
    const metadata = namedMetadata(side, model.metadata)
    for (const { fileName, tensors } of parts)
      yield* writeFile(group, path.join(out.temporary, fileName), tensors, metadata, verified)
    yield* writeIndex(out.temporary, parts)
  }
  yield* progress("write", total, total)
  yield* group.barrier("ranks written")
  if (group.rank === 0) yield* publishFolder(out, yield* companions)
  yield* group.barrier("output published")
})
