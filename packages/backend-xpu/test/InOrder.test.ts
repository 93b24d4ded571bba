// SPDX-License-Identifier: Apache-2.0
/**
 * Lists that keep the order by themselves, as drivers have from version 1.7 of the interface on. Without the loader's
 * parameter checks, which here are of version 1.4 and refuse the flag; that refusal is a test of its own.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { lackOf, setEnvironment, simulator, titleOf } from "./simulator.ts"
import { assertBytes, hostTensor, pattern, setPoison, withRig } from "./support.ts"

// Before the loader starts, which is with the first device.
setEnvironment("ZE_ENABLE_PARAMETER_VALIDATION", "0")

const length = 40_001

describe.skipIf(lackOf("level-zero") !== undefined)(titleOf("level-zero"), () => {
  for (const [api, isInOrder] of [
    ["1.7", true],
    ["1.6", false]
  ] as const) {
    it.live(`a driver of version ${api} ${isInOrder ? "keeps the order without" : "gets"} barriers`, () =>
      withRig(
        "level-zero",
        ({ replay, engine, xpu }) =>
          Effect.gen(function* () {
            assert.strictEqual(xpu.capabilities.inOrderQueues, isInOrder)
            const [slot, result] = yield* replay.allocateDeviceSlots({ count: 2, shape: [length], dtype: "uint8" })
            const barriers = () => simulator.report().calls.zeCommandListAppendBarrier ?? 0
            for (let round = 0; round < 5; round++) {
              setPoison(slot!)
              const source = yield* hostTensor(engine, pattern(length, round))
              const before = barriers()
              yield* replay.submitH2d({ slot: 0, destination: slot!, source })
              assert.strictEqual(barriers() - before, isInOrder || round === 0 ? 0 : 1)
              yield* replay.waitCurrentStreamForReady(0)
              yield* engine.copy([{ dst: result!, src: slot! }])
              assertBytes(result!, pattern(length, round))
              yield* replay.waitReady(0)
              yield* replay.clearReady(0)
            }
          }),
        // Another list of names, so that the driver is listed anew with its version.
        { settings: `api=${api}`, libraries: { levelZero: ["libze_loader.so.1", `/none/${api}`] } }
      )
    )
  }
})
