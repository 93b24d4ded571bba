// SPDX-License-Identifier: Apache-2.0
/**
 * Packs a sampled batch: copies the rows that seed and tick pick out of a ring's snapshot, one behind the other.
 *
 * Invariants: every packed row is whole. The rows are those of `drawRows` over the snapshot's range; only rows that the
 * writer overwrote during the copy are drawn again, from what is left of the same snapshot, and the answer tells how many
 * those were. A large batch is copied in pieces between which other work of the thread runs.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { fence, type ReplaySnapshot, ringFailure, ringPositions, snapshotAt } from "./ReplayRing.ts"
import type { ReplayRingError } from "./ReplayRingError.ts"
import type { ReplayRing } from "./ReplayRingHeader.ts"
import { type RowDraws, rowDraws } from "./ReplaySampling.ts"

/** Bytes between two looks at whether rows were overwritten, and between two yields. */
const pieceBytes = 2 ** 20
/** Rows up to this length are copied word by word: a call per row would take longer. */
const shortRowBytes = 256
/** Rounds of drawing overwritten rows again before the ring counts as too fast. */
const mostRounds = 16

/** The rows of the ring from which a batch was drawn. */
export interface SampledRows extends ReplaySnapshot {
  /** Rows that were overwritten while they were copied, and drawn again. */
  readonly redrawn: number
}

/** One batch to pack. Equal seed, tick and snapshot draw equal rows. */
export interface PackInput {
  readonly ring: ReplayRing
  readonly seed: number
  readonly tick: number
  readonly rows: number
  /** Where the rows go: `rows` times the ring's row length. */
  readonly into: Uint8Array
}

/** Copies rows, given by their slots in the ring, to rows of the batch. */
const copyRows = ({ ring, into }: PackInput, slots: Uint32Array, at: ArrayLike<number>, from: number, to: number) => {
  const { data, layout } = ring
  const { rowBytes } = layout
  if (rowBytes > shortRowBytes || into.byteOffset % 8 !== 0) {
    for (let k = from; k < to; k++) {
      const start = slots[k]! * rowBytes
      into.set(data.subarray(start, start + rowBytes), at[k]! * rowBytes)
    }
    return
  }
  const words = rowBytes / 8
  const source = new BigUint64Array(data.buffer, data.byteOffset, data.byteLength / 8)
  const target = new BigUint64Array(into.buffer, into.byteOffset, into.byteLength >> 3)
  for (let k = from; k < to; k++) {
    let read = slots[k]! * words
    let write = at[k]! * words
    for (const end = read + words; read < end; ) target[write++] = source[read++]!
  }
}

const beginSnapshot = (ring: ReplayRing): Result.Result<ReplaySnapshot, ReplayRingError> => {
  for (let attempt = 0; ; attempt++) {
    const positions = ringPositions(ring)
    if (Result.isFailure(positions)) return Result.fail(positions.failure)
    const snapshot = snapshotAt(ring, positions.success)
    if (snapshot.end > snapshot.first) return Result.succeed(snapshot)
    if (snapshot.end === 0n) return Result.fail(ringFailure("RingEmpty", "The ring has no complete row yet."))
    // The writer is overwriting all that it has written, or went round between two loads.
    if (attempt === mostRounds) return Result.fail(tooFast(`The writer is overwriting all ${ring.capacity} rows.`))
  }
}

const tooFast = (detail: string): ReplayRingError => ringFailure("Overwritten", detail)

/** The rows of a piece whose slots were touched since the snapshot: their places in the batch. */
const overwrittenRows = (
  ring: ReplayRing,
  first: bigint,
  offsets: Uint32Array,
  at: ReadonlyArray<number> | undefined,
  from: number,
  to: number,
  lost: Array<number>
): Result.Result<void, ReplayRingError> => {
  fence()
  return Result.map(ringPositions(ring), ({ reserved }) => {
    const gone = reserved - BigInt(ring.capacity) - first
    if (gone <= 0n) return
    const limit = Number(gone)
    for (let k = from; k < to; k++) if (offsets[k]! < limit) lost.push(at === undefined ? k : at[k]!)
  })
}

