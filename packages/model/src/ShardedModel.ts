// SPDX-License-Identifier: Apache-2.0
/**
 * A model in the shards that `reshard` writes: any region of the whole is put together from the pieces that the files
 * hold. A bounded number of files is open at a time.
 */
import { createHash } from "node:crypto"
import * as path from "node:path"
import { bitsOf, byteLengthOf } from "@tensorferry/core/base/DType"
import {
  elementCount,
  equalRegions,
  equalShapes,
  fullRegion,
  intersect,
  type Region,
  regionShape,
  type Shape
} from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { boundedRegions } from "./BoundedRegions.ts"
import type { CheckpointError } from "./checkpoint/CheckpointError.ts"
import type { StoredPlace } from "./checkpoint/CheckpointIndex.ts"
import { makeFileCache } from "./checkpoint/FileCache.ts"
import { regionRuns } from "./checkpoint/RegionRuns.ts"
import type { Piece } from "./layout/ModelLayout.ts"
import { checkShardFile, type Manifest, type ShardTensor } from "./Manifest.ts"
import type { Model } from "./Model.ts"
import { type ModelError, modelError } from "./ModelError.ts"
import { asOneRun, scatter } from "./regionBytes.ts"
import { addShift } from "./Shift.ts"

/** Files that are open at a time. */
const openFileLimit = 64

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

/** A region of a piece, counted from the piece's start and moved to another place. */
export const moveRegion = (region: Region, from: Region, to: Region): Region =>
  region.map(([start, stop], dim) => {
    const step = to[dim]![0] - from[dim]![0]
    return [start + step, stop + step] as const
  })

const equalPieces = (a: ReadonlyArray<Piece>, b: ReadonlyArray<Piece>): boolean =>
  a.length === b.length &&
  a.every((piece, at) => equalRegions(piece.local, b[at]!.local) && equalRegions(piece.global, b[at]!.global))

interface Held {
  readonly file: string
  readonly entry: ShardTensor
}

/** Opens the files that the manifest names and checks them against it. Fails with InvalidManifest where they differ. */
export const openSharded = (
  folder: string,
  manifest: Manifest
): Effect.Effect<Model, CheckpointError | ModelError, Scope.Scope> =>
  Effect.gen(function* () {
    const cache = yield* makeFileCache(openFileLimit)
    const held = new Map<string, Array<Held>>(manifest.tensors.map(({ name }) => [name, []]))
    const starts = new Map<string, number>()
    for (const shard of manifest.shards) {
      const file = path.join(folder, shard.file)
      yield* cache.use(file, (open) => {
        for (const { byteOffset, name } of open.tensors.values()) starts.set(`${file} ${name}`, byteOffset)
        return checkShardFile(manifest, shard, file, open.tensors)
      })
      for (const entry of shard.tensors) held.get(entry.name)!.push({ file, entry })
    }
    // Replicas hold equal regions: reads take the first.
    const sources = new Map(
      [...held].map(([name, all]) => {
        const pieces = new Map(
          all
            .flatMap(({ file, entry }) =>
              entry.pieces.map((piece) => [JSON.stringify(piece.global), { file, piece, shift: entry.shift }] as const)
            )
            .reverse()
        )
        return [name, [...pieces.values()]] as const
      })
    )
    const dtypes = new Map(manifest.tensors.map((tensor) => [tensor.name, tensor.dtype]))

    const shapes = new Map(manifest.tensors.map(({ name, shape }) => [name, shape]))

    /** Tensors that one file has whole and as they are. */
    const placeOf = (name: string): StoredPlace | undefined => {
      const [only, ...others] = sources.get(name) ?? []
      const shape = shapes.get(name)
      if (only === undefined || shape === undefined || others.length > 0 || only.shift !== undefined) return undefined
      const whole = fullRegion(shape)
      const start = starts.get(`${only.file} ${name}`)
      const { global, local } = only.piece
      return start !== undefined && equalRegions(global, whole) && equalRegions(local, whole)
        ? { file: only.file, start, shape }
        : undefined
    }

    const readRegion: Model["readRegion"] = Effect.fnUntraced(function* (name, region, into) {
      const dtype = dtypes.get(name)
      if (dtype === undefined) {
        return yield* modelError("InvalidManifest", {
          file: folder,
          paramName: name,
          detail: "No such tensor.",
          remedy: "Name a tensor of the model."
        })
      }
      const origin = region.map(() => [0, 0] as const)
      for (const { file, piece, shift } of sources.get(name)!) {
        const common = intersect(region, piece.global)
        if (common === undefined) continue
        const within = moveRegion(common, region, origin)
        const runs = regionRuns(regionShape(region), within, bitsOf(dtype))
        if (Result.isFailure(runs)) {
          return yield* modelError("InvalidManifest", {
            file,
            paramName: name,
            detail: `A piece begins or ends inside a byte: ${runs.failure}.`,
            remedy: "Reshard the original checkpoint again."
          })
        }
        const direct = asOneRun(runs.success, into)
        const bytes = direct ?? new Uint8Array(byteLengthOf(dtype, elementCount(regionShape(common))))
        const local = moveRegion(common, piece.global, piece.local)
        yield* cache.use(file, (open) => open.readRegion(name, local, bytes))
        if (shift !== undefined) addShift(dtype, bytes, shift, local[0]![0])
        if (direct === undefined) scatter(runs.success, bytes, into)
      }
    })

    const checkHeld = Effect.fnUntraced(function* (name: string, { file, entry }: Held) {
      const hash = createHash("sha256")
      for (const part of boundedRegions(dtypes.get(name)!, fullRegion(entry.shape))) {
        const bytes = new Uint8Array(part.end - part.start)
        yield* cache.use(file, (open) => open.readRegion(name, part.region, bytes))
        hash.update(bytes)
      }
      yield* checkDigest(file, name, entry.digest, hash.digest("hex"))
    })

    const all = [...held].flatMap(([name, entries]) => entries.map((one) => [name, one] as const))
    return {
      path: folder,
      tensors: manifest.tensors,
      metadata: new Map(Object.entries(manifest.metadata)),
      sharded: { layout: manifest.layout, rules: manifest.rules },
      config: undefined,
      digestOf: (name, shape: Shape, pieces) =>
        held
          .get(name)
          ?.find(
            ({ entry }) =>
              entry.shift === undefined && equalShapes(entry.shape, shape) && equalPieces(entry.pieces, pieces)
          )?.entry.digest,
      files: cache.seen,
      checkFiles: Effect.forEach(all, ([name, one]) => checkHeld(name, one), { discard: true }),
      stored: {
        readRegion,
        placeOf,
        readBytes: (file, start, into) => cache.use(file, (open) => open.readBytes(start, into))
      },
      readRegion
    }
  })
