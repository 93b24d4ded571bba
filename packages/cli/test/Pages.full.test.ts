// SPDX-License-Identifier: Apache-2.0
/** What every block of every page does, run; and that the reports leave out no case of the kit. */
import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { copyCases, copyDriverCases, replayConformanceCases, tensorEngineCases } from "@tensorferry/testing"
import { scratch } from "./support/command.ts"
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

/** A program that takes a fragment. */
const base = (file: string): string =>
  `\`\`\`ts file=${file}\nconst run = (): void => {\n  // Here goes a fragment below.\n}\nrun()\n\`\`\`\n`

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
  ["```ts file=b.ts\nimport { Refit } from '@tensorferry/core'\n```".replaceAll("'", '"'), "each name from its module"],
  [`${base("c.ts")}\n\`\`\`ts in=c.ts\nconst text: string = 1\n\`\`\``, "-c.ts(2,7): error TS2322"],
  [`${base("d.ts")}\n\`\`\`ts in=d.ts\nprocess.exit(3)\n\`\`\``, "ended with 3 instead of 0"],
  ["```ts in=none.ts\nconst a = 1\n```", 'no block above has the file "none.ts"'],
  ["```ts file=e.ts\nconst a = 1\n```\n\n```ts in=e.ts\nconst b = 1\n```", 'no block above has the file "e.ts"'],
  ["```ts\nconst a = 1\n```", 'a block of ts marked ""'],
  ["```ts file=f.ts\nexport {}\n```", "nothing on the page says that it is f.ts"],
  [`${base("g.ts")}\n\`\`\`ts in=g.ts\nconst b = 1\n\`\`\``, "does not say that it goes into `g.ts`"],
  ["It is `--tow`.", "nothing has a flag --tow"],
  ["```sh run\ntrue\n", "the block does not end"]
]

describe("pages", () => {
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

  it("run without fault, block by block", { timeout: 1_200_000 }, () => {
    const { status, stdout } = script("doc-test.ts")
    assert.strictEqual(status, 0, stdout)
  })
})
