// SPDX-License-Identifier: Apache-2.0
/**
 * A ring of packed rows in memory that processes share: one writer appends, any number of readers take samples.
 *
 * Contract
 * - Row `r` is the r-th ever written; positions only grow. `[first, end)` of a snapshot are rows that were complete and
 *   not being overwritten when it was taken.
 * - The writer states in `reserved` how far it is going to write *before* it touches the rows, and in `written` how far it
 *   is *after* all their bytes are in place. A reader believes rows below `written`, copies them, and then looks at
 *   `reserved` again: a row at or above `reserved - capacity` was not touched meanwhile; others are drawn again. So rows
 *   are never torn, whatever the processes do in between and however the ring wraps.
 * - One writer: it claims the ring by a compare-and-swap of its process into the header. A second one fails with
 *   `OwnedByOther` while the first runs. A dead writer's ring can be claimed; rows that it had begun and not completed
 *   stay unreadable until they are overwritten.
 * - A reader needs no right to write: it only loads from the header, so a copy-on-write mapping is enough.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type ReplayRingError, type ReplayRingReason, replayRingError } from "./ReplayRingError.ts"
import { ownerWord, type ReplayRing, reservedWord, writtenWord } from "./ReplayRingHeader.ts"
import { isRunning, pidOf, processWord } from "./ReplayRingOwner.ts"

export { createReplayRing, openReplayRing, type ReplayRing, replayRingBytes } from "./ReplayRingHeader.ts"

/** The rows that are readable at one moment. */
export interface ReplaySnapshot {
  /** Oldest row. */
  readonly first: bigint
  /** One behind the newest. */
  readonly end: bigint
}

/** How far the writer is. */
export interface RingPositions {
  readonly reserved: bigint
  readonly written: bigint
}

const remedies: Partial<Record<ReplayRingReason["_tag"], string>> = {
  RingFreed: "Keep the scope of the ring's memory open while the ring is used.",
  RingTorn: "Let only the claimed writer write to the ring's memory, and make a new ring.",
  OwnedByOther: "End that writer, or make a ring for each writer.",
  NotOwner: "Claim the ring again.",
  InvalidRequest: "Append whole rows; commit what was begun before more is begun."
}

/** Makes the error of a ring. */
export const ringFailure = (tag: ReplayRingReason["_tag"], detail: string): ReplayRingError =>
  replayRingError(tag, { detail, remedy: remedies[tag] ?? "" })

const fenceWord = new Int32Array(1)

/**
 * Keeps loads and stores of row bytes on their side of the header's atomics. A store and a load that are both sequentially
 * consistent order everything before the one against everything behind the other, also on processors that let plain
 * accesses pass a single atomic.
 */
export const fence = (): void => {
  Atomics.store(fenceWord, 0, 0)
  Atomics.load(fenceWord, 0)
}

/** Loads the positions; fails where they cannot be those of a ring. */
export const ringPositions = (ring: ReplayRing): Result.Result<RingPositions, ReplayRingError> => {
  if (ring.storage.isFreed()) return Result.fail(ringFailure("RingFreed", "The ring's memory was freed."))
  // In this order `written` may lag behind, which only hides the newest rows.
  const written = Atomics.load(ring.words, writtenWord)
  const reserved = Atomics.load(ring.words, reservedWord)
  // A writer may go round the ring any number of times between two loads; one that stands still is at most a round ahead.
  const isAhead = reserved > written + BigInt(ring.capacity) && Atomics.load(ring.words, writtenWord) === written
  if (written < ring.seen.written || reserved < written || isAhead) {
    const detail = `The ring has ${written} rows written and ${reserved} begun, after ${ring.seen.written} were written.`
    return Result.fail(ringFailure("RingTorn", detail))
  }
  ring.seen.written = written
  return Result.succeed({ reserved, written })
}

/** The rows that are readable where the ring has these positions. */
export const snapshotAt = (ring: ReplayRing, { reserved, written }: RingPositions): ReplaySnapshot => {
  const oldest = reserved - BigInt(ring.capacity)
  const first = oldest > 0n ? oldest : 0n
  return { first: first < written ? first : written, end: written }
}

/** The rows that can be read now. */
export const snapshotOf = (ring: ReplayRing): Effect.Effect<ReplaySnapshot, ReplayRingError> =>
  Effect.suspend(() => Effect.map(Effect.fromResult(ringPositions(ring)), (positions) => snapshotAt(ring, positions)))

