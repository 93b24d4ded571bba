// SPDX-License-Identifier: Apache-2.0
/**
 * Writes what the ranks of a job hold at the end as a checkpoint in shards: each its file, read back and proved, and the
 * manifest of all files. One rank that has the whole model writes the files of a published checkpoint, with their index.
 *
 * Invariant: the output folder gets its name only after every rank has written and proved its file.
 */
import { mkdir, rename, rm } from "node:fs/promises"
import * as path from "node:path"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import { exchange, exchangePayloads, jsonPayloads } from "@tensorferry/core/group/Exchange"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { inSpan } from "@tensorferry/core/service/Spans"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Cutting } from "./Cutting.ts"
import type { CheckpointError } from "./checkpoint/CheckpointError.ts"
import { indexFileName } from "./checkpoint/CheckpointIndex.ts"
import { encodeIndex, type FilePart, planFiles } from "./checkpoint/CheckpointWriter.ts"
import { checkRoom, syncFolder, systemCall } from "./checkpoint/FileAccess.ts"
import type { TensorDescription } from "./checkpoint/SafetensorsHeader.ts"
import { byteCount, type HeldTensor, type ReportProgress } from "./HeldTensors.ts"
import type { LocalTensor, ModelLayout, ParallelConfig } from "./layout/ModelLayout.ts"
import { encodeManifest, manifestFileName, ShardFile, type ShardTensor } from "./Manifest.ts"
import type { Model } from "./Model.ts"
import { modelError } from "./ModelError.ts"
import type { Companion } from "./outputs/companions.ts"
import { writeSmallFile, writeVerified } from "./outputs/outputFiles.ts"
import { takeOwnValues } from "./ownValues.ts"
import type { Shift } from "./Shift.ts"

/** Where shards go and what their manifest says of them. */
export interface ShardOutput {
  /** The folder, and the one that is written first. */
  readonly out: {
    readonly folder: string
    readonly temporary: string
    /** Most bytes of tensors in one file, where one rank has all of them. */
    readonly maxFileBytes?: number
  }
  /** Small files that are written beside the tensors, by the first rank. */
  readonly companions: Effect.Effect<ReadonlyArray<Companion>, CheckpointError>
  /** Degrees of parallelism, for the manifest. */
  readonly config: ParallelConfig
  /** Of what is written. */
  readonly rules: Cutting
}

/** Copies of what another rank writes are not written, nor are parts that belong to a tensor of another name. */
const isWritten = ({ isPrimary, name, storedAs }: LocalTensor): boolean => isPrimary && storedAs === name

/** Other ranks may still be writing into the folder when it is removed. */
const removal = { recursive: true, force: true, maxRetries: 20, retryDelay: 50 } as const

/**
 * The folder that ranks write into, made by rank 0 and removed with the scope where it got no name. All ranks call this
 * together, with what each is going to hold, before they load anything: where that does not fit on the disk, all fail.
 */
export const makeOutput = Effect.fnUntraced(function* (
  group: ProcessGroupShape,
  out: ShardOutput["out"] | null,
  locals: ReadonlyArray<LocalTensor>
) {
  if (out === null) return
  const own = locals
    .filter((local) => local.aliasOf === undefined && isWritten(local))
    .reduce((sum, { dtype, shape }) => sum + byteLengthOf(dtype, elementCount(shape)), 0)
  const lengths = yield* exchange(group, "bytes to be written", Schema.Int, own)
  const needed = lengths.reduce((sum, bytes) => sum + bytes, 0)
  yield* checkRoom(path.dirname(out.temporary), needed)
  if (group.rank !== 0) return
  yield* Effect.acquireRelease(
    systemCall("WriteFailed", out.temporary, "create the output folder", () => mkdir(out.temporary, { mode: 0o755 })),
    () => Effect.ignore(Effect.tryPromise(() => rm(out.temporary, removal)))
  )
})

/** What others read in one go, and object stores take as one part. */
export const usualFileBytes = 5_000_000_000

/** A rank's files: one for each rank, or those of a published checkpoint where one rank has the whole model. */
const filesOf = (
  layout: ModelLayout,
  rank: number,
  held: ReadonlyArray<HeldTensor>,
  maxFileBytes = usualFileBytes
): ReadonlyArray<FilePart<HeldTensor & TensorDescription>> => {
  const tensors = held.map((one) => ({ ...one, ...one.local, name: one.local.name }))
  return layout.ranks.length === 1
    ? planFiles(tensors, maxFileBytes)
    : [{ fileName: `rank-${String(rank - layout.ranks[0]!).padStart(5, "0")}.safetensors`, tensors }]
}

