// SPDX-License-Identifier: Apache-2.0
/** Where the output cannot be written: refused before any process starts, or a typed failure with nothing left. */
import { execFileSync } from "node:child_process"
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import {
  assertNothingRuns,
  endAll,
  failuresOf,
  rankProcess,
  run,
  scratch,
  start,
  temporaryNames
} from "../support/command.ts"
import { assertSameModel, mnist, mnistRules } from "../support/models.ts"
import { writeSmallModel } from "../support/smallModels.ts"

afterEach(endAll)

const args = (out: string) => ["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--out", out, "--json"] as const

/** A file system of its own, or undefined where this user may not mount one. */
const mount = (at: string, options: string) => {
  mkdirSync(at)
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", options, "tmpfs", at], { stdio: "ignore" })
  } catch {
    return undefined
  }
  return { path: at, [Symbol.dispose]: () => void execFileSync("umount", ["-l", at], { stdio: "ignore" }) }
}

describe("the output", () => {
  for (const room of ["64k", "256k"]) {
    it(`on a disk with room for ${room}: refused before anything is loaded`, async (context) => {
      using folder = scratch()
      using disk = mount(join(folder.path, "disk"), `size=${room}`)
      if (disk === undefined) return context.skip("mounting a file system is not permitted here")
      const command = start(args(join(disk.path, "out")))
      const ended = await command.ended
      assert.strictEqual(ended.code, 1, ended.stdout)
      for (const { reason, fields } of failuresOf(ended)) {
        assert.strictEqual(reason, "DiskFull", ended.stdout)
        assert.strictEqual(fields?.file, disk.path)
        assert.match(fields?.detail ?? "", /takes 406528 bytes, and the file system has \d+ left/)
        assert.include(fields?.remedy, "Free space")
      }
      await assertNothingRuns(command)
      assert.deepStrictEqual(readdirSync(disk.path), [])
    })
  }

  it("of convert, on a disk without room: refused before anything is written", async (context) => {
    using folder = scratch()
    using disk = mount(join(folder.path, "disk"), "size=16k")
    if (disk === undefined) return context.skip("mounting a file system is not permitted here")
    const model = await writeSmallModel(join(folder.path, "llama"), "llama")
    const ended = await run(["convert", model, "--to", "vllm:tp=2", "--out", join(disk.path, "out"), "--json"])
    assert.strictEqual(ended.code, 1, ended.stdout)
    const [failure] = failuresOf(ended)
    assert.strictEqual(failure?.reason, "DiskFull", ended.stdout)
    assert.include(failure?.fields?.detail, "What is to be written takes")
    assert.deepStrictEqual(readdirSync(disk.path), [])
  })

  it("of delta apply, on a disk without room: refused before anything is written, as a file and as a folder", async (context) => {
    using folder = scratch()
    using disk = mount(join(folder.path, "disk"), "size=16k")
    if (disk === undefined) return context.skip("mounting a file system is not permitted here")
    const model = await writeSmallModel(join(folder.path, "llama"), "llama")
    const delta = join(folder.path, "none.safetensors")
    assert.strictEqual((await run(["delta", "make", model, model, "--out", delta])).code, 0)
    for (const out of ["out", "out.safetensors"]) {
      const ended = await run(["delta", "apply", model, delta, "--out", join(disk.path, out), "--json"])
      const [failure] = failuresOf(ended)
      assert.strictEqual(failure?.reason, "DiskFull", ended.stdout)
      assert.include(failure?.fields?.detail, "What is to be written takes")
      assert.deepStrictEqual(readdirSync(disk.path), [])
    }
  })

  it("on a disk that has no room for the folder's manifest", async (context) => {
    using folder = scratch()
    using disk = mount(join(folder.path, "disk"), "size=400k")
    if (disk === undefined) return context.skip("mounting a file system is not permitted here")
    const command = start(args(join(disk.path, "out")))
    const ended = await command.ended
    assert.strictEqual(ended.code, 1, ended.stdout)
    const full = failuresOf(ended).filter((failure) => failure.reason === "DiskFull")
    assert.isNotEmpty(full, ended.stdout)
    for (const failure of full) {
      assert.match(
        failure.fields?.file ?? "",
        /\/disk\/out\.tmp-[0-9a-f]+\/(rank-0000\d\.safetensors|tensorferry\.json)$/
      )
    }
    await assertNothingRuns(command)
    assert.deepStrictEqual(readdirSync(disk.path), [])
  })

  it("on a read-only file system: refused before any rank starts", async (context) => {
    using folder = scratch()
    using disk = mount(join(folder.path, "disk"), "ro,size=64k")
    if (disk === undefined) return context.skip("mounting a file system is not permitted here")
    const [failure] = failuresOf(await run(args(join(disk.path, "out"))))
    assert.strictEqual(failure!.reason, "WriteFailed")
    assert.strictEqual(failure!.fields?.file, disk.path)
    assert.include(failure!.message, "EROFS")
    assert.isUndefined(failure!.rank)
  })

  it("a folder that holds something, a file, a name in a folder that does not exist: refused", async () => {
    using folder = scratch()
    const at = (name: string) => join(folder.path, name)
    mkdirSync(at("taken"))
    writeFileSync(join(at("taken"), "precious"), "1")
    writeFileSync(at("file"), "2")
    for (const [name, reason, file] of [
      ["taken", "OutputExists", "taken"],
      ["file", "OutputExists", "file"],
      ["absent/out", "WriteFailed", "absent"]
    ] as const) {
      const ended = await run(args(at(name)))
      assert.strictEqual(ended.code, 1, name)
      const failures = failuresOf(ended)
      assert.lengthOf(failures, 1)
      assert.strictEqual(failures[0]!.reason, reason)
      assert.strictEqual(failures[0]!.fields?.file, at(file))
      assert.isUndefined(failures[0]!.rank)
    }
    assert.strictEqual(readFileSync(join(at("taken"), "precious"), "utf8"), "1")
    assert.deepStrictEqual(readdirSync(folder.path).sort(), ["file", "taken"])
  })

  it("an empty folder: replaced", async () => {
    using folder = scratch()
    const out = join(folder.path, "out")
    mkdirSync(out)
    const ended = await run(args(out))
    assert.strictEqual(ended.code, 0, ended.stdout)
    await assertSameModel(out, mnist)
    assert.deepStrictEqual(readdirSync(folder.path), ["out"])
    const files = ["rank-00000.safetensors", "rank-00001.safetensors", "tensorferry.json"]
    assert.deepStrictEqual(readdirSync(out).sort(), files)
  })

  it("a folder that another process fills meanwhile is left unchanged", async () => {
    using folder = scratch()
    const out = join(folder.path, "out")
    const command = start(args(out))
    // The command has looked at the folder before it starts a rank.
    await rankProcess(command, 0)
    mkdirSync(out)
    writeFileSync(join(out, "precious"), "1")
    const ended = await command.ended
    assert.strictEqual(ended.code, 1)
    const [failure] = failuresOf(ended)
    assert.strictEqual(failure!.reason, "WriteFailed")
    assert.strictEqual(failure!.fields?.file, out)
    assert.deepStrictEqual(readdirSync(out), ["precious"])
    assert.deepStrictEqual(temporaryNames(folder.path), [])
    await assertNothingRuns(command)
  })
})
