// SPDX-License-Identifier: Apache-2.0
/**
 * Loading the addon, what it refuses, and how it dies with its thread.
 */

import { spawnSync } from "node:child_process"
import { tmpdir } from "node:os"
import { fileURLToPath } from "node:url"
import { Worker } from "node:worker_threads"
import { assert, describe, it } from "@effect/vitest"
import { dtypes } from "@tensorferry/core/base/DType"
import type { NativeAnswer, NativeHandle } from "@tensorferry/native/NativeAddon"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import { type Addon, loadAddon, loadAddonFrom } from "../src/Addon.ts"
import { openMemoryFiles } from "./support.ts"

const codeOf = (answer: NativeAnswer<unknown>) => answer.code

describe("loading", () => {
  it.live("is Unavailable with a remedy where there is no addon", () =>
    Effect.gen(function* () {
      const { reason } = yield* Effect.flip(loadAddonFrom(tmpdir()))
      assert.strictEqual(reason._tag, "Unavailable")
      assert.include(reason.detail, tmpdir())
      assert.include(reason.remedy, "build:native")
    })
  )

  it.live("agrees on types and codes", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      assert.deepStrictEqual(addon.dtypes, [...dtypes])
      assert.include(addon.codes, "PeerGone")
      assert.strictEqual(yield* loadAddon, addon)
    })
  )
})

/** What a fixture prints in a process of its own, which it must not end early. */
const fixture = (name: string): string => {
  const file = fileURLToPath(new URL(`./fixtures/${name}`, import.meta.url))
  const ended = spawnSync(process.execPath, [file], { encoding: "utf8" })
  assert.strictEqual(ended.status, 0, `${ended.signal}: ${ended.stderr}`)
  return ended.stdout.trim()
}

describe("a process", () => {
  it("may read the bytes of memory that has ended, from buffers that it transferred them to", () => {
    assert.strictEqual(fixture("transferred.ts"), "read true")
  })

  it.skipIf(spawnSync("prlimit", ["--version"]).status !== 0)("that gets no more threads is refused a pool", () => {
    const { refused, made, threads } = JSON.parse(fixture("few-threads.ts"))
    assert.strictEqual(refused.code, "SystemFailure")
    assert.include(refused.detail, "A thread could not be made")
    // None of the pool that failed is left.
    assert.deepStrictEqual({ made, threads }, { made: "Ok", threads: 20 })
  })
})

describe("native functions", () => {
  it.live("answer InvalidArgument to arguments of the wrong kind, never throw", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const functions = Object.entries(addon).filter(([, value]) => typeof value === "function")
      assert.isAbove(functions.length, 12)
      const wrong: ReadonlyArray<ReadonlyArray<unknown>> = [
        [null],
        [{}, {}, {}],
        [-1],
        [Number.NaN, 1n, 1, 1n, 1, true],
        ["x".repeat(10), 1, 2, 3]
      ]
      for (const [name, call] of functions) {
        for (const values of [[], ...wrong]) {
          // These take no arguments.
          if (["identity", "createDoorbell", "memoryCuts"].includes(name)) continue
          const answer = (call as (...values: ReadonlyArray<unknown>) => NativeAnswer<unknown>)(...values)
          // What takes nothing but a doorbell calls everything else no doorbell.
          const code = name === "ringDoorbell" ? "InvalidHandle" : "InvalidArgument"
          assert.strictEqual(codeOf(answer), code, `${name}(${values.length})`)
        }
      }
    })
  )

  it.live("distinguish handles of different kinds", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const pool = addon.createPool(1)
      assert.strictEqual(pool.code, "Ok")
      if (pool.code !== "Ok") return
      const asAny = <Kind extends string>() => pool.value as NativeHandle<string> as NativeHandle<Kind>
      assert.strictEqual(codeOf(addon.closeMemory(asAny<"memory">(), undefined)), "InvalidArgument")
      assert.strictEqual(codeOf(addon.cancelJob(asAny<"job">())), "InvalidArgument")
      assert.strictEqual(codeOf(addon.closePool(pool.value)), "Ok")
      assert.strictEqual(
        codeOf(addon.startMoves(pool.value, new BigUint64Array(0), false, () => assert.fail("must not run"))),
        "InvalidHandle"
      )
    })
  )

  it.live("refuse tables of the wrong form", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const pool = addon.createPool(1)
      if (pool.code !== "Ok") return assert.fail(pool.detail)
      const start = (call: "startMoves" | "startReduce", words: ReadonlyArray<bigint>) =>
        codeOf(
          call === "startMoves"
            ? addon.startMoves(pool.value, BigUint64Array.from(words), true, () => assert.fail("must not run"))
            : addon.startReduce(pool.value, BigUint64Array.from(words), () => assert.fail("must not run"))
        )
      const moves: ReadonlyArray<ReadonlyArray<bigint>> = [
        [0n],
        [2n, 0n, 0n],
        [1n << 24n, 0n, 0n],
        [(1n << 24n) | (0xffn << 8n), 0n, 0n, 0n, 0n, 0n],
        [18n << 8n, 0n, 0n],
        [(16n << 8n) | (1n << 16n), 0n, 0n],
        [(1n << 8n) | (1n << 32n), 0n, 0n],
        [(1n << 8n) | (1n << 16n) | (1n << 63n), 0n, 0n]
      ]
      for (const words of moves) assert.strictEqual(start("startMoves", words), "InvalidArgument", words.join())
      const reductions: ReadonlyArray<ReadonlyArray<bigint>> = [
        [],
        [5n, 11n, 0n, 1n, 0n, 0n],
        [0n, 16n, 0n, 1n, 0n, 0n],
        [0n, 11n, 0n, 0n, 0n],
        [0n, 11n, 1n, 1n, 0n, 0n],
        [0n, 11n, 0n, 2n ** 63n, 0n, 0n]
      ]
      for (const words of reductions) assert.strictEqual(start("startReduce", words), "InvalidArgument", words.join())
    })
  )
})

describe("worker threads", () => {
  const rounds = isSoak ? 20 : 6

  it.live("load, use and leave the addon in the middle of everything, again and again", () =>
    Effect.gen(function* () {
      const before = openMemoryFiles()
      const script = fileURLToPath(new URL("fixtures/busy-worker.ts", import.meta.url))
      for (let round = 0; round < rounds; round++) {
        yield* Effect.promise(async () => {
          const worker = new Worker(script)
          const failed = new Promise<never>((_, reject) => worker.once("error", reject))
          await Promise.race([new Promise((resolve) => worker.once("message", resolve)), failed])
          await worker.terminate()
        })
      }
      assert.deepStrictEqual(openMemoryFiles(), before)
      const addon: Addon = yield* loadAddon
      assert.strictEqual(codeOf(addon.identity()), "Ok")
    })
  )
})
