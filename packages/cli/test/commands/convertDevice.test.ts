// SPDX-License-Identifier: Apache-2.0
/** `convert --device`: files that are made in memory of a simulated GPU are those that the host makes. */
import { readdirSync } from "node:fs"
import { join } from "node:path"
import { afterAll, afterEach, assert, describe, it } from "@effect/vitest"
import { endAll, failuresOf, run, scratch } from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { contentsOf, simulated } from "../support/simulatedDevice.ts"
import { writeSmallModel } from "../support/smallModels.ts"

afterEach(endAll)

const folder = scratch()
const at = (name: string) => join(folder.path, name)
afterAll(() => folder[Symbol.dispose]())

const onDevice = (args: ReadonlyArray<string>, settings?: string) =>
  run([...args, "--device", "cuda:0", "--json"], { env: simulated(settings), limit: 120_000 })

describe("convert --device", () => {
  for (const [type, side] of [
    ["llama", "vllm:tp=2"],
    ["qwen3_moe", "megatron:tp=2,ep=2"],
    ["gpt_oss", "vllm:tp=2"]
  ] as const) {
    it(`${type} to ${side} and back: what the host writes`, async () => {
      const model = await writeSmallModel(at(type), type)
      const [host, device] = [at(`${type}-host`), at(`${type}-device`)]
      const ended = await Promise.all([
        runHere(["convert", model, "--to", side, "--out", host]),
        onDevice(["convert", model, "--to", side, "--out", device])
      ])
      for (const { code, stderr, stdout } of ended) assert.strictEqual(code, 0, stdout + stderr)
      assert.deepStrictEqual(contentsOf(device), contentsOf(host))
      const back = await onDevice(["convert", device, "--to", "hf:", "--out", at(`${type}-back`)])
      assert.strictEqual(back.code, 0, back.stdout + back.stderr)
      assert.strictEqual(contentsOf(at(`${type}-back`))["model.safetensors"], contentsOf(model)["model.safetensors"])
    })
  }

  it("is refused with the figures where the device has too little memory, and leaves nothing", async () => {
    const model = await writeSmallModel(at("small"), "llama")
    const args = ["convert", model, "--to", "vllm:tp=2", "--out", at("refused")]
    const [failure] = failuresOf(await onDevice(args, "devices=1 memory=60000000"))
    assert.strictEqual(failure!.reason, "NotEnoughMemory", failure!.message)
    assert.match(failure!.message, /Rank 0 needs 64\.0 MiB of memory for tensors on device cuda:0/)
    const [limited] = failuresOf(await onDevice([...args, "--memory-limit", "10MiB"]))
    assert.include(limited!.message, "and the limit is 10.0 MiB.")
    const [absent] = failuresOf(await onDevice(["convert", at("absent"), ...args.slice(2)], "devices=0"))
    assert.include(absent!.message, "tensorferry doctor")
    assert.notInclude(readdirSync(folder.path).join(), "refused")
  })
})
