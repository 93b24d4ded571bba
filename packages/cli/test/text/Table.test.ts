// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import * as fc from "fast-check"
import { counted, formatRate, formatSeconds, table } from "../../src/text/Table.ts"
import { plainLine } from "../../src/text/terminal.ts"

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

  it("keeps what is set in", () => {
    assert.strictEqual(table(["step"], [["copy"], ["  pack"]]), "step\n──────\ncopy\n  pack")
  })

  it("goes on in further lines of a column where the terminal is narrower", () => {
    const rows = [["cuda", "unavailable", "The libraries cannot be opened, and no device was found"]]
    const lines = table(["backend", "state", "detail"], rows, [], 48).split("\n")
    assert.deepStrictEqual(lines, [
      "backend  state        detail",
      "───────  ───────────  ──────────────────────────",
      "cuda     unavailable  The libraries cannot be",
      "                      opened, and no device was",
      "                      found"
    ])
  })

  it("of numbers goes on below, each part with the first column", () => {
    const header = ["rank", "source", "sends", "peak memory"]
    const text = table(header, [["0", "1.0 GiB", "2.0 GiB", "3.0 GiB"]], ["right", "right", "right", "right"], 24)
    assert.deepStrictEqual(text.split("\n"), [
      "rank   source    sends",
      "────  ───────  ───────",
      "   0  1.0 GiB  2.0 GiB",
      "",
      "rank  peak memory",
      "────  ───────────",
      "   0      3.0 GiB"
    ])
  })

  it("fits every width, and loses no letter of a cell", () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.string({ maxLength: 40 }), fc.string({ maxLength: 90 }), fc.nat()), { maxLength: 6 }),
        fc.integer({ min: 40, max: 200 }),
        (cells, limit) => {
          const rows = cells.map(([a, b, n]) => [a, b, String(n)])
          const text = table(["name", "what it is", "bytes"], rows, ["left", "left", "right"], limit)
          for (const line of text.split("\n")) assert.isAtMost(line.length, limit)
          const letters = (what: string) => [...what.replaceAll(/[\s─]/g, "")].sort().join("")
          const given = rows.flatMap(([a, b, n]) => [plainLine(a!), plainLine(b!), n!]).join("")
          const parts = text.split("\n\n").length - 1
          if (parts === 0) assert.strictEqual(letters(text), letters(`${given}name what it is bytes`))
        }
      )
    )
  })
})

it("counts in the singular and the plural", () => {
  assert.deepStrictEqual(
    [counted(0, "rank"), counted(1, "rank"), counted(2, "rank"), counted(2, "batch", "batches")],
    ["0 ranks", "1 rank", "2 ranks", "2 batches"]
  )
})

it("rates are of no unit in which they would vanish", () => {
  assert.deepStrictEqual(
    [formatRate(419e3, 0.2387), formatRate(8e9, 1), formatRate(0, 1)],
    ["1.8 MB/s", "8.00 GB/s", ""]
  )
})

it("times are of no unit in which they would vanish", () => {
  assert.deepStrictEqual([0, 4.02e-5, 0.0012, 1.234, 61].map(formatSeconds), [
    "0.0 ms",
    "40.2 µs",
    "1.2 ms",
    "1.23 s",
    "61.0 s"
  ])
})
