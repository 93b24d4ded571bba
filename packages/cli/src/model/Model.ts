/**
 * A model, whole or in shards: names, types, shapes, and reads of any region. What holds it does not matter to those who
 * read it.
 */
import { stat } from "node:fs/promises"
import * as path from "node:path"
import type { Region, Shape } from "@tensorferry/core/base/Region"
import type { CheckpointError } from "@tensorferry/core/checkpoint/CheckpointError"
import { openCheckpoint } from "@tensorferry/core/checkpoint/CheckpointIndex"
import type { ModelConfig } from "@tensorferry/core/layout/ModelFamilies"
import type { ModelTensor, ParallelConfig, Piece } from "@tensorferry/core/layout/ModelLayout"
import type { ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { manifestFileName, readManifest } from "./Manifest.ts"
import type { ModelError } from "./ModelError.ts"
import { openSharded } from "./ShardedModel.ts"
import { openSynthetic, syntheticPrefix } from "./SyntheticModel.ts"

export interface Model {
  readonly path: string
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly metadata: ReadonlyMap<string, string>
  /** How the files are sharded, where a manifest says so. */
  readonly sharded: { readonly layout: ParallelConfig; readonly rules: ShardingRules } | undefined
  /** The model's configuration where it comes with the tensors, not in a file beside them. */
  readonly config: ModelConfig | undefined
  /** SHA-256 that a manifest states of exactly these pieces in exactly this shape. */
  readonly digestOf: (name: string, shape: Shape, pieces: ReadonlyArray<Piece>) => string | undefined
  /** Compares every file of a sharded model with its digests, replicas too; fails with the first that was changed. */
  readonly checkFiles: Effect.Effect<void, CheckpointError | ModelError>
  /** Fills `into` with the dense row-major bytes of a region of the whole tensor. */
  readonly readRegion: (
    name: string,
    region: Region,
    into: Uint8Array
  ) => Effect.Effect<void, CheckpointError | ModelError>
}

/** What the user named, whatever the current folder. */
export const resolveModel = (target: string): string =>
  target.startsWith(syntheticPrefix)
    ? `${syntheticPrefix}${path.resolve(target.slice(syntheticPrefix.length))}`
    : path.resolve(target)

const exists = (file: string): Effect.Effect<boolean> =>
  Effect.orElseSucceed(
    Effect.map(
      Effect.tryPromise(() => stat(file)),
      (found) => found.isFile()
    ),
    () => false
  )

/** Opens a file, a folder of a plain checkpoint, a folder with a manifest, or `synthetic:SHAPES`; closed by the scope. */
export const openModel = Effect.fn("openModel")(function* (
  target: string
): Effect.fn.Return<Model, CheckpointError | ModelError, Scope.Scope> {
  if (target.startsWith(syntheticPrefix)) return yield* openSynthetic(target)
  const manifestFile = path.join(target, manifestFileName)
  if (yield* exists(manifestFile)) return yield* openSharded(target, yield* readManifest(manifestFile))
  const checkpoint = yield* openCheckpoint(target)
  return {
    path: target,
    tensors: [...checkpoint.tensors].map(([name, { dtype, shape }]) => ({ name, dtype, shape })),
    metadata: checkpoint.metadata,
    sharded: undefined,
    config: undefined,
    digestOf: () => undefined,
    checkFiles: Effect.void,
    readRegion: checkpoint.readRegion
  }
})
