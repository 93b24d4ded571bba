// SPDX-License-Identifier: Apache-2.0
/** Whole numbers as messages and files state them, and the middle of measured ones. */
import * as Schema from "effect/Schema"

/** 0 and above, exact in a double: sizes, offsets, counts, indices. */
export const Natural = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }))

/** 1 and above, exact in a double. */
export const Positive = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER }))

/** 0 and above, within 32 bits with a sign: ranks and ordinals that other programs keep in an `int`. */
export const Natural32 = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 31 - 1 }))

/** The value in the middle, or between the two in the middle; 0 of none. */
export const median = (values: ReadonlyArray<number>): number => {
  const sorted = values.toSorted((a, b) => a - b)
  return ((sorted[(sorted.length - 1) >> 1] ?? 0) + (sorted[sorted.length >> 1] ?? 0)) / 2
}
