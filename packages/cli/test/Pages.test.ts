// SPDX-License-Identifier: Apache-2.0
/** Pages say what is: docs/backends.md what the reports say, and the blocks of all pages what really works. */
import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { defaultCaseDeadline, defaultGroupDeadline, defaultTestLimit } from "@tensorferry/testing"
import * as Duration from "effect/Duration"
import { shippedDescriptors } from "../src/job/backends.ts"
import { scratch } from "./support/command.ts"
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

/** Pages with one fault each, and what is to be said of it. */
const faulty: ReadonlyArray<readonly [text: string, fault: string]> = [
  ["```sh run\nif true\n```", "syntax error"],
  ["```sh run\nfalse\n```", "ended with 1 instead of 0"],
  ["```sh run exit=1\ntrue\n```", "ended with 0 instead of 1"],
  ["```sh\ntrue\n```", 'a block of sh marked ""'],
  ["```\ntrue\n```", 'a block of ""'],
  ["```sh run fulll\ntrue\n```", 'marked "run fulll"'],
  ["```sh parse\ntensorferry reshard m --tow tp=2\n```", "Unrecognized flag: --tow"],
  ["```sh parse\ntensorferry resharp m\n```", 'Unknown subcommand "resharp"'],
  ["```sh parse\nsrun -n 2 tensorferry bench --rank 2\n```", "Unrecognized flag: --rank in"],
  ["```sh parse\ntensorferry replay bench --rows many\n```", "--rows"],
  ["```sh parse\nfor a in 1; do tensorferry verify whole; done\n```", "Missing required argument: B"],
  ["```sh parse\npnpm bench cup\n```", 'bench "cup" does not exist'],
  ["```sh parse\nbash gpu-bundle/run.sh --onlie facts\n```", "--onlie is no flag"],
  ["```sh parse\nnode examples/rings.ts\n```", 'file "examples/rings.ts" does not exist'],
  ["```sh parse\ntensorfery doctor\n```", "tensorfery doctor: is no command"],
  ["```ts file=a.ts\nconst a: number = 'text'\n```", "a.ts(1,7): error TS2322"],
  ["```ts prelude=swap\nyield* Refit.prepair({})\n```", "Property 'prepair' does not exist"],
  ["```ts prelude=none\nconst a = 1\n```", 'no prelude "none"'],
  ["It is `--tow`.", "nothing has a flag --tow"],
  ["```sh run\ntrue\n", "the block does not end"]
]

describe("blocks of pages", () => {
  it("a fault is found", { timeout: 300_000 }, () => {
    using folder = scratch()
    const pages = faulty.map(([text], at) => {
      const page = join(folder.path, `page-${at}.md`)
      writeFileSync(page, `# Page\n\n${text}\n`)
      return page
    })
    const { status, stdout } = script("doc-test.ts", ...pages)
    assert.strictEqual(status, 1)
    for (const [text, fault] of faulty) assert.include(stdout, fault, text)
    for (const at of faulty.keys()) assert.match(stdout, new RegExp(`page-${at}[.-]md`))
  })

  it("are without fault", { timeout: 1_200_000 }, () => {
    const { status, stdout } = script("doc-test.ts", "--parse")
    assert.strictEqual(status, 0, stdout)
  })
})