/** The one writer of a ring. */
export interface ReplayWriter {
  /**
   * Room for so many rows (up to the capacity), in one piece or, where the ring wraps, in two. What lay there stops being
   * readable at once. The same room is given again until it is committed or `abandon`ed.
   */
  readonly begin: (rows: number) => Effect.Effect<ReadonlyArray<Uint8Array>, ReplayRingError>
  /** Makes the rows begun readable; answers how many were ever written. All their bytes must be in place. */
  readonly commit: Effect.Effect<bigint, ReplayRingError>
  /** Gives up rows that were begun; they stay unreadable until written. */
  readonly abandon: Effect.Effect<void>
  /** Copies packed rows into the ring, any whole number of them. */
  readonly append: (rows: Uint8Array) => Effect.Effect<bigint, ReplayRingError>
}

const claim = (ring: ReplayRing): Result.Result<bigint, ReplayRingError> => {
  if (ring.storage.isFreed()) return Result.fail(ringFailure("RingFreed", "The ring's memory was freed."))
  const own = processWord("self")
  if (own === undefined) return Result.fail(ringFailure("NotOwner", "/proc does not say when this process started."))
  for (;;) {
    const owner = Atomics.load(ring.words, ownerWord)
    if (owner === own || isRunning(owner)) {
      const who = owner === own ? "this process" : `process ${pidOf(owner)}, which runs`
      return Result.fail(ringFailure("OwnedByOther", `The ring has a writer in ${who}.`))
    }
    if (Atomics.compareExchange(ring.words, ownerWord, owner, own) === owner) return Result.succeed(own)
  }
}

const writerOf = (ring: ReplayRing, own: bigint): ReplayWriter => {
  const { capacity, data, layout, words } = ring
  let begun = 0

  const owned = (): Result.Result<RingPositions, ReplayRingError> => {
    const positions = ringPositions(ring)
    if (Result.isFailure(positions) || Atomics.load(words, ownerWord) === own) return positions
    return Result.fail(ringFailure("NotOwner", "Another process writes to the ring, or this writer was closed."))
  }

  const reserve = (rows: number): Result.Result<ReadonlyArray<Uint8Array>, ReplayRingError> => {
    const positions = owned()
    if (Result.isFailure(positions)) return Result.fail(positions.failure)
    if (!Number.isInteger(rows) || rows < 0 || rows > capacity) {
      return Result.fail(ringFailure("InvalidRequest", `${rows} rows cannot be begun in a ring of ${capacity}.`))
    }
    if (begun > 0) return Result.fail(ringFailure("InvalidRequest", `${begun} rows were begun and not committed.`))
    const { reserved, written } = positions.success
    const target = written + BigInt(rows)
    // A writer that died may have begun more than this one does now.
    if (target > reserved) Atomics.store(words, reservedWord, target)
    fence()
    begun = rows
    const from = Number(written % BigInt(capacity))
    const before = Math.min(rows, capacity - from)
    const first = data.subarray(from * layout.rowBytes, (from + before) * layout.rowBytes)
    return Result.succeed(before === rows ? [first] : [first, data.subarray(0, (rows - before) * layout.rowBytes)])
  }

  const publish = (): Result.Result<bigint, ReplayRingError> =>
    Result.map(owned(), ({ written }) => {
      const now = written + BigInt(begun)
      begun = 0
      fence()
      Atomics.store(words, writtenWord, now)
      return now
    })

  const append = (rows: Uint8Array): Result.Result<bigint, ReplayRingError> => {
    const count = rows.byteLength / layout.rowBytes
    if (!Number.isInteger(count)) {
      return Result.fail(
        ringFailure("InvalidRequest", `${rows.byteLength} bytes are not whole rows of ${layout.rowBytes} bytes.`)
      )
    }
    let done = 0
    let end = Result.map(owned(), ({ written }) => written)
    while (done < count && Result.isSuccess(end)) {
      const piece = Math.min(count - done, capacity)
      const spans = reserve(piece)
      if (Result.isFailure(spans)) return Result.fail(spans.failure)
      let at = done * layout.rowBytes
      for (const span of spans.success) {
        span.set(rows.subarray(at, at + span.byteLength))
        at += span.byteLength
      }
      done += piece
      end = publish()
    }
    return end
  }

  return {
    begin: (rows) => Effect.suspend(() => Effect.fromResult(reserve(rows))),
    commit: Effect.suspend(() => Effect.fromResult(publish())),
    abandon: Effect.sync(() => {
      begun = 0
    }),
    append: (rows) => Effect.suspend(() => Effect.fromResult(append(rows)))
  }
}

/** Becomes the ring's writer until the scope ends. The memory must be mapped for writing together. */
export const claimReplayWriter = (ring: ReplayRing): Effect.Effect<ReplayWriter, ReplayRingError, Scope.Scope> =>
  Effect.map(
    Effect.acquireRelease(
      Effect.suspend(() => Effect.fromResult(claim(ring))),
      (own) =>
        Effect.sync(() => {
          if (!ring.storage.isFreed()) Atomics.compareExchange(ring.words, ownerWord, own, 0n)
        })
    ),
    (own) => writerOf(ring, own)
  )
