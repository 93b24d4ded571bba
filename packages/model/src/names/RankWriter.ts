// SPDX-License-Identifier: Apache-2.0
/**
 * Writes what each rank holds of a model under a system's own names: a file for each rank, `model-rank-N-part-0.safetensors`,
 * as vLLM's `sharded_state` loads them, and the configuration beside them.
 *
 * Invariant: the output folder has its name only when all files are in it.
 */
import { createHash } from "node:crypto"
import { rename } from "node:fs/promises"
import * as path from "node:path"
import { fullRegion } from "@tensorferry/core/base/Region"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { inSpan } from "@tensorferry/core/service/Spans"
import * as Effect from "effect/Effect"
import { boundedRegions } from "../BoundedRegions.ts"
import { syncFolder, systemCall, writeFully } from "../checkpoint/FileAccess.ts"
import { openSafetensors } from "../checkpoint/Safetensors.ts"
import { stageFile, stageSafetensors, tensorSource } from "../checkpoint/SafetensorsWriter.ts"
import { byteCount, digestOf, type HeldTensor, makeScratch, type ReportProgress } from "../HeldTensors.ts"
import { modelError } from "../ModelError.ts"
import type { ShardOutput } from "../ShardWriter.ts"

/** Name of a rank's file. */
export const rankFileName = (rank: number): string => `model-rank-${rank}-part-0.safetensors`

/** Writes this rank's file, reads it back, and, where all ranks have written theirs, gives the folder its name. */
export const writeRank = Effect.fnUntraced(function* (
  { companions, out }: Pick<ShardOutput, "companions" | "out">,
  /** Counted within the destination; undefined where the rank holds nothing of it. */
  position: number | undefined,
  held: ReadonlyArray<HeldTensor>,
  verified: ReadonlyMap<string, string>,
  progress: ReportProgress
) {
  const group = yield* ProcessGroup
  const total = byteCount(held)
  yield* progress("write", 0, total)
  if (position !== undefined) {
    const file = path.join(out.temporary, rankFileName(position))
    const sources = yield* Effect.forEach(held, ({ local, tensor }) =>
      Effect.fromResult(tensorSource(local.name, tensor))
    )
    yield* group.keepAlive(
      Effect.scoped(
        Effect.flatMap(stageSafetensors(file, sources, new Map([["format", "pt"]])), (staged) => staged.commit)
      )
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
      if (hash.digest("hex") !== digest)
        return yield* modelError("Different", {
          rank: group.rank,
          paramName: local.name,
          file,
          op: "write",
          detail: "What was read back from the file is not what was written.",
          remedy: "Check the disk."
        })
    }
  }
  yield* progress("write", total, total)
  yield* group.barrier("ranks written")
  if (group.rank === 0) {
    for (const { bytes, name } of yield* companions) {
      const file = path.join(out.temporary, name)
      yield* Effect.scoped(
        Effect.flatMap(
          stageFile(file, bytes.length, (handle) => writeFully(file, handle, bytes, 0)),
          (staged) => staged.commit
        )
      )
    }
    yield* inSpan(
      systemCall("WriteFailed", out.folder, "give the output folder its name", () => rename(out.temporary, out.folder)),
      "job.commit"
    )
    yield* syncFolder(path.dirname(out.folder))
  }
  yield* group.barrier("output published")
})
