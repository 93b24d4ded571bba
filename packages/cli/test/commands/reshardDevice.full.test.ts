// SPDX-License-Identifier: Apache-2.0
/**
 * `reshard --device` with conversions and other names: what it writes from memory of a simulated GPU is, file by file, what it
 * writes from memory of the host.
 */

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
})
