// SPDX-License-Identifier: Apache-2.0
/**
 * Writes what each rank of a job holds of a model under a system's own names, and the configuration beside it.
 *
 * Invariant: the output folder has its name only when all ranks have written and proved their files.
 */
import * as path from "node:path"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import type { FamilyChoice } from "../../Cutting.ts"
import { byteCount, type HeldTensor, type ReportProgress } from "../../HeldTensors.ts"
import type { Model } from "../../Model.ts"
import { writeVerified } from "../../outputs/outputFiles.ts"
import type { ShardOutput } from "../../ShardWriter.ts"
import type { NamedSide } from "../NamedSide.ts"
import { isPublished, namedFiles, namedMetadata, publishFolder, writeIndex } from "./NamedFiles.ts"
import { writeNamesFile } from "./NamesFile.ts"

/** Writes this rank's files, reads them back, and, where all ranks have written theirs, gives the folder its name. */
export const writeRank = Effect.fnUntraced(function* (
  {
    companions,
    out,
    side,
    family
  }: Pick<ShardOutput, "companions" | "out"> & { readonly side: NamedSide; readonly family: FamilyChoice },
  model: Pick<Model, "metadata" | "tensors">,
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
      yield* writeVerified(group, path.join(out.temporary, fileName), tensors, metadata, verified)
    yield* writeIndex(out.temporary, parts)
  }
  yield* progress("write", total, total)
  yield* group.barrier("ranks written")
  if (group.rank === 0) {
    if (!isPublished(side)) yield* writeNamesFile(out.temporary, side, family, model.tensors)
    yield* publishFolder(out, yield* companions)
  }
  yield* group.barrier("output published")
})
