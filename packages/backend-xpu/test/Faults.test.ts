// SPDX-License-Identifier: Apache-2.0
/**
 * Faults planted in the simulated driver must be seen by what the tests look at: otherwise a fault of the backend itself,
 * a forgotten wait above all, would pass unseen. And errors of any call, at any time, must be told and leave nothing.
 */

import { assert, describe, it } from "@effect/vitest"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { lackOf, resetSimulator, simulator, titleOf } from "./simulator.ts"
import { bytesOf, hostTensor, pattern, type Rig, setPoison, withRig } from "./support.ts"

const length = 60_001

/** What overtook a mark still runs, and must not disturb the next round. */
const settled = Effect.gen(function* () {
  while (simulator.report().pending > 0) yield* Effect.sleep(1)
}).pipe(Effect.timeout("20 seconds"))

/** Submits, waits, and compares; the number of rounds in which bytes were missing though the slot was ready. */
const missingAfterReady = ({ replay, engine }: Rig, rounds: number) =>
  Effect.gen(function* () {
    const [slot] = yield* replay.allocateDeviceSlots({ count: 1, shape: [length], dtype: "uint8" })
    let missing = 0
    for (let round = 0; round < rounds && missing === 0; round++) {
      setPoison(slot!)
      const source = yield* hostTensor(engine, pattern(length, round))
      yield* replay.submitH2d({ slot: 0, destination: slot!, source })
      yield* replay.waitReady(0)
      if (Buffer.compare(bytesOf(slot!), pattern(length, round)) !== 0) missing += 1
      yield* settled
      yield* replay.clearReady(0)
    }
    return missing
  })

/** The same for the engine's queue behind a slot: copies out of it that came too early. */
const earlyBehindStream = ({ replay, engine }: Rig, rounds: number) =>
  Effect.gen(function* () {
    const [slot, result] = yield* replay.allocateDeviceSlots({ count: 2, shape: [length], dtype: "uint8" })
    let early = 0
    for (let round = 0; round < rounds && early === 0; round++) {
      setPoison(slot!)
      const source = yield* hostTensor(engine, pattern(length, round))
      yield* replay.submitH2d({ slot: 0, destination: slot!, source })
      yield* replay.waitCurrentStreamForReady(0)
      yield* engine.copy([{ dst: result!, src: slot! }])
      if (Buffer.compare(bytesOf(result!), pattern(length, round)) !== 0) early += 1
      yield* replay.waitReady(0)
      yield* settled
      yield* replay.clearReady(0)
    }
    return early
  })

/** Batches of the engine whose bytes were not there at their end. */
const missingAfterCopy = ({ engine }: Rig, rounds: number) =>
  Effect.gen(function* () {
    const tensor = yield* engine.allocate("uint8", [length])
    let missing = 0
    for (let round = 0; round < rounds && missing === 0; round++) {
      setPoison(tensor)
      const source = yield* hostTensor(engine, pattern(length, round))
      yield* engine.copy([{ dst: tensor, src: source }])
      if (Buffer.compare(bytesOf(tensor), pattern(length, round)) !== 0) missing += 1
      yield* settled
    }
    return missing
  })

const planted = [
  ["events that are signalled when their command starts", "early-signal", missingAfterReady],
  ["queues that do not wait for events", "forget-waits", earlyBehindStream],
  ["barriers that do nothing", "forget-order", missingAfterCopy]
] as const

