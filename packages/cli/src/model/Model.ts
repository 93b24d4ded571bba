/**
 * A model on disk, whole or in shards: names, types, shapes, and reads of any region. What holds it does not matter to
 * those who read it.
 */
import { createHash } from "node:crypto"
import { stat } from "node:fs/promises"
import * as path from "node:path"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import {
  elementCount,
  equalRegions,
  formatRegion,
  fullRegion,
  intersect,
  type Region,
  regionShape,
  rowMajorStrides
} from "@tensorferry/core/base/Region"
import type { CheckpointError } from "@tensorferry/core/checkpoint/CheckpointError"
import { openCheckpoint } from "@tensorferry/core/checkpoint/CheckpointIndex"
import { openSafetensors, type SafetensorsFile } from "@tensorferry/core/checkpoint/Safetensors"
import type { ModelTensor, ParallelConfig } from "@tensorferry/core/layout/ModelLayout"
import type { ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { checkShardFile, type Manifest, manifestFileName, readManifest } from "./Manifest.ts"
import { type ModelError, modelError } from "./ModelError.ts"
import { piecesOf } from "./pieces.ts"

export interface Model {
  readonly path: string
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly metadata: ReadonlyMap<string, string>
  /** How the files are sharded, where a manifest says so. */
  readonly sharded: { readonly layout: ParallelConfig; readonly rules: ShardingRules } | undefined
  /** SHA-256 of exactly this region as the manifest states it, where it states one. */
  readonly digestOf: (name: string, region: Region) => string | undefined
  /** Compares every file of a sharded model with its digests, replicas too; fails with the first that was changed. */
  readonly checkFiles: Effect.Effect<void, CheckpointError | ModelError>
  /** Fills `into` with the dense row-major bytes of a region of the whole tensor. */
  readonly readRegion: (
    name: string,
    region: Region,
    into: Uint8Array
  ) => Effect.Effect<void, CheckpointError | ModelError>
}

/** Copies `part`, dense, to its place in `whole`, dense; both are regions of one tensor of whole bytes per run. */
const scatter = (bits: number, part: Region, from: Uint8Array, whole: Region, into: Uint8Array): void => {
  const shape = regionShape(part)
  const strides = rowMajorStrides(regionShape(whole))
  const innermost = shape.length - 1
  const run = shape.length === 0 ? 1 : shape[innermost]!
  const runBytes = (run * bits) / 8
  const rows = elementCount(shape) / Math.max(1, run)
  const outer = rowMajorStrides(shape.slice(0, Math.max(0, innermost)))
  for (let row = 0; row < rows; row++) {
    let at = shape.length === 0 ? 0 : part[innermost]![0] - whole[innermost]![0]
    for (let dim = 0; dim < innermost; dim++) {
      const index = Math.floor(row / outer[dim]!) % shape[dim]!
      at += (part[dim]![0] - whole[dim]![0] + index) * strides[dim]!
    }
    into.set(from.subarray(row * runBytes, (row + 1) * runBytes), (at * bits) / 8)
  }
}

interface Held {
  readonly file: SafetensorsFile
  readonly region: Region
  readonly digest: string
}

/** Fails unless the digest of what a file holds is the one that the manifest states. */
export const checkDigest = (
  file: string,
  name: string,
  stated: string,
  found: string
): Effect.Effect<void, ModelError> =>
  stated === found
    ? Effect.void
    : Effect.fail(
        modelError("InvalidManifest", {
          file,
          paramName: name,
          detail: `Its bytes have digest ${found}, the manifest says ${stated}: the file or the manifest was changed after it was written.`,
          remedy: "Reshard the original checkpoint again."
        })
      )

const checkHeld = Effect.fnUntraced(function* (name: string, { file, region, digest }: Held) {
  const hash = createHash("sha256")
  const { dtype, shape } = file.tensors.get(name)!
  for (const piece of piecesOf(dtype, fullRegion(shape))) {
    const bytes = new Uint8Array(piece.end - piece.start)
    yield* file.readRegion(name, piece.region, bytes)
    hash.update(bytes)
  }
  yield* checkDigest(file.path, `${name}${formatRegion(region)}`, digest, hash.digest("hex"))
})

const openSharded = (
  folder: string,
  manifest: Manifest
): Effect.Effect<Model, CheckpointError | ModelError, Scope.Scope> =>
  Effect.gen(function* () {
    const held = new Map<string, Array<Held>>()
    const all: Array<readonly [name: string, held: Held]> = []
    for (const shard of manifest.shards) {
      const file = yield* openSafetensors(path.join(folder, shard.file))
      yield* checkShardFile(manifest, shard, file.path, file.tensors)
      for (const { name, region, digest } of shard.tensors) {
        const list = held.get(name) ?? []
        if (!list.some((other) => equalRegions(other.region, region))) list.push({ file, region, digest })
        held.set(name, list)
        all.push([name, { file, region, digest }])
      }
    }
    const dtypes = new Map(manifest.tensors.map((tensor) => [tensor.name, tensor.dtype]))
    return {
      path: folder,
      tensors: manifest.tensors,
      metadata: new Map(Object.entries(manifest.metadata)),
      sharded: { layout: manifest.layout, rules: manifest.rules },
      digestOf: (name, region) => held.get(name)?.find((other) => equalRegions(other.region, region))?.digest,
      checkFiles: Effect.forEach(all, ([name, one]) => checkHeld(name, one), { discard: true }),
      readRegion: (name, region, into) =>
        Effect.gen(function* () {
          const dtype = dtypes.get(name)
          if (dtype === undefined) {
            return yield* modelError("InvalidManifest", {
              file: folder,
              paramName: name,
              detail: "No such tensor.",
              remedy: "Name a tensor of the model."
            })
          }
          for (const { file, region: ours } of held.get(name) ?? []) {
            const common = intersect(region, ours)
            if (common === undefined) continue
            const local = common.map(([start, stop], dim) => [start - ours[dim]![0], stop - ours[dim]![0]] as const)
            if (equalRegions(common, region)) {
              yield* file.readRegion(name, local, into)
              return
            }
            const bytes = new Uint8Array(byteLengthOf(dtype, elementCount(regionShape(common))))
            yield* file.readRegion(name, local, bytes)
            scatter(bitsPerElement(dtype), common, bytes, region, into)
          }
        })
    }
  })

const bitsPerElement = (dtype: Parameters<typeof byteLengthOf>[0]): number => byteLengthOf(dtype, 8)

const exists = (file: string): Effect.Effect<boolean> =>
  Effect.orElseSucceed(
    Effect.map(
      Effect.tryPromise(() => stat(file)),
      (found) => found.isFile()
    ),
    () => false
  )

/** Opens a file, a folder of a plain checkpoint, or a folder with a manifest; closed by the scope. */
export const openModel = Effect.fn("openModel")(function* (
  target: string
): Effect.fn.Return<Model, CheckpointError | ModelError, Scope.Scope> {
  const manifestFile = path.join(target, manifestFileName)
  if (yield* exists(manifestFile)) return yield* openSharded(target, yield* readManifest(manifestFile))
  const checkpoint = yield* openCheckpoint(target)
  return {
    path: target,
    tensors: [...checkpoint.tensors].map(([name, { dtype, shape }]) => ({ name, dtype, shape })),
    metadata: checkpoint.metadata,
    sharded: undefined,
    digestOf: () => undefined,
    checkFiles: Effect.void,
    readRegion: checkpoint.readRegion
  }
})
