// SPDX-License-Identifier: Apache-2.0
/**
 * Writes what the ranks of a job hold at the end as a checkpoint in shards: each its file, read back and proved, and the manifest of all files.
 *
 * Invariant: the output folder gets its name only after every rank has written and proved its file.
 */
import { createHash } from "node:crypto"
import { mkdir, rename, rm } from "node:fs/promises"
import * as path from "node:path"
import { fullRegion } from "@tensorferry/core/base/Region"
import { exchangePayloads, jsonPayloads } from "@tensorferry/core/group/Exchange"
import type { ModelLayout, ParallelConfig } from "@tensorferry/core/layout/ModelLayout"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { inSpan } from "@tensorferry/core/service/Spans"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { boundedRegions } from "./BoundedRegions.ts"
import type { Cutting } from "./Cutting.ts"
import { syncFolder, systemCall, writeFully } from "./checkpoint/FileAccess.ts"
import { openSafetensors } from "./checkpoint/Safetensors.ts"
import { stageFile, stageSafetensors, tensorSource } from "./checkpoint/SafetensorsWriter.ts"
import { byteCount, digestOf, type HeldTensor, makeScratch, type ReportProgress } from "./HeldTensors.ts"
import { encodeManifest, manifestFileName, ShardFile, type ShardTensor } from "./Manifest.ts"
import type { Model } from "./Model.ts"
import { modelError } from "./ModelError.ts"

/** Where shards go and what their manifest says of them. */
export interface ShardOutput {
  /** The folder, and the one that is written first. */
  readonly out: { readonly folder: string; readonly temporary: string }
  readonly config: ParallelConfig
  /** Of what is written. */
  readonly rules: Cutting
}

/** Other ranks may still be writing into the folder when it is removed. */
const removal = { recursive: true, force: true, maxRetries: 20, retryDelay: 50 } as const

/** The folder that ranks write into, made by rank 0 and removed with the scope where it got no name. */
export const makeOutput = (group: ProcessGroupShape, out: ShardOutput["out"] | null) =>
  out === null || group.rank !== 0
    ? Effect.void
    : Effect.acquireRelease(
        systemCall("WriteFailed", out.temporary, "create the output folder", () =>
          mkdir(out.temporary, { mode: 0o755 })
        ),
        () => Effect.ignore(Effect.tryPromise(() => rm(out.temporary, removal)))
      )

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
    for (const portion of boundedRegions(local.dtype, fullRegion(local.shape))) {
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

const shardPayloads = jsonPayloads(Schema.NullOr(ShardFile))

/** Rank 0 writes the manifest and gives the folder its name, after all files are in it. */
const publish = Effect.fnUntraced(function* (
  { out, config, rules }: ShardOutput,
  layout: ModelLayout,
  model: Model,
  group: ProcessGroupShape,
  shard: ShardFile | null
) {
  // Only rank 0 reads what all have written.
  const payloads = group.rank === 0 ? shardPayloads : { ...shardPayloads, decodeAll: () => Result.succeed([]) }
  const written = yield* exchangePayloads(group, "written shards", payloads, shard).pipe(
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
    const shards = written.filter((one) => one !== null)
    const manifest = yield* encodeManifest({
      format: "tensorferry.checkpoint",
      version: 2,
      layout: config,
      rules,
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

/** Writes this rank's file and, with the other ranks, gives the folder its name. */
export const writeShards = Effect.fnUntraced(function* (
  output: ShardOutput,
  layout: ModelLayout,
  model: Model,
  held: ReadonlyArray<HeldTensor>,
  verified: ReadonlyMap<string, string>,
  progress: ReportProgress
) {
  const group = yield* ProcessGroup
  const written = held.filter(({ local }) => local.isPrimary && local.storedAs === local.name)
  // The first rank writes even an empty model.
  const shard =
    written.length > 0 || group.rank === layout.ranks[0]
      ? yield* writeTensors(output.out.temporary, layout, model, group, written, verified, progress)
      : null
  yield* inSpan(publish(output, layout, model, group, shard), "job.commit")
})
