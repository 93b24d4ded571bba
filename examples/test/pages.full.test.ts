// SPDX-License-Identifier: Apache-2.0
/** Programs of pages in a project of one's own: they are right for `tsc` with the configuration that the README shows. */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import * as path from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { baseOf, blocksOf, fileOf, joined } from "../../scripts/pages/blocks.ts"
import { exampleFolder, run, shown } from "./stranger.ts"

const root = path.resolve(import.meta.dirname, "../..")
const pages = ["README.md", ...readdirSync(path.join(root, "docs")).filter((name) => name.endsWith(".md"))]
const textOf = (page: string): string =>
  readFileSync(path.join(root, page === "README.md" ? page : `docs/${page}`), "utf8")

describe("programs of pages", () => {
  it("are right for tsc with the README's tsconfig.json, outside the workspace", { timeout: 300_000 }, async () => {
    const folder = exampleFolder("pages")
    let programs = 0
    for (const page of pages) {
      const blocks = blocksOf(textOf(page))
      for (const block of blocks) {
        const name = fileOf(block)?.replace(/^try\//, "")
        if (name === undefined || !/\.(ts|json)$/.test(name)) continue
        const base = baseOf(blocks, block)
        const file = path.join(folder, page === "README.md" ? "." : page.replace(".md", ""), name)
        mkdirSync(path.dirname(file), { recursive: true })
        writeFileSync(file, base === undefined ? block.text : joined(base, block))
        if (name.endsWith(".ts")) programs += 1
      }
    }
    assert.isAtLeast(programs, 20)
    const tsc = path.join(root, "node_modules/.bin/tsc")
    const types = path.join(root, "node_modules/@types")
    const ended = await run(tsc, ["-p", folder, "--typeRoots", types], { cwd: folder })
    assert.strictEqual(ended.code, 0, shown(ended))
  })
})
