// SPDX-License-Identifier: Apache-2.0
/** The backend that docs/writing-a-backend.md writes, in an application of its own; and the same with a fault in it. */
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert } from "@effect/vitest"

const root = fileURLToPath(new URL("../../../../", import.meta.url))

/** Files of the page, by name. */
const filesOfPage = (): ReadonlyMap<string, string> => {
  const page = readFileSync(join(root, "docs/writing-a-backend.md"), "utf8")
  return new Map([...page.matchAll(/```\w+ file=(\S+)\n([\s\S]*?\n)```/g)].map(([, name, text]) => [name!, text!]))
}

export type Change = readonly [file: string, before: string, after: string]

/** Writes `spool/` into the folder, with changes that must apply. */
export const writeSpool = (folder: string, changes: ReadonlyArray<Change> = []): void => {
  const files = new Map(filesOfPage())
  for (const [file, before, after] of changes) {
    const text = files.get(file) ?? ""
    assert.include(text, before, "the page has changed")
    files.set(file, text.replace(before, after))
  }
  mkdirSync(join(folder, "node_modules/@tensorferry"), { recursive: true })
  for (const name of ["core", "native"]) {
    symlinkSync(join(root, "packages", name), join(folder, "node_modules/@tensorferry", name))
  }
  symlinkSync(join(root, "node_modules/effect"), join(folder, "node_modules/effect"))
  for (const [name, text] of files) {
    mkdirSync(dirname(join(folder, name)), { recursive: true })
    writeFileSync(join(folder, name), text)
  }
}
