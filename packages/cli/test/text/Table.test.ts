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

  it("has as many rows as there are", () => {
    const rows = Array.from({ length: 300_000 }, (_, at) => [String(at)])
    assert.strictEqual(table(["rank"], rows).split("\n").length, 300_002)
  })
})
