// SPDX-License-Identifier: Apache-2.0
/**
 * The cost of a warm replay submission: around the Effect of `submitH2d`, with its native call, over the simulated driver.
 * Its time per call is part of the figure; a real driver's is some 2.5 us. Real devices: `bench/gpu`.
 */
import { descriptors } from "@tensorferry/backend-cuda"
import { descriptor as hostBackend } from "@tensorferry/backend-torch-copy"
import { median } from "@tensorferry/core/base/Numbers"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import { gpuSimulator } from "@tensorferry/simulators/libraries"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { BenchResult } from "./measure.ts"

const libraries = { runtime: gpuSimulator, driver: gpuSimulator, compiler: gpuSimulator, collectives: gpuSimulator }

const byteLength = 4096
const submissions = 20_000

const submitMicroseconds = Effect.gen(function* () {
  const backend = yield* ReplayTransferBackend
  const storage = yield* (yield* HostMemory).allocate(byteLength)
  const source = Result.getOrThrow(tensorView(storage, "uint8", [byteLength]))
  yield* backend.registerHostSlots([source])
  const [destination] = yield* backend.allocateDeviceSlots({ count: 1, shape: [byteLength], dtype: "uint8" })
  const submission = { slot: 0, source, destination: destination! }
  const around: Array<number> = []
  for (let at = 0; at < submissions; at++) {
    const begun = performance.now()
    yield* backend.submitH2d(submission)
    around.push((performance.now() - begun) * 1000)
    while (!(yield* backend.isReady(0))) yield* Effect.void
  }
  return median(around.slice(submissions / 2))
})

export const replay = async (): Promise<ReadonlyArray<BenchResult>> => {
  const owner = descriptors.find(({ replayTransfer }) => replayTransfer !== undefined)!
  const layer = owner.replayTransfer!({ family: "cuda", index: 0 }, 1, { libraries })
  const measured = Effect.scoped(submitMicroseconds).pipe(Effect.provide([layer, hostBackend.hostMemory!({})]))
  return [
    {
      case: "replay submission, warm, around the Effect, simulated driver",
      unit: "us",
      ours: await Effect.runPromise(measured),
      target: 5,
      lowerIsBetter: true
    }
  ]
}
