// SPDX-License-Identifier: Apache-2.0
/** Files of commands are there as a whole, or as they were before: also where a file may not become as long as it has to. */
import { spawnSync } from "node:child_process"
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { writeWhole } from "../../src/model/writeWhole.ts"
import { scratch } from "../support/command.ts"

const write = (file: string, text: string) => Effect.runPromise(writeWhole(file, "the page", text))

/** The same in a process that may write files of 8 KiB. */
const writeLimited = (file: string, length: number) => {
  const module = JSON.stringify(fileURLToPath(new URL("../../src/model/writeWhole.ts", import.meta.url)))
  const script = `
    import * as Effect from "effect/Effect"
    process.on("SIGXFSZ", () => {})
    const { writeWhole } = await import(${module})
    const failed = await Effect.runPromise(Effect.flip(writeWhole(${JSON.stringify(file)}, "the page", "x".repeat(${length}))))
    console.log(failed.reason._tag, failed.reason.detail)`
  const program = `ulimit -f 8; exec '${process.execPath}' --input-type=module -e "$SCRIPT"`
  const ended = spawnSync("bash", ["-c", program], {
    cwd: import.meta.dirname,
    encoding: "utf8",
    env: { ...process.env, SCRIPT: script, NODE_COMPILE_CACHE: "" }
  })
  assert.strictEqual(ended.status, 0, ended.stderr)
  return ended.stdout
}

describe("a file that a command leaves behind", () => {
  it("replaces the one before it, through a link too", async () => {
    using folder = scratch()
    const file = join(folder.path, "page.html")
    await write(file, "one")
    symlinkSync("page.html", join(folder.path, "link.html"))
    await write(join(folder.path, "link.html"), "two")
    assert.strictEqual(readFileSync(file, "utf8"), "two")
    assert.deepStrictEqual(readdirSync(folder.path).sort(), ["link.html", "page.html"])
  })

  it("is not there where it did not fit, and the one before it is as it was", () => {
    using folder = scratch()
    assert.match(writeLimited(join(folder.path, "new.html"), 100_000), /^DiskFull .*write the page: EFBIG/)
    writeFileSync(join(folder.path, "old.html"), "old")
    assert.match(writeLimited(join(folder.path, "old.html"), 100_000), /^DiskFull/)
    assert.deepStrictEqual(readdirSync(folder.path), ["old.html"])
    assert.strictEqual(readFileSync(join(folder.path, "old.html"), "utf8"), "old")
  })

  it("is refused in a folder that is not there, and goes into a device as it is", async () => {
    using folder = scratch()
    mkdirSync(join(folder.path, "a"))
    const failed = await Effect.runPromise(Effect.flip(writeWhole(join(folder.path, "b/page"), "the page", "x")))
    assert.include(failed.message, "ENOENT")
    await write("/dev/null", "x")
    assert.deepStrictEqual(readdirSync(folder.path), ["a"])
  })
})
