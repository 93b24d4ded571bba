// SPDX-License-Identifier: Apache-2.0
/**
 * Rows of the cases of rings: each states its number, and all its other bytes follow from that, so a reader can tell which
 * row it has and that it is whole. And what a ring must draw, from the reference.
 */
import { makeRowLayout, type RowLayout } from "@tensorferry/core/replay/ReplayRowLayout"
import { drawRows } from "@tensorferry/core/replay/ReplaySampling"
import { drawWindows } from "@tensorferry/replay/drawWindows"
import { RingModel } from "@tensorferry/replay/RingModel"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type CaseFailure, check, checkEqual, failed } from "../conformance/Case.ts"
import type { RingBatch, RingDraw } from "./RingSubject.ts"

/** Columns of every width, one of which ends episodes. */
export const ringLayout: RowLayout = Result.getOrThrow(
  makeRowLayout([
    { name: "row", dtype: "int64", shape: [] },
    { name: "end", dtype: "uint8", shape: [] },
    { name: "mask", dtype: "bool", shape: [5] },
    { name: "empty", dtype: "float32", shape: [0] },
    { name: "half", dtype: "bfloat16", shape: [3] },
    { name: "observation", dtype: "float32", shape: [2, 5] }
  ])
)

/** Episodes of 1 to 11 rows. */
export const isEnd = (row: number): boolean => row % 17 === 3 || row % 11 === 5

const endAt = ringLayout.columns.find(({ name }) => name === "end")!.byteOffset

/** Bytes that belong to a column; rows are padded between and behind them. */
const isUsed = Array.from({ length: ringLayout.rowBytes }, (_, at) =>
  ringLayout.columns.some(({ byteLength, byteOffset }) => at >= byteOffset && at < byteOffset + byteLength)
)

/** Packed rows with these numbers. */
export const ringRows = (numbers: ReadonlyArray<number>): Uint8Array => {
  const { rowBytes } = ringLayout
  const rows = new Uint8Array(numbers.length * rowBytes)
  const view = new DataView(rows.buffer)
  for (const [at, number] of numbers.entries()) {
    for (let byte = 8; byte < rowBytes; byte++) {
      if (isUsed[byte]) rows[at * rowBytes + byte] = (number * 31 + byte * 7 + 1) & 0xff
    }
    view.setBigInt64(at * rowBytes, BigInt(number), true)
    rows[at * rowBytes + endAt] = isEnd(number) ? 1 : 0
  }
  return rows
}

/** Rows from one number on. */
export const ringRowsFrom = (first: number, count: number): Uint8Array =>
  ringRows(Array.from({ length: count }, (_, at) => first + at))

/** A model of a ring that holds these rows with these weights. */
export const modelWith = (
  capacity: number,
  { end, first }: Pick<RingBatch, "end" | "first">,
  weightOf: (row: number) => number = () => 1
): RingModel => {
  const model = new RingModel(capacity)
  // Rows that are gone count too: they fix which slot a row has.
  for (let row = 0; row < end; row++) {
    model.reserve(row, 1)
    model.commit(row, 1, row < first ? 0 : weightOf(row))
  }
  // Rows that others were about to overwrite.
  if (first > Math.max(0, end - capacity)) model.reserve(end, first - (end - capacity))
  return model
}

/** The rows of the windows of a batch, the last of an episode in place of those behind it. */
export const windowRows = (positions: ReadonlyArray<number>, lengths: ReadonlyArray<number>, window: number) =>
  positions.flatMap((position, at) =>
    Array.from({ length: window }, (_, by) => position + Math.min(by, lengths[at]! - 1))
  )

/** The batch is, byte by byte, what seed, tick and the rows from `first` to `end` determine. */
export const expectBatch = (
  what: string,
  capacity: number,
  draw: RingDraw,
  batch: RingBatch,
  weightOf?: (row: number) => number
): Effect.Effect<void, CaseFailure> =>
  Effect.gen(function* () {
    const { count, draws = "uniform", episodes = "cross", window = 1 } = draw
    const { end, first } = batch
    yield* checkEqual(`${what}: rows drawn again`, batch.redrawn, 0)
    yield* check(first >= end - capacity && first < end, () => `${what}: drawn from rows ${first} to ${end}.`)
    const asked = { ...draw, draws, episodes, window }
    const isPlain = draws === "uniform" && window === 1
    // The reference of the ring on the host, where that is what is drawn; so the two references are compared as well.
    const expected = isPlain
      ? {
          positions: Array.from(drawRows({ ...draw, rows: count, range: end - first }), (offset) => first + offset),
          lengths: new Array<number>(count).fill(1)
        }
      : yield* Effect.suspend(() => {
          const { drawn, lengths, positions } = drawWindows(modelWith(capacity, batch, weightOf), asked, isEnd)
          return drawn === count
            ? Effect.succeed({ positions: Array.from(positions, Number), lengths: [...lengths] })
            : failed(`${what}: the reference draws ${drawn} of ${count} windows from rows ${first} to ${end}.`)
        })
    const rows = ringRows(windowRows(expected.positions, expected.lengths, window))
    const differing =
      Buffer.compare(rows, batch.rows) === 0 ? -1 : rows.findIndex((byte, at) => byte !== batch.rows[at])
    yield* check(differing < 0 && rows.byteLength === batch.rows.byteLength, () => {
      const at = Math.floor(differing / ringLayout.rowBytes)
      const number = new DataView(batch.rows.buffer, batch.rows.byteOffset).getBigInt64(at * ringLayout.rowBytes, true)
      const wanted = expected.positions[Math.floor(at / window)]! + (at % window)
      return `${what}: byte ${differing % ringLayout.rowBytes} of row ${at}, which says ${number}, is not that of row ${wanted}.`
    })
    for (const name of ["positions", "lengths"] as const) {
      const wrong = batch[name]?.findIndex((value, at) => value !== expected[name][at]) ?? -1
      yield* check(
        wrong < 0,
        () => `${what}: ${name}[${wrong}] is ${batch[name]![wrong]}, not ${expected[name][wrong]}.`
      )
    }
  })
