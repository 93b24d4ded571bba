// SPDX-License-Identifier: Apache-2.0
/**
 * Keeps a bounded number of files of a checkpoint open.
 *
 * Invariant: at most `limit` files are open, plus those that more than `limit` readers use at the same moment; a file in
 * use is never closed. All are closed by the scope of the cache.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type { CheckpointError } from "./CheckpointError.ts"
import { replaced } from "./FileAccess.ts"
import { openSafetensors, type SafetensorsFile } from "./Safetensors.ts"

type Seen = Pick<SafetensorsFile, "identity" | "headerDigest">

/** By path, what names a file and its contents. */
export type SeenFiles = ReadonlyMap<string, Seen>

interface Entry<File> {
  readonly file: File
  readonly scope: Scope.Closeable
  users: number
}

/** Open files of a checkpoint, of which only so many are open at once. */
export interface FileCache<File = SafetensorsFile> {
  /** Uses the file at `path`, opened if it is not open. */
  readonly use: <A, E, R>(
    path: string,
    body: (file: File) => Effect.Effect<A, E, R>
  ) => Effect.Effect<A, E | CheckpointError, R>
  /** How many are open now. */
  readonly openCount: () => number
  /** What was read so far, by path: one file each, for a file that is not the same when it is opened again is refused. */
  readonly seen: () => SeenFiles
}

/**
 * An empty cache of files that `open` opens. It closes the file that was used longest ago to make room; the scope's end
 * closes all.
 */
export const makeCacheOf = <File extends Seen>(
  limit: number,
  open: (path: string) => Effect.Effect<File, CheckpointError, Scope.Scope>
): Effect.Effect<FileCache<File>, never, Scope.Scope> =>
  Effect.gen(function* () {
    const cacheScope = yield* Effect.scope
    // Least recently used first: a map keeps the order of insertion.
    const entries = new Map<string, Entry<File>>()
    const seen = new Map<string, Seen>()
    const opening = yield* Semaphore.make(1)

    const makeRoom = Effect.suspend(() => {
      const idle = entries.size < limit ? undefined : [...entries].find(([, entry]) => entry.users === 0)
      if (idle === undefined) return Effect.void
      entries.delete(idle[0])
      return Scope.close(idle[1].scope, Exit.void)
    })

    const acquire = (path: string): Effect.Effect<Entry<File>, CheckpointError> =>
      Semaphore.withPermit(
        opening,
        Effect.gen(function* () {
          let entry = entries.get(path)
          if (entry === undefined) {
            yield* makeRoom
            const scope = yield* Scope.fork(cacheScope)
            const file = yield* Effect.onError(Scope.provide(open(path), scope), (cause) =>
              Scope.close(scope, Exit.failCause(cause))
            )
            const { identity, headerDigest } = file
            const before = seen.get(path)
            if (before !== undefined && before.identity !== identity) {
              yield* Scope.close(scope, Exit.void)
              return yield* replaced(path)
            }
            seen.set(path, { identity, headerDigest })
            entry = { file, scope, users: 0 }
          }
          entries.delete(path)
          entries.set(path, entry)
          entry.users += 1
          return entry
        })
      )

    return {
      use: (path, body) =>
        Effect.acquireUseRelease(
          acquire(path),
          (entry) => body(entry.file),
          (entry) =>
            Effect.sync(() => {
              entry.users -= 1
            })
        ),
      openCount: () => entries.size,
      seen: () => seen
    }
  })

/** An empty cache of safetensors files. */
export const makeFileCache = (limit: number): Effect.Effect<FileCache, never, Scope.Scope> =>
  makeCacheOf(limit, openSafetensors)