/** Readers of published checkpoints ask what wrote a file, and know this answer. */
const fileMetadata = ({ metadata }: Model): ReadonlyMap<string, string> =>
  metadata.has("format") ? metadata : new Map([...metadata, ["format", "pt"]])

/** What is known of a rank's tensors by their names. */
interface Known {
  /** Digests of bytes in memory. */
  readonly verified: ReadonlyMap<string, string>
  /** What files have less than the whole. */
  readonly shifts: ReadonlyMap<string, Shift>
}

/** Writes one of this rank's files into the temporary folder and reads it back; describes it for the manifest. */
const writeFile = Effect.fnUntraced(function* (
  folder: string,
  name: string,
  layout: ModelLayout,
  model: Model,
  group: ProcessGroupShape,
  held: ReadonlyArray<HeldTensor>,
  { shifts, verified }: Known
) {
  const file = path.join(folder, name)
  const metadata = layout.ranks.length === 1 ? fileMetadata(model) : model.metadata
  const digests = yield* writeVerified(group, file, held, metadata, verified)
  const tensors = held.map(
    ({ local }, at): ShardTensor => ({
      name: local.name,
      shape: local.shape,
      pieces: local.pieces,
      ...(shifts.has(local.name) ? { shift: shifts.get(local.name)! } : {}),
      digest: digests[at]!
    })
  )
  return { file: name, rank: group.rank - layout.ranks[0]!, tensors } satisfies ShardFile
})

/** Writes this rank's files, and where there are several the index of them. */
const writeTensors = Effect.fnUntraced(function* (
  { maxFileBytes, temporary }: ShardOutput["out"],
  layout: ModelLayout,
  model: Model,
  group: ProcessGroupShape,
  held: ReadonlyArray<HeldTensor>,
  known: Known,
  progress: ReportProgress
) {
  const total = byteCount(held)
  let done = 0
  yield* progress("write", 0, total)
  const parts = filesOf(layout, group.rank, held, maxFileBytes)
  const written: Array<ShardFile> = []
  for (const { fileName, tensors } of parts) {
    written.push(yield* writeFile(temporary, fileName, layout, model, group, tensors, known))
    done += byteCount(tensors)
    yield* progress("write", done, total)
  }
  if (parts.length > 1) yield* writeSmallFile(temporary, indexFileName, encodeIndex(parts))
  return written
})

const shardPayloads = jsonPayloads(Schema.Array(ShardFile))

/** Rank 0 writes the manifest and gives the folder its name, after all files are in it. */
const publish = Effect.fnUntraced(function* (
  { companions, config, out, rules }: ShardOutput,
  layout: ModelLayout,
  model: Model,
  group: ProcessGroupShape,
  own: ReadonlyArray<ShardFile>
) {
  // Only rank 0 reads what all have written.
  const payloads = group.rank === 0 ? shardPayloads : { ...shardPayloads, decodeAll: () => Result.succeed([]) }
  const written = yield* exchangePayloads(group, "written shards", payloads, own).pipe(
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
    const shards = written.flat()
    const manifest = yield* encodeManifest({
      format: "tensorferry.checkpoint",
      version: 2,
      layout: config,
      rules,
      metadata: Object.fromEntries(model.metadata),
      tensors: layout.tensors.map(({ name, dtype, shape }) => ({ name, dtype, shape })),
      shards
    })
    for (const { bytes, name } of yield* companions) yield* writeSmallFile(out.temporary, name, bytes)
    yield* writeSmallFile(out.temporary, manifestFileName, new TextEncoder().encode(`${manifest}\n`))
    yield* systemCall("WriteFailed", out.folder, "give the output folder its name", () =>
      rename(out.temporary, out.folder)
    )
    yield* syncFolder(path.dirname(out.folder))
  }
  yield* group.barrier("output published")
})

/** Writes this rank's files and, with the other ranks, gives the folder its name. */
export const writeShards = Effect.fnUntraced(function* (
  output: ShardOutput,
  layout: ModelLayout,
  model: Model,
  held: ReadonlyArray<HeldTensor>,
  verified: ReadonlyMap<string, string>,
  progress: ReportProgress
) {
  const group = yield* ProcessGroup
  const written = held.filter(({ local }) => isWritten(local))
  const shifts = yield* takeOwnValues(model, output.rules, group.rank, written)
  const known: Known = { shifts, verified: new Map([...verified].filter(([name]) => !shifts.has(name))) }
  // The first rank writes even an empty model.
  const own =
    written.length > 0 || group.rank === layout.ranks[0]
      ? yield* writeTensors(output.out, layout, model, group, written, known, progress)
      : []
  yield* inSpan(publish(output, layout, model, group, own), "job.commit")
})
