// SPDX-License-Identifier: Apache-2.0
/**
 * Writes the last version of a chain of deltas: over one file, or into a new folder.
 *
 * Invariant: what has the name of the output is the old version or the new one, whole and of the stated digest, whenever the
 * writer stops. Memory holds one tensor at a time.
 */
import { mkdir, rm } from "node:fs/promises"
import * as path from "node:path"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import { stageCheckpoint } from "../checkpoint/CheckpointWriter.ts"
import { checkRoom, systemCall } from "../checkpoint/FileAccess.ts"
import { stageSafetensors, type TensorSource } from "../checkpoint/SafetensorsWriter.ts"
import type { ModelError } from "../ModelError.ts"
import { publishFolder } from "../names/files/NamedFiles.ts"
import type { Companion } from "../outputs/companions.ts"
import { checkFilesUnchanged } from "../SameFiles.ts"
import type { DeltaChain } from "./applyDeltas.ts"

/** A folder that is written. */
export interface ChainFolder {
  /** The final folder, and the one that is written first. */
  readonly folder: string
  readonly temporary: string
  readonly maxFileBytes?: number
  readonly companions: ReadonlyArray<Companion>
}

const sourcesOf = ({ base, readTensor }: DeltaChain): ReadonlyArray<TensorSource<CheckpointError | ModelError>> =>
  base.tensors.map((tensor) => ({ ...tensor, data: Stream.fromEffect(Effect.suspend(() => readTensor(tensor))) }))

/** DiskFull, before a tensor is read, where the result does not fit beside what is there. */
const checkChainRoom = ({ base }: DeltaChain, target: string): Effect.Effect<void, CheckpointError> =>
  checkRoom(
    path.dirname(target),
    base.tensors.reduce((sum, { dtype, shape }) => sum + byteLengthOf(dtype, elementCount(shape)), 0)
  )

/** Writes one safetensors file, in the place of one of that name, which may be the base. */
export const writeChainFile = (chain: DeltaChain, file: string): Effect.Effect<void, CheckpointError | ModelError> =>
  Effect.scoped(
    Effect.gen(function* () {
      yield* checkChainRoom(chain, file)
      const staged = yield* stageSafetensors(file, sourcesOf(chain), chain.base.metadata)
      yield* checkFilesUnchanged(chain.base)
      yield* staged.commit
    })
  )

/** Other processes may look into the folder when it is removed. */
const removal = { recursive: true, force: true, maxRetries: 20, retryDelay: 50 } as const

/** Writes a published checkpoint into a folder that has its name only when all files are in it. */
export const writeChainFolder = (
  chain: DeltaChain,
  out: ChainFolder
): Effect.Effect<void, CheckpointError | ModelError> =>
  Effect.scoped(
    Effect.gen(function* () {
      yield* checkChainRoom(chain, out.temporary)
      yield* Effect.acquireRelease(
        systemCall("WriteFailed", out.temporary, "create the output folder", () =>
          mkdir(out.temporary, { mode: 0o755 })
        ),
        () => Effect.ignore(Effect.tryPromise(() => rm(out.temporary, removal)))
      )
      const staged = yield* stageCheckpoint(out.temporary, sourcesOf(chain), {
        metadata: chain.base.metadata,
        ...(out.maxFileBytes === undefined ? {} : { maxFileBytes: out.maxFileBytes })
      })
      yield* staged.commit
      yield* checkFilesUnchanged(chain.base)
      yield* publishFolder(out, out.companions)
    })
  )
