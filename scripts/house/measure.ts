// SPDX-License-Identifier: Apache-2.0
/** What a measure says: a figure, the limit it is held to, and the places behind it. */

export interface Place {
  /** A file and line, or a folder. */
  readonly at: string
  readonly name: string
  readonly figure?: number | undefined
}

export interface Measure {
  readonly key: string
  readonly title: string
  readonly figure: number
  /** Absent where the figure is for information. */
  readonly limit?: number
  /** What exceeds the limit. */
  readonly offenders?: ReadonlyArray<Place>
  /** Places worth a look that count against no limit. */
  readonly others?: ReadonlyArray<Place>
  /** Whether the places are many and for machines alone. */
  readonly isUnlisted?: true
}

export const isOver = (measure: Measure): boolean => measure.limit !== undefined && measure.figure > measure.limit

/** Largest first; equal ones in the order of their places. */
export const byFigure = (left: Place, right: Place): number =>
  (right.figure ?? 0) - (left.figure ?? 0) || (left.at < right.at ? -1 : left.at > right.at ? 1 : 0)
