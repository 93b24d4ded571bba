// SPDX-License-Identifier: Apache-2.0
/** Pages say what is: docs/backends.md what the reports say, docs/writing-a-backend.md what the example does. */
import { spawnSync } from "node:child_process"
import { readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { defaultCaseDeadline, defaultGroupDeadline, defaultTestLimit } from "@tensorferry/testing"
import * as Duration from "effect/Duration"
import { shippedDescriptors } from "../src/job/backends.ts"
import { decode, reports, root, script } from "./support/pages.ts"

describe("docs/backends.md", () => {
  it("is what the reports say", () => {
    const { status, stderr } = script("backends-doc.ts", "--check")
    assert.strictEqual(status, 0, stderr)
  })

  it("lists every shipped backend, says where its devices are simulated, and has no failure", () => {
    const all = readdirSync(reports).map((file) => decode(readFileSync(join(reports, file), "utf8")))
    assert.sameMembers(
      all.map(({ backend }) => backend),
      shippedDescriptors.map(({ name }) => name)
    )
    const page = readFileSync(join(root, "docs/backends.md"), "utf8")
    for (const { backend, note, services, isFiltered } of all) {
      assert.isFalse(isFiltered)
      assert.isNotEmpty(note)
      assert.deepStrictEqual(
        services.flatMap(({ cases }) => cases.filter(({ status }) => status === "failed")),
        []
      )
      if (note.startsWith("Simulated")) assert.include(page, `| ${backend} (simulated) |`)
    }
  })
})

describe("pages and remedies", () => {
  const files = spawnSync("git", ["ls-files", "*.md", "*.ts", "*.py"], { cwd: root, encoding: "utf8" })
    .stdout.trim()
    .split("\n")

  it("ask no registry for a package of ours while none has any", () => {
    assert.include(readFileSync(join(root, "README.md"), "utf8"), "The packages are not in a registry yet.")
    const asks = /\b(npm|pnpm|npx|yarn) (--yes |-g )*(install|i|add)\b[^`"]*@tensorferry\/[a-z-]+(?![a-z-]*[^`"]*\.tgz)/
    const found = files
      .filter((file) => !/^(\.changeset|docs\/adr|docs\/publishing)|\/test\//.test(file))
      .filter((file) => asks.test(readFileSync(join(root, file), "utf8")))
    assert.deepStrictEqual(found, [])
  })
})

describe("docs/writing-a-backend.md", () => {
  const page = readFileSync(join(root, "docs/writing-a-backend.md"), "utf8")
  const example = join(root, "examples/third-party-backend")
  const fileOfPage = (name: string) => page.split(`file=${name}\n`)[1]!.split("\n```")[0]!
  /** What a test file gives the kit, apart from its driver. */
  const givenTo = (text: string) => text.match(/\b(groupDeadline|deadline|timeout|quirks|stated|engine): [^ ,}\n]+/g)
  /** The fields of the first capabilities of a file. */
  const statedIn = (text: string) => /gather: [^}]+maxMessageBytes/.exec(text)?.[0].split(/,\s+/).slice(0, -1)

  it("judges its driver under the limits of the example, which are those of the kit", () => {
    const given = givenTo(fileOfPage("spool.test.ts"))
    assert.deepStrictEqual(given, givenTo(readFileSync(join(example, "test/conformance.test.ts"), "utf8")))
    assert.deepStrictEqual(given, ["engine: TensorEngine.layer()", "stated: descriptors[0]!.capabilities"])
    assert.isNull(givenTo(fileOfPage("check.ts")))
    assert.isBelow(2 * Duration.toMillis(defaultGroupDeadline), Duration.toMillis(defaultCaseDeadline))
    assert.isBelow(Duration.toMillis(defaultCaseDeadline), defaultTestLimit)
    const [group, oneCase] = [defaultGroupDeadline, defaultCaseDeadline].map(Duration.toSeconds)
    for (const limit of [`is ${group} seconds`, `case ${oneCase} seconds`, `test ${defaultTestLimit / 1000} seconds`]) {
      assert.include(page, limit)
    }
  })

  it("states the same of its driver in the descriptor, the driver and the example", () => {
    const stated = statedIn(fileOfPage("spool/driver.ts"))
    assert.lengthOf(stated!, 4)
    assert.deepStrictEqual(statedIn(fileOfPage("spool/index.ts")), stated)
    assert.deepStrictEqual(statedIn(readFileSync(join(example, "src/SpoolDriver.ts"), "utf8")), stated)
  })
})
