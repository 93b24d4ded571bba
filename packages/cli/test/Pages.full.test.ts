// SPDX-License-Identifier: Apache-2.0
/** What every block of every page does, run; and that the reports leave out no case of the kit. */
import { readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { copyCases, copyDriverCases, replayConformanceCases, tensorEngineCases } from "@tensorferry/testing"
import { decode, reports, script } from "./support/pages.ts"

describe("docs/backends.md", () => {
  it("leaves out no case that the kit has", () => {
    const known = {
      tensorEngine: tensorEngineCases,
      copyService: copyCases,
      copyDriver: copyDriverCases,
      replayTransfer: replayConformanceCases
    }
    for (const file of readdirSync(reports)) {
      const { services } = decode(readFileSync(join(reports, file), "utf8"))
      for (const { service, isOffered, cases } of services) {
        assert.sameMembers(
          cases.map(({ name }) => name),
          isOffered ? known[service].map(({ name }) => name) : [],
          `${file} is of another kit; run: node scripts/backends-reports.ts && node scripts/backends-doc.ts`
        )
      }
    }
  })
})

describe("pages", () => {
  it("run without fault, block by block", { timeout: 1_200_000 }, () => {
    const { status, stdout } = script("doc-test.ts")
    assert.strictEqual(status, 0, stdout)
  })
})
