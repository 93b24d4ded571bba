// SPDX-License-Identifier: Apache-2.0
/**
 * Opens whatever holds a model: a file, a folder of a plain checkpoint, a folder with a manifest, shapes to make up.
 */
import { stat } from "node:fs/promises"
import * as path from "node:path"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { CheckpointError } from "./checkpoint/CheckpointError.ts"
import { type InputOptions, openInput } from "./inputs/openInput.ts"
import { manifestFileName, readManifest } from "./Manifest.ts"
import type { Model } from "./Model.ts"
import type { ModelError } from "./ModelError.ts"
import { openSharded } from "./ShardedModel.ts"
import { openSynthetic, syntheticPrefix } from "./SyntheticModel.ts"

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

/**
 * Opens a file or folder in any format that `openInput` reads, a folder with a manifest, or `synthetic:SHAPES`; closed by
 * the scope.
 */
export const openModel = Effect.fn("openModel")(function* (
  target: string,
  options: InputOptions = {}
): Effect.fn.Return<Model, CheckpointError | ModelError, Scope.Scope> {
  if (target.startsWith(syntheticPrefix)) return yield* openSynthetic(target)
  const manifestFile = path.join(target, manifestFileName)
  if (yield* exists(manifestFile)) return yield* openSharded(target, yield* readManifest(manifestFile))
  const { checkpoint, config, configText } = yield* openInput(target, options)
  return {
    path: target,
    tensors: [...checkpoint.tensors].map(([name, { dtype, shape }]) => ({ name, dtype, shape })),
    metadata: checkpoint.metadata,
    sharded: undefined,
    config,
    ...(configText === undefined ? {} : { configText }),
    ...(checkpoint.stored === undefined ? {} : { stored: checkpoint.stored }),
    ...(checkpoint.absent === undefined ? {} : { absent: checkpoint.absent }),
    digestOf: () => undefined,
    checkFiles: Effect.void,
    files: checkpoint.files,
    readRegion: checkpoint.readRegion
  }
})
