// SPDX-License-Identifier: Apache-2.0
/**
 * Adds up what the runs of tests left in the folder TENSORFERRY_TEST_RESULTS: one line per run with its time, each test that
 * failed with its reason, and last `N passed, N failed, N skipped`. A log is often kept by its end: what failed stands there.
 */
import { readdirSync, readFileSync } from "node:fs"
import * as path from "node:path"
import { stripVTControlCharacters } from "node:util"

/** What the test runner's JSON reporter writes, as far as it is read here. */
interface Results {
  readonly numPassedTests: number
  readonly numFailedTests: number
  readonly numPendingTests: number
  readonly numTodoTests: number
  readonly startTime: number
  readonly testResults: ReadonlyArray<{
    readonly name: string
    readonly endTime: number
    readonly status: string
    /** Why a file could not be run. */
    readonly message?: string
    readonly assertionResults: ReadonlyArray<{
      readonly fullName: string
      readonly status: string
      readonly failureMessages?: ReadonlyArray<string> | null
    }>
  }>
}

const mostCharacters = 1_200

/** The reason without its stack, as far as a few lines go. */
const reasonOf = (message: string): string =>
  stripVTControlCharacters(message)
    .split(/\n\s+at /)[0]!
    .slice(0, mostCharacters)

const failuresOf = ({ testResults }: Results): ReadonlyArray<string> =>
  testResults.flatMap(({ name, status, message = "", assertionResults }) => {
    const file = path.relative(process.cwd(), name)
    const failed = assertionResults.filter((test) => test.status === "failed")
    if (failed.length === 0) return status === "failed" ? [`FAILED ${file}\n${reasonOf(message)}`] : []
    return failed.map(
      ({ fullName, failureMessages }) =>
        `FAILED ${file} > ${fullName}\n${(failureMessages ?? []).map(reasonOf).join("\n")}`
    )
  })

const folder = process.env.TENSORFERRY_TEST_RESULTS
if (folder === undefined) {
  console.error("TENSORFERRY_TEST_RESULTS names no folder; set it for the runs of tests and for this.")
  process.exit(2)
}

let [passed, failed, skipped] = [0, 0, 0]
const failures: Array<string> = []
for (const file of readdirSync(folder).filter((name) => name.endsWith(".json"))) {
  const results = JSON.parse(readFileSync(path.join(folder, file), "utf8")) as Results
  const seconds = (Math.max(...results.testResults.map(({ endTime }) => endTime)) - results.startTime) / 1000
  console.log(`${file.slice(0, -".json".length)}: ${results.testResults.length} files in ${seconds.toFixed(0)} s`)
  failures.push(...failuresOf(results))
  passed += results.numPassedTests
  failed += results.numFailedTests
  skipped += results.numPendingTests + results.numTodoTests
}
for (const failure of failures) console.log(failure)
console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`)
process.exitCode = failures.length === 0 && failed === 0 && passed > 0 ? 0 : 1
