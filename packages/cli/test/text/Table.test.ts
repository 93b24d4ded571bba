// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import { table } from "../../src/text/Table.ts"

describe("a table", () => {
  it("is as wide as its longest cells, numbers to the right", () => {
    const rows = [
      ["a", "7"],
      ["longer", "1234"]
    ]
    assert.strictEqual(
      table(["name", "n"], rows, ["left", "right"]),
      "name       n\n──────  ────\na          7\nlonger  1234"
    )
  })

  it("has a bound on rows and columns, and says how much it leaves out", () => {
    const rows = Array.from({ length: 300_000 }, (_, at) => [String(at)])
    const lines = table(["rank"], rows).split("\n")
    assert.lengthOf(lines, 2 + 256 + 1)
    assert.strictEqual(lines.at(-1), "… and 299744 more rows; --json lists all")
    const wide = Array.from({ length: 262_144 }, (_, at) => String(at))
    const [head, , row, last] = table(wide, [wide]).split("\n")
    assert.strictEqual(head, wide.slice(0, 64).join("  "))
    assert.strictEqual(row, head)
    assert.strictEqual(last, "… and 262080 more columns; --json lists all")
  })

  it("keeps every row in one line and its columns in place, whatever is in a cell", () => {
    const lines = table(
      ["name", "n"],
      [
        ["a\nb\u001b[2K", "1"],
        ["x".repeat(5000), "2"]
      ]
    ).split("\n")
    assert.lengthOf(lines, 4)
    assert.match(lines[2]!, /^a\\nb\\u001b\[2K +1$/)
    assert.isBelow(lines[3]!.length, 1100)
  })
})
