// SPDX-License-Identifier: Apache-2.0
/** Addons that are not there or are none: the reason names the folder in plain words, and the remedy what builds them. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { addonLoader } from "../src/NativeAddon.ts"

const folders: Array<string> = []
const newFolder = (): string => {
  const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-addon-"))
  folders.push(folder)
  return folder
}
afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true })
})

const reasonOf = (folder: string) =>
  Effect.runPromise(Effect.flip(addonLoader("a-backend", import.meta.url, 1).loadFrom(folder))).then(
    ({ reason }) => reason
  )

describe("an addon", () => {
  it("that nobody built is said to be so, without the words of a loader", async () => {
    const folder = newFolder()
    const { detail, remedy } = await reasonOf(folder)
    assert.strictEqual(detail, `The addon of ${folder} is not built for ${process.platform}-${process.arch}.`)
    assert.match(remedy, /npm run build:native/)
  })

  it("that cannot be loaded is named with the loader's reason, in one line", async () => {
    const folder = newFolder()
    mkdirSync(path.join(folder, "build/Release"), { recursive: true })
    writeFileSync(path.join(folder, "build/Release/broken.node"), "no library")
    const { detail } = await reasonOf(folder)
    assert.match(detail, /^No addon could be loaded from .*: Error: .*\.$/)
    assert.notInclude(detail, "\n")
  })
})
