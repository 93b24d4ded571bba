// SPDX-License-Identifier: Apache-2.0
/** What an editor shows of published declarations: words for every export and every member of a shape, and no `any`. */
import { assert, it } from "vitest"
import { hoverFaults } from "../../scripts/doors/hover.ts"

it("every export and every member of a shape has words where an editor shows them, and types have names", {
  timeout: 300_000
}, async () => {
  const { any, asked, unnamed, withoutWords } = await hoverFaults()
  assert.isAbove(asked, 1500)
  assert.deepStrictEqual(withoutWords, [])
  assert.deepStrictEqual(any, [])
  assert.deepStrictEqual(unnamed, [])
})
