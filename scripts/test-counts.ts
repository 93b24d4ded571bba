// SPDX-License-Identifier: Apache-2.0
/**
 * Adds up what the runs of tests left in the folder TENSORFERRY_TEST_RESULTS: one line per run with its time, and last
 * `N passed, N failed, N skipped`.
 */
import { readdirSync, readFileSync } from "node:fs"
import * as path from "node:path"

/** What the test runner's JSON reporter writes, as far as it is read here. */
interface Results {
  readonly numPassedTests: number
  readonly numFailedTests: number
  readonly numPendingTests: number
  readonly numTodoTests: number
  readonly startTime: number
  readonly testResults: ReadonlyArray<{ readonly endTime: number; readonly status: string }>
}

const folder = process.env.TENSORFERRY_TEST_RESULTS
if (folder === undefined) {
  console.error("TENSORFERRY_TEST_RESULTS names no folder; set it for the runs of tests and for this.")
  process.exit(2)
}

let [passed, failed, skipped] = [0, 0, 0]
for (const file of readdirSync(folder).filter((name) => name.endsWith(".json"))) {
  const results = JSON.parse(readFileSync(path.join(folder, file), "utf8")) as Results
  const seconds = (Math.max(...results.testResults.map(({ endTime }) => endTime)) - results.startTime) / 1000
  console.log(`${file.slice(0, -".json".length)}: ${results.testResults.length} files in ${seconds.toFixed(0)} s`)
  passed += results.numPassedTests
  failed += results.numFailedTests
  skipped += results.numPendingTests + results.numTodoTests
}
console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`)
process.exitCode = failed === 0 && passed > 0 ? 0 : 1
