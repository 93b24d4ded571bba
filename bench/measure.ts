// SPDX-License-Identifier: Apache-2.0
/** What benches report and how they take time. */

export interface BenchResult {
  readonly case: string
  readonly unit: string
  readonly ours: number
  /** The system to compare with, in the same run where it is installed. */
  readonly reference?: number
  readonly target?: number
  readonly lowerIsBetter: boolean
}

/** Compilers need to see code run before they make it fast. */
const warmUpMillis = 1000

/** Seconds of each of `rounds` runs, after a warm-up of at least one run. */
export const sample = (rounds: number, run: () => void): ReadonlyArray<number> => {
  const started = performance.now()
  do run()
  while (performance.now() - started < warmUpMillis)
  return Array.from({ length: rounds }, () => {
    const start = performance.now()
    run()
    return (performance.now() - start) / 1000
  })
}
