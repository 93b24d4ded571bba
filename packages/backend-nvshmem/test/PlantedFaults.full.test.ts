// SPDX-License-Identifier: Apache-2.0
/**
 * Faults planted into what the driver hands to the addon: each is found, by wrong bytes or by what the simulated device
 * objects to, within a few orders of its work. Without a fault the same batches are right.
 */
import { assert, describe, it } from "@effect/vitest"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Addon, loadAddon } from "@tensorferry/gpu/Addon"
import { makeDeviceMemory } from "@tensorferry/gpu/DeviceMemory"
import { openGpu } from "@tensorferry/gpu/Gpu"
import * as CudaEngine from "@tensorferry/gpu/TensorEngine"
import { runBatch } from "@tensorferry/testing/transfers/randomBatches"
import { randomTransfer } from "@tensorferry/testing/transfers/randomTransfers"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { callKinds } from "../src/Addon.ts"
import { deviceOptions, type NvshmemOptions } from "../src/options.ts"
import { assertClean, driverOf, resetSimulator, testOptions } from "./cluster.ts"
import { simulator, violations } from "./simulator.ts"

/** Words of a step behind the first, by kind; see StepTable. A reduction and a call bring their own. */
const wordsOf = [0, 3, 1, 1, 1, 1, 0, 3, 3, 0, 2, 1, 1, 1]
const [record, wait, call] = [4, 5, 13]
const [packing, wire, unpacking] = [0, 1, 2]

interface Step {
  readonly kind: number
  readonly stream: number
  readonly words: ReadonlyArray<number>
  /** The stream on which the event was recorded that a wait is for. */
  readonly on: number | undefined
}

/** The steps of a table for which `isKept` holds. */
const filterSteps = (steps: BigUint64Array, isKept: (step: Step) => boolean): BigUint64Array => {
  const recordedOn = new Map<number, number>()
  const kept: Array<bigint> = []
  for (let at = 0; at < steps.length; ) {
    const [kind, stream] = [Number(steps[at]! & 0xffn), Number((steps[at]! >> 8n) & 0xffn)]
    const end = at + 1 + wordsOf[kind]! + (kind === call || kind === 3 ? Number(steps[at + 1]!) : 0)
    const words = [...steps.subarray(at + 1, end)].map(Number)
    if (kind === record) recordedOn.set(words[0]!, stream)
    const on = kind === wait ? recordedOn.get(words[0]!) : undefined
    if (isKept({ kind, stream, words, on })) kept.push(...steps.subarray(at, end))
    at = end
  }
  return BigUint64Array.from(kept)
}

const isCall = ({ kind, words }: Step, of: number) => kind === call && words[1] === of

/** Strided parts in both directions, many batches of them. */
const transfers = Array.from({ length: 24 }, (_, taskId) =>
  randomTransfer(taskId, taskId % 2, 1 - (taskId % 2), "uint8", [20 + taskId, 211])
)

/** Everything that is wrong with a run in which the addon is changed; empty where nothing was noticed. */
const findings = async (
  seed: number,
  options: NvshmemOptions,
  change: (addon: Addon) => Addon
): Promise<ReadonlyArray<string>> => {
  resetSimulator(`seed=${seed} stuck=4000`)
  const all = { ...testOptions, slotBytes: 4096, slots: 2, ...options }
  let next = 0
  const engine = Layer.effect(
    TensorEngine,
    Effect.gen(function* () {
      const device = { ...deviceOptions(all), device: next++ }
      const gpu = yield* openGpu(change(yield* loadAddon), "test", device)
      return yield* CudaEngine.make(gpu, makeDeviceMemory(gpu, device))
    })
  )
  const batch = runBatch(transfers, 2, Layer.provideMerge(driverOf(all), engine), 1)
  const wrong = await Promise.race([batch, standstill()])
  if (wrong.includes(nothingGotOn)) {
    // What waits ends with the simulated world, and must not reach into the next one.
    simulator.reset()
    await batch
  }
  return [...wrong, ...violations()]
}

const nothingGotOn = "nothing got on"

/** Signals that overtake each other can also make a PE wait for ever. */
const standstill = () =>
  new Promise<ReadonlyArray<string>>((resolve) => {
    setTimeout(() => resolve([nothingGotOn]), 15_000).unref()
  })

const seeds = 60

describe("a missing wait is found", () => {
  const faults: ReadonlyArray<readonly [string, NvshmemOptions["path"] & string, (step: Step) => boolean]> = [
    [
      "a put before its batch is packed",
      "put",
      ({ kind, stream, on }) => kind === wait && stream === wire && on === packing
    ],
    [
      "packing while the put still reads",
      "put",
      ({ kind, stream, on }) => kind === wait && stream === packing && on === wire
    ],
    ["a put without leave", "put", (step) => isCall(step, callKinds.wait) && step.stream === wire],
    ["a write without leave", "direct", (step) => isCall(step, callKinds.wait) && step.stream > unpacking],
    ["unpacking before the batch is there", "put", (step) => isCall(step, callKinds.wait) && step.stream === unpacking]
  ]
  for (const [name, path, isMissing] of faults) {
    it(name, { timeout: 240_000 }, async () => {
      let planted = 0
      let found: ReadonlyArray<string> = []
      const missing = (addon: Addon): Addon => ({
        ...addon,
        createProgram: (device, steps, moves, communicator, calls) => {
          const changed = filterSteps(steps, (step) => !isMissing(step))
          if (changed.length < steps.length) planted += 1
          return addon.createProgram(device, changed, moves, communicator, calls)
        }
      })
      for (let seed = 1; seed <= seeds && found.length === 0; seed++) found = await findings(seed, { path }, missing)
      assert.isAbove(planted, 0)
      assert.isNotEmpty(found)
    })
  }
})

describe("without a fault", () => {
  it("nothing is found", { timeout: 120_000 }, async () => {
    for (let seed = 1; seed <= 2; seed++) {
      for (const path of ["put", "direct"] as const) {
        assert.deepStrictEqual(await findings(seed, { path }, (addon) => addon), [], `${path}, seed ${seed}`)
        assertClean(`of ${path}, seed ${seed}`)
      }
    }
  })
})
