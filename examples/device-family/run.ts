// SPDX-License-Identifier: Apache-2.0
/**
 * Feeds batches to `thread:0` through a ring of two slots: while one batch is used, the next is under way. Exits with 1 where
 * a batch arrives with other bytes than it left with.
 *
 * Usage: node run.ts
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { buildReplayTransferBackend } from "@tensorferry/core/backend/BackendLayer"
import { registryLayer } from "@tensorferry/core/backend/BackendRegistry"
import { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { descriptors } from "./src/index.ts"
import { allocateShared } from "./src/ThreadDevice.ts"

const ringDepth = 2
const shape = [4096, 256]
const batches = 6

const program = Effect.gen(function* () {
  const backend = yield* ReplayTransferBackend
  const { device, h2dSubmitter, supportsAsyncSubmit } = yield* backend.attributes
  yield* Console.log(
    `${device.family}:${device.index}: ${h2dSubmitter}, ${supportsAsyncSubmit ? "asynchronous" : "synchronous"}`
  )
  const host = yield* Effect.forEach(Array.from({ length: ringDepth }), () =>
    Effect.flatMap(allocateShared(shape[0]! * shape[1]!), (storage) =>
      Effect.fromResult(tensorView(storage, "uint8", shape))
    )
  )
  const slots = yield* backend.allocateDeviceSlots({ count: ringDepth, shape, dtype: "uint8" })

  const submit = (batch: number) => {
    const slot = batch % ringDepth
    slots[slot]!.storage.bytes?.fill(0xff)
    host[slot]!.storage.bytes?.fill(batch)
    return backend.submitH2d({ slot, destination: slots[slot]!, source: host[slot]! })
  }

  yield* submit(0)
  for (let batch = 0; batch < batches; batch++) {
    const slot = batch % ringDepth
    const ahead = batch + 1 < batches ? yield* submit(batch + 1) : 0
    yield* backend.waitReady(slot)
    const bytes = slots[slot]!.storage.bytes ?? new Uint8Array()
    const right = bytes.every((byte) => byte === batch)
    yield* Console.log(
      `batch ${batch} in slot ${slot}: ${bytes.length} bytes ${right ? "right" : "WRONG"}; ` +
        `the next was submitted in ${(ahead * 1e6).toFixed(0)} us`
    )
    if (!right) process.exitCode = 1
    yield* backend.clearReady(slot)
  }
})

const services = buildReplayTransferBackend({ device: "thread:0", ringDepth }).pipe(
  Layer.provide(registryLayer(descriptors))
)

NodeRuntime.runMain(Effect.scoped(Effect.provide(program, services)))
