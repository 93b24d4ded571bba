// SPDX-License-Identifier: Apache-2.0
/**
 * The steps by which rows are pushed, with a sample among them where there is one.
 *
 * Rows travel on a stream of their own. Three orders hold, each by one event:
 * - a row is overwritten only after it was reserved, so no later sample draws it;
 * - and only after the samples that were given before its reservation have read it;
 * - a row is committed only after all its bytes are in place.
 * Two pieces are under way at once: one travels while the other is committed.
 *
 * A sample of old rows comes behind the first reservation and before any commit. So it draws from what was there before,
 * without the rows that the first piece overwrites, and is made while that piece travels. One of new rows comes behind all
 * commits.
 */
import type { RingGeometry, RingSample, RingStep } from "@tensorferry/core/service/ReplayRingKernels"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"

/** Rows to push. */
export interface Pushed {
  readonly geometry: RingGeometry
  /** Number of the first. */
  readonly at: number
  /** Rows of each piece but the last. */
  readonly pieceRows: number
  /** The weight of each. */
  readonly weight: number
  /** Packed rows in host memory: dense bytes, `[rows, rowBytes]`. */
  readonly rows: Tensor
  readonly sample?: RingSample
  /** Whether the sample draws from the rows that were there before, or from these too. */
  readonly sees?: "old" | "new"
}

const rowsOf = (rows: Tensor, from: number, count: number, rowBytes: number): Tensor => ({
  ...rows,
  shape: [count, rowBytes],
  byteOffset: rows.byteOffset + from * rowBytes
})

/** How many rows a piece may have, so that two of them fit beside each other where the ring is large enough. */
export const pieceRowsOf = (capacity: number, wanted: number): number =>
  Math.max(1, Math.min(wanted, capacity === 1 ? 1 : Math.floor(capacity / 2)))

/** The steps of one run. */
export const pushSteps = ({
  at,
  geometry,
  pieceRows,
  rows,
  sample,
  sees = "old",
  weight
}: Pushed): ReadonlyArray<RingStep> => {
  const { capacity, rowBytes } = geometry
  const steps: Array<RingStep> = []
  const count = rows.shape[0]!
  const isOverlapped = 2 * pieceRows <= capacity
  const commits: Array<RingStep> = []
  for (let from = 0, piece = 0; from < count || piece === 0; from += pieceRows, piece++) {
    const many = Math.min(pieceRows, count - from)
    const first = at + from
    const [reserved, placed] = [2 * piece, 2 * piece + 1]
    steps.push({ _tag: "Reserve", stream: 0, at: first, rows: many }, { _tag: "Record", stream: 0, event: reserved })
    if (piece === 0 && sample !== undefined && sees === "old") steps.push({ _tag: "Sample", stream: 0, ...sample })
    steps.push({ _tag: "Wait", stream: 1, event: reserved })
    const before = Math.min(many, capacity - (first % capacity))
    for (const [begin, length] of [
      [0, before],
      [before, many - before]
    ] as const) {
      if (length === 0) continue
      const source = rowsOf(rows, from + begin, length, rowBytes)
      steps.push({ _tag: "Place", stream: 1, at: first + begin, source })
    }
    steps.push({ _tag: "Record", stream: 1, event: placed })
    if (isOverlapped) steps.push(...commits.splice(0))
    commits.push(
      { _tag: "Wait", stream: 0, event: placed },
      { _tag: "Commit", stream: 0, at: first, rows: many, weight }
    )
    if (!isOverlapped) steps.push(...commits.splice(0))
  }
  steps.push(...commits)
  if (sample !== undefined && sees === "new") steps.push({ _tag: "Sample", stream: 0, ...sample })
  return steps
}
