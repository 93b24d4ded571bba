// SPDX-License-Identifier: Apache-2.0
/** How a page of help stands on terminals of several widths, and where there is none. */
import { stripVTControlCharacters } from "node:util"
import { assert, describe, it } from "@effect/vitest"
import { canColor, type HelpPage, renderHelp } from "../../src/text/helpPage.ts"

const words =
  "Which of several ranks that hold a shard sends to whom, and what becomes of those that send nothing at all"
const page: HelpPage = {
  description: `${words}. ${words}.`,
  usage: "tool move [flags] <CHECKPOINT>",
  sections: [
    {
      title: "SUBCOMMANDS",
      kind: "command",
      rows: [{ names: ["check"], type: "", text: words }]
    },
    {
      title: "FLAGS",
      kind: "value",
      rows: [
        { names: ["--out"], type: "path", text: words },
        { names: ["--help", "-h"], type: "", text: "Show help" },
        { names: ["--a-flag-of-many-letters-too"], type: "string", text: words },
        { names: ["--silent"], type: "", text: "" }
      ]
    }
  ],
  examples: [
    {
      command: "tool move model.safetensors --from tp=2 --to tp=4,pp=2 --rules rules.yaml --out shards/",
      description: words
    }
  ]
}

const at = (columns: number | undefined): string => renderHelp(page, { columns, hasColor: false })

describe("a page of help", () => {
  for (const columns of [40, 60, 80, 200]) {
    it(`is no wider than a terminal of ${columns} columns, and says all of its words`, () => {
      const text = at(columns)
      for (const line of text.split("\n")) assert.isAtMost(line.length, columns, line)
      const said = text.replace(/\s+/g, " ")
      assert.strictEqual(said.split(words).length - 1, 6)
      for (const { rows } of page.sections) for (const { names } of rows) assert.include(said, names.join(", "))
    })
  }

  it("has each entry in one line where there is no terminal", () => {
    const flag = at(undefined)
      .split("\n")
      .find((line) => line.includes("--out path"))
    assert.match(flag ?? "", new RegExp(`--out path {3,}${words}$`))
  })

  it("breaks a command so that it can still be copied, and no flag from its value", () => {
    const lines = at(60).split("\n")
    const start = lines.findIndex((line) => line.startsWith("  tool move model"))
    const end = lines.findIndex((line, place) => place >= start && !line.endsWith("\\"))
    const command = lines.slice(start, end + 1)
    assert.isAbove(command.length, 1)
    assert.strictEqual(command.map((line) => line.replace(/\\$/, "").trim()).join(" "), page.examples[0]!.command)
    for (const line of command) assert.notMatch(line, /--\w+ \\$/)
  })

  it("in colours has the same words in the same places", () => {
    for (const columns of [60, undefined])
      assert.strictEqual(stripVTControlCharacters(renderHelp(page, { columns, hasColor: true })), at(columns))
  })
})

it("colours follow the terminal, NO_COLOR, FORCE_COLOR and TERM", () => {
  assert.isTrue(canColor({}, true))
  assert.isFalse(canColor({}, false))
  assert.isFalse(canColor({ NO_COLOR: "1", FORCE_COLOR: "1" }, true))
  assert.isTrue(canColor({ NO_COLOR: "" }, true))
  assert.isTrue(canColor({ FORCE_COLOR: "1" }, false))
  assert.isFalse(canColor({ FORCE_COLOR: "False" }, false))
  assert.isFalse(canColor({ TERM: "dumb" }, true))
})
