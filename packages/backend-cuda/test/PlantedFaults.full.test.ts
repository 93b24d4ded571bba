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
import { assertClean, resetSimulator, violations } from "@tensorferry/simulators/gpu"
import { runBatch } from "@tensorferry/testing/transfers/randomBatches"
import { randomTransfer } from "@tensorferry/testing/transfers/randomTransfers"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { driverOf, testOptions } from "./cluster.ts"

/** Words of a step behind the first, by kind; see StepTable. */
const wordsOf = [0, 3, 1, 1, 1, 1, 0, 3, 3, 0, 2, 1, 1]
const [reduce, record, wait] = [3, 4, 5]

/** A program in which a stream never waits for another: as if the compiler lacked one statement. */
const withoutWaits = (steps: BigUint64Array, of: number, on: number): BigUint64Array => {
  const recordedOn = new Map<bigint, number>()
  const kept: Array<bigint> = []
  for (let at = 0; at < steps.length; ) {
    const [kind, stream] = [Number(steps[at]! & 0xffn), Number((steps[at]! >> 8n) & 0xffn)]
    // A reduction brings its own words.
    const end = at + 1 + wordsOf[kind]! + (kind === reduce ? Number(steps[at + 1]!) : 0)
    if (kind === record) recordedOn.set(steps[at + 1]!, stream)
    const isMeant = kind === wait && stream === of && recordedOn.get(steps[at + 1]!) === on
    if (!isMeant) kept.push(...steps.subarray(at, end))
    at = end
  }
  return BigUint64Array.from(kept)
}

/** Strided parts in both directions, several windows of them. */
const transfers = Array.from({ length: 40 }, (_, taskId) =>
  randomTransfer(taskId, taskId % 2, 1 - (taskId % 2), "uint8", [20 + taskId, 211])
)

const options = { ...testOptions, stagingBytes: 2 ** 16 }

/** Everything that is wrong with a run in which the addon is changed; empty where nothing was noticed. */
const findings = async (seed: number, change: (addon: Addon) => Addon): Promise<ReadonlyArray<string>> => {
  resetSimulator(`seed=${seed}`)
  let next = 0
  const engine = Layer.effect(
    TensorEngine,
    Effect.gen(function* () {
      const gpu = yield* openGpu(change(yield* loadAddon), "test", { ...options, device: next++ })
      return yield* CudaEngine.make(gpu, makeDeviceMemory(gpu, options))
    })
  )
  const wrong = await runBatch(transfers, 2, Layer.provideMerge(driverOf("nccl", options), engine), 1)
  return [...wrong, ...violations()]
}

const seeds = 120

const packing = 0
const wire = 1
const unpacking = 2

describe("a missing wait is found", () => {
  for (const [name, of, on] of [
    ["sending before packing is done", wire, packing],
    ["packing a slot that is still sent", packing, wire],
    ["unpacking before receiving is done", unpacking, wire],
    ["receiving into a slot that is still unpacked", wire, unpacking]
  ] as const) {
    it(name, { timeout: 120_000 }, async () => {
      let planted = 0
      const missing = (addon: Addon): Addon => ({
        ...addon,
        createProgram: (device, steps, moves, communicator) => {
          const changed = withoutWaits(steps, of, on)
          if (changed.length < steps.length) planted += 1
          return addon.createProgram(device, changed, moves, communicator)
        }
      })
      let found: ReadonlyArray<string> = []
      for (let seed = 1; seed <= seeds && found.length === 0; seed++) {
        found = await findings(seed, missing)
      }
      assert.isAbove(planted, 0)
      assert.isNotEmpty(found)
    })
  }
})

describe("without a fault", () => {
  it("nothing is found", { timeout: 120_000 }, async () => {
    for (let seed = 1; seed <= 5; seed++) {
      assert.deepStrictEqual(await findings(seed, (addon) => addon), [], `seed ${seed}`)
      assertClean(`of seed ${seed}`)
    }
  })
})
