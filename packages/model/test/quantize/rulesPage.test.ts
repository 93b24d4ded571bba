// SPDX-License-Identifier: Apache-2.0
/** The page of transforms lists every quantizing rule with the reference and the formula that the rule states. */
import { readFileSync } from "node:fs"
import { assert, it } from "@effect/vitest"
import { quantizeRules } from "../../src/quantize/rules.ts"

const page = readFileSync(new URL("../../../../docs/transforms.md", import.meta.url), "utf8")

it("the page of transforms has a row for each quantizing rule, and for no other", () => {
  const rows = page.split("\n").filter((line) => /^\| `(fp8|mxfp8|mxfp4|nvfp4)\//.test(line))
  const listed = rows.map((row) => row.replaceAll("\\*", "*").split(" | ").slice(0, 3).join(" | "))
  const stated = quantizeRules.map(({ formula, name, reference }) => `| \`${name}\` | ${reference} | ${formula}`)
  assert.deepStrictEqual(listed, stated)
})
