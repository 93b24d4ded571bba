// SPDX-License-Identifier: Apache-2.0
/** How far counts may lie from what was expected of them before chance is no explanation. */
import { assert } from "@effect/vitest"

/** The chi-square statistic of counts against expectations that are not 0. */
export const chiSquare = (counts: ArrayLike<number>, expected: ArrayLike<number>): number => {
  let sum = 0
  for (let at = 0; at < counts.length; at++) sum += (counts[at]! - expected[at]!) ** 2 / expected[at]!
  return sum
}

/**
 * The value that a chi-square statistic of so many degrees of freedom exceeds once in ten thousand times (Wilson and
 * Hilferty's approximation, 3.719 standard deviations). Draws here are seeded: a test that passes once always does.
 */
export const rareChiSquare = (degrees: number): number => {
  const ninth = 2 / (9 * degrees)
  return degrees * (1 - ninth + 3.719 * Math.sqrt(ninth)) ** 3
}

/** The counts are those of draws in these proportions; what has no share was never drawn. */
export const assertProportions = (what: string, counts: ArrayLike<number>, shares: ArrayLike<number>): void => {
  let draws = 0
  let all = 0
  for (let at = 0; at < counts.length; at++) {
    draws += counts[at]!
    all += shares[at]!
    if (shares[at] === 0) assert.strictEqual(counts[at], 0, `${what}: ${at} has no share`)
  }
  const drawable = Array.from({ length: counts.length }, (_, at) => at).filter((at) => shares[at]! > 0)
  const statistic = chiSquare(
    drawable.map((at) => counts[at]!),
    drawable.map((at) => (draws * shares[at]!) / all)
  )
  const limit = rareChiSquare(drawable.length - 1)
  assert.isBelow(statistic, limit, `${what}: chi-square of ${drawable.length} shares`)
  // Numbers that are too even were not drawn at random.
  assert.isAbove(statistic, (drawable.length - 1) * 0.3, `${what}: chi-square of ${drawable.length} shares`)
}
