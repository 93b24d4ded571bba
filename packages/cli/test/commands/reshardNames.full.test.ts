// SPDX-License-Identifier: Apache-2.0
/**
 * `tensorferry reshard` between the names of systems, with a process for each rank: proved bit by bit, and file by file what
 * `convert` writes.
 */
import { mkdirSync, readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { endAll, failuresOf, run, scratch } from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { writeSmallModel } from "../support/smallModels.ts"

afterEach(endAll)

const succeeds = async (...args: ReadonlyArray<string>): Promise<void> => {
  const ended = await run(args)
  assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
}

const assertSameFolders = (found: string, expected: string): void => {
  assert.deepStrictEqual(readdirSync(found).sort(), readdirSync(expected).sort())
  for (const name of readdirSync(expected))
    assert.isTrue(readFileSync(join(found, name)).equals(readFileSync(join(expected, name))), name)
}

describe("reshard between names", () => {
  for (const [type, from, to] of [
    ["llama", "megatron:tp=2", "vllm:tp=4"],
    ["qwen3_moe", "megatron:tp=2,ep=2", "vllm:tp=2,dp=2,ep=4"],
    ["gpt_oss", "fsdp2:tp=2", "megatron:tp=2,ep=2"]
  ] as const) {
    it(`${type} from ${from} to ${to} and back writes what convert writes`, async () => {
      using folder = scratch()
      const at = (name: string) => join(folder.path, name)
      const model = await writeSmallModel(at("hf"), type)
      await succeeds("reshard", `hf:${model}`, "--from", from, "--to", to, "--out", at("moved"))
      assert.strictEqual((await runHere(["convert", model, "--to", to, "--out", at("converted")])).code, 0)
      assertSameFolders(at("moved"), at("converted"))
      const convention = to.slice(0, to.indexOf(":"))
      const stored = [`${convention}:${at("moved")}`, "--from", to, "--like", model, "--to", "hf:"]
      await succeeds("reshard", ...stored, "--max-file-size", "100KB", "--out", at("back"))
      const back = await runHere(["convert", ...stored, "--max-file-size", "100KB", "--out", at("back-too")])
      assert.strictEqual(back.code, 0, back.stderr)
      assertSameFolders(at("back"), at("back-too"))
      assert.strictEqual((await runHere(["verify", at("back"), model])).code, 0)
    }, 120_000)
  }

  it("a folder without files of ranks is refused before any rank starts", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const out = join(folder.path, "out")
    mkdirSync(out)
    const ended = await run(["reshard", `vllm:${out}`, "--from", "vllm:tp=2", "--like", model, "--to", "hf:", "--json"])
    assert.strictEqual(ended.code, 2)
    assert.include(failuresOf(ended)[0]!.message, "It holds no files of ranks, and 2 ranks are stated.")
  })
})