/** Draws and copies lost rows until none is lost any more. */
const redraw = (
  input: PackInput,
  snapshot: ReplaySnapshot,
  draws: RowDraws,
  lostAtFirst: ReadonlyArray<number>
): Result.Result<number, ReplayRingError> => {
  const { ring } = input
  const range = Number(snapshot.end - snapshot.first)
  const firstSlot = Number(snapshot.first % BigInt(ring.capacity))
  let lost = lostAtFirst
  for (let round = 0; lost.length > 0; round++) {
    const positions = ringPositions(ring)
    if (Result.isFailure(positions)) return Result.fail(positions.failure)
    const gone = positions.success.reserved - BigInt(ring.capacity) - snapshot.first
    const skip = gone > 0n ? Number(gone) : 0
    if (skip >= range || round === mostRounds) {
      return Result.fail(
        tooFast(`${lost.length} of ${input.rows} rows of tick ${input.tick} were overwritten ${round + 1} times.`)
      )
    }
    const offsets = Uint32Array.from(lost, () => skip + draws.next(range - skip))
    const slots = offsets.map((offset) => (firstSlot + offset) % ring.capacity)
    copyRows(input, slots, lost, 0, lost.length)
    const again: Array<number> = []
    const seen = overwrittenRows(ring, snapshot.first, offsets, lost, 0, lost.length, again)
    if (Result.isFailure(seen)) return Result.fail(seen.failure)
    lost = again
  }
  return Result.succeed(lostAtFirst.length)
}

/** Packs a batch. Fails with `RingEmpty`, `Overwritten`, `RingTorn`, `RingFreed` or `InvalidRequest`. */
export const packRows = Effect.fnUntraced(function* (input: PackInput): Effect.fn.Return<SampledRows, ReplayRingError> {
  const { ring, seed, tick, rows, into } = input
  const { rowBytes } = ring.layout
  const isNatural = [seed, tick, rows].every((value) => Number.isSafeInteger(value) && value >= 0)
  if (!isNatural || rows * rowBytes !== into.byteLength) {
    return yield* ringFailure(
      "InvalidRequest",
      `${rows} rows of ${rowBytes} bytes for tick ${tick} and seed ${seed} do not fill ${into.byteLength} bytes.`
    )
  }
  const snapshot = yield* Effect.fromResult(beginSnapshot(ring))
  const range = Number(snapshot.end - snapshot.first)
  const firstSlot = Number(snapshot.first % BigInt(ring.capacity))
  const draws = rowDraws(seed, tick)
  const pieceRows = Math.max(1, Math.floor(pieceBytes / rowBytes))
  const offsets = new Uint32Array(rows)
  const slots = new Uint32Array(rows)
  const places = new Uint32Array(rows)
  for (let row = 0; row < rows; row++) {
    const offset = draws.next(range)
    offsets[row] = offset
    slots[row] = (firstSlot + offset) % ring.capacity
    places[row] = row
  }
  const lost: Array<number> = []
  for (let from = 0; from < rows; from += pieceRows) {
    if (from > 0) yield* Effect.yieldNow
    const to = Math.min(rows, from + pieceRows)
    // The ring may have been freed while other work ran.
    yield* Effect.fromResult(ringPositions(ring))
    if (into.byteLength === 0) return yield* ringFailure("InvalidRequest", "The memory of the batch was freed.")
    copyRows(input, slots, places, from, to)
    yield* Effect.fromResult(overwrittenRows(ring, snapshot.first, offsets, undefined, from, to, lost))
  }
  const redrawn = yield* Effect.fromResult(redraw(input, snapshot, draws, lost))
  return { ...snapshot, redrawn }
})
