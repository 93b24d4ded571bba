// SPDX-License-Identifier: Apache-2.0
/**
 * The addon itself: anything may be passed to it, handles of a closed device are refused, and threads load and leave it in
 * the middle of everything.
 */

import { fileURLToPath } from "node:url"
import { Worker } from "node:worker_threads"
import { assert, describe, it } from "@effect/vitest"
import type { NativeAnswer } from "@tensorferry/native/NativeAddon"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import { type Addon, loadAddon } from "../src/Addon.ts"
import { openXpu, type Xpu } from "../src/Xpu.ts"
import { assertClean, lackOf, optionsOf, resetSimulator, simulator, subjects, titleOf } from "./simulator.ts"
import { hostTensor, pattern, value, withRig } from "./support.ts"

const codeOf = (answer: unknown): string => (answer as NativeAnswer<unknown> | undefined)?.code ?? "Ok"

describe("arguments", () => {
  it.live("of any kind are refused with a code", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const things: ReadonlyArray<unknown> = [
        undefined,
        null,
        -1,
        2 ** 60,
        1.5,
        "x",
        {},
        [],
        [1],
        5n,
        new Uint8Array(3),
        () => {}
      ]
      const functions = Object.entries(addon).filter(
        (entry): entry is [string, (...values: Array<unknown>) => unknown] => typeof entry[1] === "function"
      )
      assert.isAbove(functions.length, 15)
      for (const [name, call] of functions) {
        for (const first of things) {
          for (const second of things) {
            const code = codeOf(call(first, second, first, second, first))
            const isFine = name === "addressOf" && first instanceof Uint8Array
            assert.isTrue(isFine || ["InvalidArgument", "InvalidHandle"].includes(code), `${name}: ${code}`)
          }
        }
      }
    })
  )
})

/** What a handle of a closed device answers to every function that takes one. */
const answersOf = (addon: Addon, { native }: Xpu, copy: unknown): ReadonlyArray<string> => {
  const done = () => {}
  return [
    addon.closeDevice(native),
    addon.startAllocate(native, 8, done),
    addon.startFree(native, 8, done),
    addon.startDrain(native, done),
    addon.startMoves(native, new BigUint64Array(), done),
    addon.importHost(native, 8, 8),
    addon.releaseHost(native, 8, 8),
    addon.prepareCopy(native, 8, 8, 8, false),
    addon.holdQueue(native, 0),
    addon.startCopy(copy as never),
    addon.isCopyDone(copy as never),
    addon.copySeconds(copy as never),
    addon.startWait(copy as never, done),
    addon.finishCopy(copy as never, 1),
    addon.queueWaits(1, copy as never)
  ].map(codeOf)
}

for (const subject of subjects) {
  describe.skipIf(lackOf(subject) !== undefined)(titleOf(subject), () => {
    it.live("a closed device refuses, through all of its handles", () =>
      Effect.gen(function* () {
        const [addon, xpu, copy] = yield* withRig(subject, ({ addon, xpu, engine }) =>
          Effect.gen(function* () {
            const tensor = yield* engine.allocate("uint8", [8])
            const source = yield* hostTensor(engine, pattern(8, 1))
            const address = Number(tensor.storage.address)
            const copy = value(addon.prepareCopy(xpu.native, address, Number(source.storage.address), 8, false))
            assert.strictEqual(
              codeOf(addon.prepareCopy(xpu.native, address + 4096, address, 8, false)),
              "InvalidArgument"
            )
            assert.strictEqual(codeOf(addon.startMoves(xpu.native, new BigUint64Array(2), () => {})), "InvalidArgument")
            assert.isUndefined(addon.startCopy(copy))
            assert.isTrue(value(addon.finishCopy(copy, 20_000)))
            return [addon, xpu, copy] as const
          })
        )
        assert.deepStrictEqual([...new Set(answersOf(addon, xpu, copy))], ["InvalidHandle"])
      })
    )

    it.live("two layers share a device, which closes with the last of them", () =>
      Effect.gen(function* () {
        if (subject === "level-zero") resetSimulator()
        const addon = yield* loadAddon
        const options = optionsOf(subject)
        const [first, second, other] = yield* Effect.scoped(
          Effect.gen(function* () {
            const first = yield* openXpu(addon, options, 0)
            const second = yield* Effect.scoped(openXpu(addon, options, 0))
            assert.isFalse(first.isClosed())
            return [first, second, yield* openXpu(addon, { ...options, forbid: ["pinnedHost"] }, 0)] as const
          })
        )
        assert.strictEqual(first, second)
        assert.notStrictEqual(first, other)
        assert.isTrue(first.isClosed() && other.isClosed())
        if (subject === "level-zero") assertClean()
      })
    )

    const rounds = isSoak ? 10 : 1

    it.live("threads load it, two at a time, and leave in the middle of everything", () =>
      Effect.gen(function* () {
        if (subject === "level-zero") resetSimulator("memory=2g")
        const script = fileURLToPath(new URL("fixtures/busy-worker.ts", import.meta.url))
        for (let round = 0; round < rounds; round++) {
          const lives = [0, 1].map(async () => {
            const worker = new Worker(script, { workerData: subject })
            const failed = new Promise<never>((_, reject) => worker.once("error", reject))
            const begun = await Promise.race([new Promise((resolve) => worker.once("message", resolve)), failed])
            assert.strictEqual(begun, "Ok")
            await worker.terminate()
          })
          yield* Effect.promise(() => Promise.all(lives))
        }
        if (subject === "level-zero") {
          assert.deepStrictEqual(simulator.report().violations, [])
          assertClean()
        }
        yield* withRig(subject, ({ engine }) => engine.allocate("uint8", [8]))
      })
    )
  })
}
