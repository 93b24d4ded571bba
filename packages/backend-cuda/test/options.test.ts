// SPDX-License-Identifier: Apache-2.0
/** Options: what is known, what is refused by its path, and what the environment fills in. */
import { assert, describe, it } from "@effect/vitest"
import { chooseOrdinal, kernelCacheFolder } from "@tensorferry/gpu/options"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { CudaOptions } from "../src/options.ts"

const decode = Schema.decodeUnknownResult(CudaOptions)

describe("options", () => {
  it("takes what it knows", () => {
    for (const good of [
      {},
      { device: 3, vendor: "rocm", blocks: 132, kernelCache: "/tmp/kernels" },
      { libraries: { runtime: "a", collectives: ["b", "c"] } },
      { stagingBytes: 2 ** 20, directBytes: 1, copyEngineBytes: 2 ** 40, direction: "push", arenaBytes: 2 ** 16 }
    ]) {
      assert.deepStrictEqual<unknown>(Result.getOrThrow(decode(good)), good)
    }
  })

  it("refuses the rest, naming the path", () => {
    for (const [bad, named] of [
      [{ devices: 1 }, "devices"],
      [{ device: -1 }, "device"],
      [{ libraries: { runtimes: "a" } }, "runtimes"],
      [{ direction: "up" }, "direction"],
      [{ stagingBytes: 10 }, "stagingBytes"],
      [{ blocks: 0 }, "blocks"],
      [null, ""],
      ["cuda", ""]
    ] as const) {
      const refused = decode(bad)
      assert.isTrue(Result.isFailure(refused), JSON.stringify(bad))
      if (Result.isFailure(refused)) assert.include(refused.failure.message, named)
    }
  })

  it("chooses the device by option, then by the rank on the machine, counted around", () => {
    assert.strictEqual(chooseOrdinal({}, 4, {}), 0)
    assert.strictEqual(chooseOrdinal({}, 4, { LOCAL_RANK: "6" }), 2)
    assert.strictEqual(chooseOrdinal({}, 4, { SLURM_LOCALID: "1", RANK: "3" }), 1)
    assert.strictEqual(chooseOrdinal({}, 2, { RANK: "7" }), 1)
    assert.strictEqual(chooseOrdinal({}, 4, { LOCAL_RANK: "x" }), 0)
    assert.strictEqual(chooseOrdinal({ device: 3 }, 2, { LOCAL_RANK: "0" }), 3)
  })

  it("keeps kernels in the user's cache", () => {
    assert.strictEqual(kernelCacheFolder({}, { HOME: "/home/a" }), "/home/a/.cache/tensorferry")
    assert.strictEqual(kernelCacheFolder({}, { HOME: "/home/a", XDG_CACHE_HOME: "/c" }), "/c/tensorferry")
    assert.strictEqual(kernelCacheFolder({ kernelCache: "/k" }, { HOME: "/home/a" }), "/k")
    assert.strictEqual(kernelCacheFolder({}, {}), undefined)
  })
})
