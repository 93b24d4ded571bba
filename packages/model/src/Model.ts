// SPDX-License-Identifier: Apache-2.0
/**
 * A model, whole or in shards: names, types, shapes, and reads of any region. What holds it does not matter to those who
 * read it.
 */
import type { Region, Shape } from "@tensorferry/core/base/Region"
import type * as Effect from "effect/Effect"
import type { Cutting } from "./Cutting.ts"
import type { CheckpointError } from "./checkpoint/CheckpointError.ts"
import type { StoredTensors } from "./checkpoint/CheckpointIndex.ts"
import type { SeenFiles } from "./checkpoint/FileCache.ts"
import type { ModelTensor, ParallelConfig, Piece } from "./layout/ModelLayout.ts"
import type { ModelError } from "./ModelError.ts"
import type { ModelConfig } from "./structure/ModelConfig.ts"

/** An open model. Reads fail with what is wrong with its files. */
export interface Model {
  /** The file or folder, for messages. */
  readonly path: string
  /** In the order of the checkpoint. */
  readonly tensors: ReadonlyArray<ModelTensor>
  /** What the files say beside tensors, as texts by name. */
  readonly metadata: ReadonlyMap<string, string>
  /** How the files are sharded, where a manifest says so. */
  readonly sharded: { readonly layout: ParallelConfig; readonly rules: Cutting } | undefined
  /** The model's configuration where it comes with the tensors, not in a file beside them. */
  readonly config: ModelConfig | undefined
  /** A config.json for the output, where the format has its own in other words. */
  readonly configText?: string
  /** Another checkpoint of the same model, whose small files are this one's where its own folder has none. */
  readonly like?: string
  /** Names that the model has elsewhere: its index lists them in files that are not here, and they were not asked for. */
  readonly absent?: ReadonlyArray<string>
  /** SHA-256 that a manifest states of exactly these pieces in exactly this shape. */
  readonly digestOf: (name: string, shape: Shape, pieces: ReadonlyArray<Piece>) => string | undefined
  /** Compares every file of a sharded model with its digests, replicas too; fails with the first that was changed. */
  readonly checkFiles: Effect.Effect<void, CheckpointError | ModelError>
  /** The files that were read so far; none where the tensors are made up. */
  readonly files: () => SeenFiles
  /** Where tensors lie in files, as far as they lie there dense and as they are read. */
  readonly stored?: StoredTensors<CheckpointError | ModelError>
  /** Fills `into` with the dense row-major bytes of a region of the whole tensor. */
  readonly readRegion: (
    name: string,
    region: Region,
    into: Uint8Array
  ) => Effect.Effect<void, CheckpointError | ModelError>
}