describe.skipIf(lackOf("level-zero") !== undefined)(`planted faults, ${titleOf("level-zero")}`, () => {
  for (const [what, fault, look] of planted) {
    it.live(`${what} are seen`, () =>
      Effect.gen(function* () {
        assert.strictEqual(yield* withRig("level-zero", (rig) => look(rig, 6)), 0)
        const seen = yield* withRig("level-zero", (rig) =>
          Effect.gen(function* () {
            simulator.configure(`fault=${fault}`)
            const found = yield* look(rig, 600)
            simulator.configure("clear=faults")
            yield* settled
            return found
          })
        )
        assert.isAbove(seen, 0)
      })
    )
  }

  /** One life of everything: opens, registers, copies both ways, strides, fills, waits. */
  const life = (rig: Rig) =>
    Effect.gen(function* () {
      const { replay, engine } = rig
      const source = yield* hostTensor(engine, pattern(length, 3))
      yield* replay.registerHostSlots([source])
      const [slot] = yield* replay.allocateDeviceSlots({ count: 1, shape: [length], dtype: "uint8" })
      yield* replay.submitH2d({ slot: 0, destination: slot!, source })
      yield* replay.waitCurrentStreamForReady(0)
      yield* replay.waitReady(0)
      const thirds = { ...slot!, shape: [20_000], strides: [3] }
      const out = yield* hostTensor(engine, new Uint8Array(20_000))
      yield* engine.copy([{ dst: out, src: thirds }])
      yield* engine.fill({ ...slot!, shape: [50, 7], strides: [1000, 1] }, 9)
      yield* engine.copy([
        { dst: { ...slot!, shape: [50, 7], strides: [1000, 1] }, src: { ...out, shape: [50, 7], strides: [7, 1] } }
      ])
      return yield* replay.copySeconds(0)
    })

  const functions = [
    "zeContextCreate",
    "zeCommandListCreateImmediate",
    "zeEventPoolCreate",
    "zeEventCreate",
    "zeEventQueryStatus",
    "zeEventHostSynchronize",
    "zeEventHostReset",
    "zeEventQueryKernelTimestamp",
    "zeMemAllocDevice",
    "zeMemAllocHost",
    "zeMemFree",
    "zeCommandListAppendMemoryCopy",
    "zeCommandListAppendMemoryCopyRegion",
    "zeCommandListAppendMemoryFill",
    "zeCommandListAppendBarrier",
    "zexDriverImportExternalPointer",
    "zexDriverReleaseImportedPointer"
  ]

  it.live("an error of any call is reported with its number, and the driver sees no misuse", () =>
    Effect.gen(function* () {
      const nativeCode = 0x70000002
      const reported = new Set<string>()
      for (const name of functions) {
        for (let nth = 1; nth <= (isSoak ? 8 : 3); nth++) {
          resetSimulator()
          const exit = yield* Effect.exit(
            withRig("level-zero", life, {
              // A barrier is asked for only while a copy is under way, so copies take their time then.
              settings: `pace=${name === "zeCommandListAppendBarrier" ? 50 : 1} fail=${name}:${nth}:${nativeCode}`,
              timing: true,
              isJudged: false
            })
          )
          const what = `${name}, call ${nth}`
          // What the driver does not take back is still there when the context goes.
          const expected = name === "zeMemFree" ? ["context-in-use"] : []
          const misuse = simulator.report().violations.filter((one) => !expected.includes(one.name))
          assert.deepStrictEqual(misuse, [], what)
          assert.strictEqual(simulator.report().live.lists, 0, what)
          if (Exit.isSuccess(exit)) continue
          const [reason] = exit.cause.reasons
          if (reason?._tag !== "Fail") return assert.fail(`${what}: ${String(exit.cause)}`)
          const error = reason.error as { readonly reason: { readonly nativeCode?: number; readonly detail: string } }
          assert.strictEqual(error.reason.nativeCode, nativeCode, `${what}: ${error.reason.detail}`)
          reported.add(name)
        }
      }
      // Some are probed for, or fall back; these must be told.
      for (const name of [
        "zeContextCreate",
        "zeCommandListCreateImmediate",
        "zeMemAllocDevice",
        "zeCommandListAppendMemoryCopy",
        "zeCommandListAppendMemoryFill",
        "zeCommandListAppendBarrier",
        "zexDriverImportExternalPointer"
      ]) {
        assert.isTrue(reported.has(name), `${name}: ${[...reported].join()}`)
      }
    })
  )
})
