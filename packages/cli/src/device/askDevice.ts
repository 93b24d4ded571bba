// SPDX-License-Identifier: Apache-2.0
/** Asks the driver how much of the memory of an engine's device is free at this moment. */
import { type TensorEngineShape, tensorError } from "@tensorferry/core/service/TensorEngine"
import { formatDevice } from "@tensorferry/core/tensor/Device"
import * as Effect from "effect/Effect"
import type { DeviceShare } from "./jobMemory.ts"

/** Undefined for engines that have no device. Fails with DeviceFailure where the driver does not answer. */
export const askDevice = Effect.fnUntraced(function* (engine: TensorEngineShape) {
  const { deviceOf } = yield* Effect.promise(() => import("@tensorferry/gpu/TensorEngine"))
  const gpu = deviceOf(engine)?.gpu
  if (gpu === undefined) return undefined
  const facts = gpu.addon.deviceFacts(gpu.libraries, gpu.ordinal)
  if (facts.code !== "Ok") {
    return yield* tensorError("DeviceFailure", {
      backend: engine.name,
      op: facts.op,
      detail: facts.detail,
      remedy: "Run `tensorferry doctor`; after a failure of the device the process must be started again."
    })
  }
  const { freeBytes, name, uuid } = facts.value
  return { id: uuid, name: `${formatDevice(gpu.device)} (${name})`, free: freeBytes } satisfies Omit<
    DeviceShare,
    "needed"
  >
})
