// SPDX-License-Identifier: Apache-2.0
/**
 * Files for checkpoints: positional reads and writes that are complete or fail, with errors that name the file.
 *
 * Files are never mapped: a mapped file that shrinks kills the process. A started read or write is never abandoned, so
 * that an interrupted caller may free its buffer.
 */
import { type BigIntStats, constants } from "node:fs"
import { type FileHandle, open, statfs } from "node:fs/promises"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { type CheckpointError, type CheckpointReason, checkpointError } from "./CheckpointError.ts"

/** Bytes of one system call, so that interruption waits for no more than this. */
const callBytes = 16 * 1024 * 1024

/** Longest text file that is read whole. */
export const textByteLimit = 100_000_000

const codeOf = (cause: unknown): { readonly code: string; readonly errno?: number } => {
  if (typeof cause !== "object" || cause === null || !("code" in cause)) return { code: String(cause) }
  const errno = "errno" in cause && Number.isInteger(cause.errno) ? { errno: Number(cause.errno) } : {}
  return { code: String(cause.code), ...errno }
}

const noRoom = new Set(["ENOSPC", "EDQUOT", "EFBIG"])

/** Turns a system error into ours. `otherwise` is the reason of codes that have no reason of their own. */
export const systemError = (
  otherwise: "Unreadable" | "WriteFailed",
  file: string,
  action: string,
  cause: unknown
): CheckpointError => {
  const { code, errno } = codeOf(cause)
  const [tag, remedy]: [CheckpointReason["_tag"], string] = noRoom.has(code)
    ? ["DiskFull", "Free space, raise the quota or file size limit, or write elsewhere."]
    : code === "ENOENT" && otherwise === "Unreadable"
      ? ["NotFound", "Check the path."]
      : [otherwise, "Check the path, its owner and its permissions."]
  return checkpointError(tag, {
    detail: `The system could not ${action}: ${code}.`,
    remedy,
    file,
    ...(errno === undefined ? {} : { nativeCode: errno })
  })
}

/** One system call, carried through even when the caller is interrupted. */
export const systemCall = <A>(
  otherwise: "Unreadable" | "WriteFailed",
  file: string,
  action: string,
  call: () => Promise<A>
): Effect.Effect<A, CheckpointError> =>
  Effect.uninterruptible(
    Effect.tryPromise({ try: () => call(), catch: (cause) => systemError(otherwise, file, action, cause) })
  )

/** Bytes that a user may still write into the file system of a folder. */
export const freeBytes = (folder: string): Effect.Effect<number, CheckpointError> =>
  Effect.map(
    systemCall("WriteFailed", folder, "examine the file system", () => statfs(folder)),
    ({ bavail, bsize }) => bavail * bsize
  )

/** DiskFull, with both numbers, where less is free than a folder is about to hold. */
export const checkRoom = (folder: string, needed: number): Effect.Effect<void, CheckpointError> =>
  Effect.flatMap(freeBytes(folder), (free) =>
    needed <= free
      ? Effect.void
      : Effect.fail(
          checkpointError("DiskFull", {
            detail: `What is to be written takes ${needed} bytes, and the file system has ${free} left.`,
            remedy: "Free space, or write elsewhere.",
            file: folder
          })
        )
  )

/** A regular file that is open for reads at any position; the scope that opened it closes it. */
export interface OpenFile {
  readonly path: string
  readonly handle: FileHandle
  /** Bytes when it was opened. */
  readonly size: number
  /** Another file under the same path, or other contents, have another one: inode, bytes and time of the last change. */
  readonly identity: string
}

/** As `OpenFile.identity`. */
export const identityOf = ({ ino, size, mtimeNs }: BigIntStats): string => `${ino} ${size} ${mtimeNs}`

const closeQuietly = (handle: FileHandle) => Effect.ignore(Effect.tryPromise(() => handle.close()))

