// SPDX-License-Identifier: Apache-2.0
/**
 * Writes one safetensors file in bounded memory, in two steps: stage under a temporary name, then commit by a rename.
 *
 * Invariant: the final name changes only by a rename of a complete, synchronised file. Whatever ends the scope before
 * that, failure or interruption, takes the temporary file away.
 */
import { randomBytes } from "node:crypto"
import { type FileHandle, open, rename, unlink } from "node:fs/promises"
import { dirname } from "node:path"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, formatShape } from "@tensorferry/core/base/Region"
import { isContiguous, type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type * as Stream from "effect/Stream"
import { type CheckpointError, checkpointError } from "./CheckpointError.ts"
import { syncFolder, systemCall, writeFully } from "./FileAccess.ts"
import { encodeHeader, type TensorDescription } from "./SafetensorsHeader.ts"

/** A tensor to write: its dense row-major bytes, at once or piece by piece. */
export interface TensorSource<E = never, R = never> extends TensorDescription {
  readonly data: Uint8Array | Stream.Stream<Uint8Array, E, R>
}

/** A complete file under a temporary name, removed by the scope unless it was committed. */
export interface StagedFile {
  /** The name that the file gets. */
  readonly path: string
  /** The name that it has until then, in the same folder. */
  readonly temporaryPath: string
  /** Of the whole file. */
  readonly byteLength: number
  /** Gives the file its name, replacing a file of that name. Fails with WriteFailed or DiskFull. Later calls do nothing. */
  readonly commit: Effect.Effect<void, CheckpointError>
}

const wrongByteCount = (file: string, { dtype, name, shape }: TensorDescription, found: string) =>
  checkpointError("TensorInvalid", {
    detail: `${dtype}${formatShape(shape)} has ${byteLengthOf(dtype, elementCount(shape))} bytes, its data ${found}.`,
    remedy: "Give the dense bytes of the tensor.",
    file,
    paramName: name
  })

const writeTensor = <E, R>(
  path: string,
  handle: FileHandle,
  tensor: TensorSource<E, R>,
  position: number
): Effect.Effect<number, CheckpointError | E, R> =>
  Effect.gen(function* () {
    const byteLength = byteLengthOf(tensor.dtype, elementCount(tensor.shape))
    let written = 0
    const append = (bytes: Uint8Array): Effect.Effect<void, CheckpointError> => {
      if (written + bytes.length > byteLength) return Effect.fail(wrongByteCount(path, tensor, "more"))
      const at = position + written
      written += bytes.length
      return writeFully(path, handle, bytes, at)
    }
    if (tensor.data instanceof Uint8Array) yield* append(tensor.data)
    else {
      // Whoever gives a stream has loaded the module; whoever never does need not.
      const { runForEach } = yield* Effect.promise(() => import("effect/Stream"))
      yield* runForEach(tensor.data, append)
    }
    if (written < byteLength) return yield* wrongByteCount(path, tensor, `only ${written}`)
    return position + byteLength
  })

interface TemporaryFile {
  readonly path: string
  readonly handle: FileHandle
  isOpen: boolean
  isCommitted: boolean
}

const makeTemporary = (path: string): Effect.Effect<TemporaryFile, CheckpointError, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.suspend(() => {
      const temporary = `${path}.tmp-${randomBytes(8).toString("hex")}`
      return Effect.map(
        systemCall("WriteFailed", path, "create a file beside it", () => open(temporary, "wx")),
        (handle): TemporaryFile => ({ path: temporary, handle, isOpen: true, isCommitted: false })
      )
    }),
    (temporary) =>
      Effect.gen(function* () {
        if (temporary.isOpen) yield* Effect.ignore(Effect.tryPromise(() => temporary.handle.close()))
        if (!temporary.isCommitted) yield* Effect.ignore(Effect.tryPromise(() => unlink(temporary.path)))
      })
  )

/**
 * Makes complete files out of what `write` writes, under a temporary name. No descriptor stays open, so that any number
 * of files can be staged before the first is committed.
 */
export const stageFile = <E, R>(
  path: string,
  byteLength: number,
  write: (handle: FileHandle) => Effect.Effect<void, CheckpointError | E, R>
): Effect.Effect<StagedFile, CheckpointError | E, R | Scope.Scope> =>
  Effect.gen(function* () {
    const temporary = yield* makeTemporary(path)
    yield* write(temporary.handle)
    yield* systemCall("WriteFailed", path, "synchronise the file", () => temporary.handle.sync())
    yield* systemCall("WriteFailed", path, "close the file", () => {
      temporary.isOpen = false
      return temporary.handle.close()
    })
    const commit = Effect.suspend(() =>
      temporary.isCommitted
        ? Effect.void
        : Effect.andThen(
            systemCall("WriteFailed", path, "give the file its name", async () => {
              await rename(temporary.path, path)
              temporary.isCommitted = true
            }),
            syncFolder(dirname(path))
          )
    )
    return { path, temporaryPath: temporary.path, byteLength, commit: Effect.uninterruptible(commit) }
  })

/**
 * Writes `tensors` under a temporary name beside `path`. Fails with TensorInvalid (names, shapes, byte counts),
 * InvalidRequest, DiskFull, WriteFailed, or as the data does.
 */
export const stageSafetensors = <E = never, R = never>(
  path: string,
  tensors: ReadonlyArray<TensorSource<E, R>>,
  metadata: ReadonlyMap<string, string> = new Map()
): Effect.Effect<StagedFile, CheckpointError | E, R | Scope.Scope> =>
  Effect.gen(function* () {
    const header = yield* Effect.fromResult(encodeHeader(tensors, metadata, path))
    return yield* stageFile(path, header.fileSize, (handle) =>
      Effect.gen(function* () {
        yield* writeFully(path, handle, header.bytes, 0)
        let position = header.bytes.length
        for (const tensor of header.tensors) position = yield* writeTensor(path, handle, tensor, position)
      })
    )
  })

/** Writes `tensors` to `path` in one step. Nothing changes under that name unless all of it succeeds. */
export const writeSafetensors = <E = never, R = never>(
  path: string,
  tensors: ReadonlyArray<TensorSource<E, R>>,
  metadata?: ReadonlyMap<string, string>
): Effect.Effect<void, CheckpointError | E, Exclude<R, Scope.Scope>> =>
  Effect.scoped(Effect.flatMap(stageSafetensors(path, tensors, metadata), (staged) => staged.commit))

/**
 * A host tensor as a source. Only the elements of the view are written, never the rest of its storage. Views that are not
 * dense are refused, because packing them here would double memory behind the caller's back.
 */
export const tensorSource = (name: string, tensor: Tensor): Result.Result<TensorSource, CheckpointError> => {
  const data = tensorBytes(tensor)
  if (data !== undefined) return Result.succeed({ name, dtype: tensor.dtype, shape: tensor.shape, data })
  const [detail, remedy] = tensor.storage.isFreed()
    ? ["The storage was freed.", "Keep the scope of the tensor open while it is written."]
    : isContiguous(tensor)
      ? ["The host cannot see the bytes of this device.", "Copy it into a host tensor first."]
      : [
          `The view has strides [${tensor.strides.join(",")}] and is not dense.`,
          "Allocate a dense tensor and copy the view into it with TensorEngine.copy, then write that."
        ]
  return Result.fail(checkpointError("TensorInvalid", { detail, remedy, paramName: name }))
}
