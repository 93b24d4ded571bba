// SPDX-License-Identifier: Apache-2.0
/**
 * Files of a model under a system's own names: one for each rank, `model-rank-N-part-0.safetensors`, as vLLM's `sharded_state`
 * loads them; where one rank has the whole model in the form that libraries publish, the files of a published checkpoint.
 *
 * Invariant: the output folder has its name only when all files are in it.
 */
import { rename } from "node:fs/promises"
import * as path from "node:path"
import { inSpan } from "@tensorferry/core/service/Spans"
import * as Effect from "effect/Effect"
import { indexFileName } from "../../checkpoint/CheckpointIndex.ts"
import { encodeIndex, type FilePart, planFiles } from "../../checkpoint/CheckpointWriter.ts"
import { syncFolder, systemCall } from "../../checkpoint/FileAccess.ts"
import type { TensorDescription } from "../../checkpoint/SafetensorsHeader.ts"
import { worldSizeOf } from "../../layout/ModelLayout.ts"
import type { Companion } from "../../outputs/companions.ts"
import { writeSmallFile } from "../../outputs/outputFiles.ts"
import type { NamedSide } from "../NamedSide.ts"

/** Name of a rank's file. */
export const rankFileName = (rank: number): string => `model-rank-${rank}-part-0.safetensors`

/** Conventions that checkpoints are published in. */
const published: ReadonlySet<string> = new Set(["hf", "transformers"])

/** Whether a side is written as a published checkpoint: one rank, under names that libraries load. */
export const isPublished = ({ convention, config }: NamedSide): boolean =>
  published.has(convention) && worldSizeOf(config) === 1

/** Which tensors go into which files of a rank, counted within its side. */
export const namedFiles = <A extends TensorDescription>(
  side: NamedSide,
  position: number,
  tensors: ReadonlyArray<A>,
  maxFileBytes: number | undefined
): ReadonlyArray<FilePart<A>> =>
  isPublished(side) ? planFiles(tensors, maxFileBytes) : [{ fileName: rankFileName(position), tensors }]

/** What goes into the header of every file; readers ask what wrote it, and know this answer. */
export const namedMetadata = (side: NamedSide, metadata: ReadonlyMap<string, string>): ReadonlyMap<string, string> =>
  new Map([["format", "pt"], ...(isPublished(side) ? metadata : [])])

/** Writes the index of several files. */
export const writeIndex = (folder: string, parts: ReadonlyArray<FilePart<TensorDescription>>) =>
  parts.length > 1 ? writeSmallFile(folder, indexFileName, encodeIndex(parts)) : Effect.void

/** Writes what belongs beside the tensors, then gives the folder its name. */
export const publishFolder = Effect.fnUntraced(function* (
  out: { readonly folder: string; readonly temporary: string },
  companions: ReadonlyArray<Companion>
) {
  for (const { bytes, name } of companions) yield* writeSmallFile(out.temporary, name, bytes)
  yield* inSpan(
    systemCall("WriteFailed", out.folder, "give the output folder its name", () => rename(out.temporary, out.folder)),
    "job.commit"
  )
  yield* syncFolder(path.dirname(out.folder))
})