/** Opens a regular file for reading; other kinds are refused without waiting for a writer, as a pipe would make one do. */
export const openForReading = (path: string): Effect.Effect<OpenFile, CheckpointError, Scope.Scope> =>
  Effect.gen(function* () {
    const handle = yield* Effect.acquireRelease(
      systemCall("Unreadable", path, "open the file", () => open(path, constants.O_RDONLY | constants.O_NONBLOCK)),
      closeQuietly
    )
    const stats = yield* systemCall("Unreadable", path, "examine the file", () => handle.stat({ bigint: true }))
    if (!stats.isFile()) {
      return yield* checkpointError("Unreadable", {
        detail: "This is not a regular file.",
        remedy: "Give a file.",
        file: path
      })
    }
    return { path, handle, size: Number(stats.size), identity: identityOf(stats) }
  })

/** Fails where the file was changed since it was opened. */
export const checkUnchanged = (file: OpenFile): Effect.Effect<void, CheckpointError> =>
  Effect.flatMap(
    systemCall("Unreadable", file.path, "examine the file", () => file.handle.stat({ bigint: true })),
    (stats) =>
      Number(stats.size) !== file.size
        ? truncated(file, `The file had ${file.size} bytes when it was opened and has ${stats.size} now.`)
        : identityOf(stats) === file.identity
          ? Effect.void
          : replaced(file.path)
  )

/** What a reader is told whose file is not the one that was opened first. */
export const replaced = (file: string): Effect.Effect<never, CheckpointError> =>
  Effect.fail(
    checkpointError("Changed", {
      detail: "The file was written or replaced after it was opened.",
      remedy: "Do not change a checkpoint while it is read; open it again.",
      file
    })
  )

const truncated = (file: OpenFile, detail: string) =>
  checkpointError("Truncated", {
    detail,
    remedy: "Do not change a checkpoint while it is read; open it again.",
    file: file.path
  })

/** Fills `into` from `position` on. */
export const readFully = (file: OpenFile, into: Uint8Array, position: number): Effect.Effect<void, CheckpointError> =>
  Effect.gen(function* () {
    let done = 0
    while (done < into.length) {
      const length = Math.min(callBytes, into.length - done)
      const { bytesRead } = yield* systemCall("Unreadable", file.path, "read the file", () =>
        file.handle.read(into, done, length, position + done)
      )
      if (bytesRead === 0)
        return yield* truncated(
          file,
          `The file ends at ${position + done}, bytes up to ${position + into.length} are needed.`
        )
      done += bytesRead
    }
  })

/** Writes all of `bytes` at `position`. */
export const writeFully = (
  path: string,
  handle: FileHandle,
  bytes: Uint8Array,
  position: number
): Effect.Effect<void, CheckpointError> =>
  Effect.gen(function* () {
    let done = 0
    while (done < bytes.length) {
      const length = Math.min(callBytes, bytes.length - done)
      const { bytesWritten } = yield* systemCall("WriteFailed", path, "write the file", () =>
        handle.write(bytes, done, length, position + done)
      )
      done += bytesWritten
    }
  })

/** The whole of a regular file of at most `most` bytes; pipes and devices, which need not end, are refused. */
export const readSmallFile = (path: string, most = textByteLimit): Effect.Effect<Uint8Array, CheckpointError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const file = yield* openForReading(path)
      if (file.size > most) {
        return yield* checkpointError("InvalidIndex", {
          detail: `The file has ${file.size} bytes, at most ${most} are read.`,
          remedy: "Check that this is the file that you mean.",
          file: path
        })
      }
      const bytes = new Uint8Array(file.size)
      yield* readFully(file, bytes, 0)
      return bytes
    })
  )

/** Makes renames in a folder durable. Some file systems have no such operation; then there is nothing to wait for. */
export const syncFolder = (folder: string): Effect.Effect<void> =>
  Effect.ignore(
    Effect.acquireUseRelease(
      Effect.tryPromise(() => open(folder, constants.O_RDONLY)),
      (handle) => Effect.tryPromise(() => handle.sync()),
      closeQuietly
    )
  )
