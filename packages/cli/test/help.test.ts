// SPDX-License-Identifier: Apache-2.0
/**
 * A packed command answers help and version from pages, without loading what carries commands out. The source tree has no
 * pages of help and leaves it to the command.
 */
import { pathToFileURL } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { type HelpPage, renderHelp } from "../src/text/helpPage.ts"
import {
  answering,
  command,
  main,
  packBefore,
  packedMain,
  pages,
  pretend,
  recorder,
  refusalBy,
  start
} from "./support/helpCommand.ts"

packBefore()

/** A page as it stands where there is no terminal. */
const wide = (page: HelpPage): string => renderHelp(page, { columns: undefined, hasColor: false })

describe("what the command says about itself", () => {
  it("packed, loads the answering modules alone and says what the command renders", () => {
    const colors = { FORCE_COLOR: "1" }
    const ended = start(["--import", recorder, packedMain, "reshard", "-h"], colors)
    assert.strictEqual(ended.status, 0, ended.stderr)
    const files = (JSON.parse(ended.stderr) as ReadonlyArray<string>).filter((url) => url.startsWith("file:"))
    assert.deepStrictEqual(
      files.map((url) => url.slice(url.indexOf("/dist/") + 6)).filter((name) => !name.endsWith("package.json")),
      answering
    )
    assert.strictEqual(ended.stdout, start([command, "reshard", "-h"], colors).stdout)
  })

  it("the source tree renders its help", () => {
    const ended = start(["--import", recorder, main, "plan", "--help"])
    assert.strictEqual(ended.status, 0)
    assert.include(JSON.parse(ended.stderr), pathToFileURL(command).href)
    assert.strictEqual(ended.stdout.trimEnd(), wide(pages().plan!))
  })

  it("shows defaults, and what arguments are", () => {
    const wanted: ReadonlyArray<readonly [name: string, lines: ReadonlyArray<RegExp>]> = [
      [
        "replay bench",
        [
          /--rows .*4096/,
          /--width .*256/,
          /--ring .*host by/,
          /--depth .*2 by/,
          /--ticks .*100 by/,
          /--compute .*20 by/
        ]
      ],
      ["replay demo", [/--ticks .*20 by/]],
      ["bench", [/--ranks .*2 by/]],
      ["backends conformance", [/--ranks .*4 by/, /--case-seconds .*60 by/]],
      ["verify", [/A path.*\w\w/, /B path.*\w\w/]]
    ]
    for (const [name, lines] of wanted) {
      const text = wide(pages()[name]!)
      for (const line of lines) assert.match(text, line, name)
    }
  })

  it("the pages are of the command and every subcommand", () => {
    // Some of the first, the second and the last level.
    assert.includeMembers(Object.keys(pages()), ["", "plan", "plan check", "backends conformance", "agent"])
  })
})

describe("on a Node that is too old", () => {
  it("says in one line which one is needed", () => {
    const ended = start(["--import", pretend("22.18.0"), main, "plan", "--help"])
    assert.strictEqual(ended.status, 1)
    assert.strictEqual(ended.stdout, "")
    assert.match(ended.stderr, refusalBy("22.18.0"))
  })
})
