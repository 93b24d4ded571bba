// SPDX-License-Identifier: Apache-2.0
/** Statistics of what was measured. Pure. */

import { median } from "@tensorferry/core/base/Numbers"

/** The median slope over all pairs, as a share of the median, per 100 (Theil-Sen). */
export const driftPer100 = (values: ReadonlyArray<number>): number => {
  const slopes = values.flatMap((a, i) => values.slice(i + 1).map((b, j) => (b - a) / (j + 1)))
  return (median(slopes) / median(values)) * 100
}
