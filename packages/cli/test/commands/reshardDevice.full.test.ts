// SPDX-License-Identifier: Apache-2.0
/**
 * `reshard --device` with conversions and other names: what it writes from memory of a simulated GPU is, file by file, what it
 * writes from memory of the host.
 */

import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterAll, afterEach, assert, beforeAll, describe, it } from "@effect/vitest"
import { endAll, run, scratch } from "../support/command.ts"
import { contentsOf, simulated } from "../support/simulatedDevice.ts"
import { writeSmallModel } from "../support/smallModels.ts"

afterEach(endAll)

const folder = scratch()
const at = (name: string) => join(folder.path, name)
afterAll(() => folder[Symbol.dispose]())
let model: string
beforeAll(async () => {
  model = await writeSmallModel(at("llama"), "llama")
})

/** All of it goes to another process, so that blocks need no cut. */
const toOther = ["--to", "tp=1", "--ranks", "disjoint"]

describe("reshard --device", () => {
  for (const [title, args] of [
    ["a cast", ["--to", "tp=2", "--dtype", "float16"]],
    ["a cast from another layout", ["--from", "tp=2", "--to", "tp=1", "--dtype", "float32"]],
    ["MXFP8 by the sender", [...toOther, "--transform", "mxfp8:rceil:sender"]],
    ["MXFP8 by the receiver", [...toOther, "--transform", "mxfp8:ocp_floor:receiver"]],
    ["FP8 in blocks", [...toOther, "--transform", "fp8-block"]],
    ["NVFP4", [...toOther, "--transform", "nvfp4"]],
    ["the names of an engine", ["--to", "vllm:tp=2"]],
    ["the names of a trainer", ["--to", "megatron:tp=2"]]
  ] as const) {
    it(`with ${title}: what host memory gives`, async () => {
      const [host, device] = [at(`${title}-host`), at(`${title}-device`)]
      const command = ["reshard", model, ...args, "--json", "--out"]
      const ended = await Promise.all([
        run([...command, host]),
        run([...command, device, "--device", "cuda:0"], { env: simulated(), limit: 120_000 })
      ])
      for (const { code, stderr, stdout } of ended) assert.strictEqual(code, 0, stdout + stderr)
      assert.deepStrictEqual(contentsOf(device), contentsOf(host))
    })
  }

  for (const [title, args] of [
    ["collectives, a device for each rank", ["--backend", "nccl", "--device", "cuda"]],
    ["the peer's memory, devices in turn", ["--backend", "cuda-ipc", "--device", "cuda:1,0"]],
    ["sockets, by way of the host", ["--backend", "tcp", "--device", "cuda:0"]],
    [
      "options for the backend that auto takes",
      ["--options", '{"backends": {"cuda": {"arenaBytes": 1048576}}}', "--device", "cuda"]
    ]
  ] as const) {
    it(`over ${title}: the same files`, async () => {
      const [host, device] = [at(`${title}-host`), at(`${title}-device`)]
      const command = ["reshard", model, "--to", "tp=2", "--json", "--out"]
      const ended = await Promise.all([
        run([...command, host]),
        run([...command, device, ...args], {
          env: { ...simulated("devices=2"), TENSORFERRY_TOKEN: "a".repeat(32) },
          limit: 120_000
        })
      ])
      for (const { code, stderr, stdout } of ended) assert.strictEqual(code, 0, stdout + stderr)
      assert.deepStrictEqual(contentsOf(device), contentsOf(host))
    })
  }

  it("sends what changed since a version that ranks hold: the same files", async () => {
    const before = await writeSmallModel(at("before"), "llama")
    const file = join(before, "model.safetensors")
    const bytes = readFileSync(file)
    for (let place = bytes.length - 50; place < bytes.length; place += 7) bytes[place]! ^= 3
    writeFileSync(file, bytes)
    const command = ["reshard", model, "--to", "tp=2", "--delta-from", before, "--json", "--out"]
    const ended = await Promise.all([
      run([...command, at("delta-host")]),
      run([...command, at("delta-device"), "--device", "cuda"], { env: simulated(), limit: 120_000 })
    ])
    for (const { code, stderr, stdout } of ended) assert.strictEqual(code, 0, stdout + stderr)
    assert.deepStrictEqual(contentsOf(at("delta-device")), contentsOf(at("delta-host")))
  })

  it("moves one tensor between meshes, and shards back to one file", async () => {
    const mesh = ["--tensor", "lm_head.weight", "--from-mesh", "2:S0", "--to-mesh", "2:S1"]
    const ended = await run(["reshard", model, ...mesh, "--device", "cuda", "--json"], { env: simulated() })
    assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
    const shards = await run(["reshard", model, "--to", "tp=2", "--out", at("shards"), "--json"])
    assert.strictEqual(shards.code, 0, shards.stdout)
    const back = await run(
      ["reshard", at("shards"), "--to", "tp=1", "--out", at("back"), "--device", "cuda", "--json"],
      { env: simulated() }
    )
    assert.strictEqual(back.code, 0, back.stdout + back.stderr)
    assert.strictEqual(contentsOf(at("back"))["model.safetensors"], contentsOf(model)["model.safetensors"])
  })
})
