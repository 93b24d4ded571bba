// SPDX-License-Identifier: Apache-2.0
/** What makes the files of a conversion on a device, after asking it for the memory that takes. */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { ModelTensor } from "@tensorferry/model/layout/ModelLayout"
import type { Model } from "@tensorferry/model/Model"
import { deviceFiles, sourcesOf } from "@tensorferry/model/names/files/deviceFiles"
import type { MappedTensor } from "@tensorferry/model/names/mapModel"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { askDevice } from "../device/askDevice.ts"
import type { DeviceChoice } from "../device/DeviceChoice.ts"
import { jobMemory } from "../device/jobMemory.ts"
import { checkMemory } from "./checkMemory.ts"
import { deviceEngine } from "./deviceEngine.ts"

const lengthOf = ({ dtype, shape }: Pick<ModelTensor, "dtype" | "shape">): number =>
  byteLengthOf(dtype, elementCount(shape))

const total = (tensors: ReadonlyArray<MappedTensor>): number => tensors.reduce((sum, one) => sum + lengthOf(one), 0)

/** Opens the device; what is made on it goes with the scope. The model and one rank's tensors are in its memory at a time. */
export const filesOnDevice = Effect.fnUntraced(function* (
  model: Model,
  choice: DeviceChoice,
  limit: number | undefined
) {
  const scope = yield* Effect.scope
  const engine = Context.get(
    yield* Layer.buildWithScope(deviceEngine(choice), scope) satisfies Effect.Effect<unknown, BackendError>,
    TensorEngine
  )
  const [group] = yield* makeInProcessGroups(1)
  // Tensors are freed before the engine that they belong to.
  const inner = yield* Scope.fork(scope)
  return (ranks: ReadonlyArray<ReadonlyArray<MappedTensor>>) =>
    Effect.gen(function* () {
      const made = ranks.flat()
      const largest = ranks.reduce((most, tensors) => (total(tensors) > total(most) ? tensors : most), [])
      const tensors = [...sourcesOf(model, made), ...largest].map(lengthOf)
      const { device, host, pinned } = jobMemory({ tensors, buffers: 0, isConverted: false })
      const found = yield* askDevice(engine)
      const share = found === undefined ? undefined : { ...found, needed: device }
      yield* checkMemory(group!, { needed: host + pinned, device: share, limit })
      return yield* deviceFiles(model, group!, made)
    }).pipe(Effect.provideService(TensorEngine, engine), Effect.provideService(Scope.Scope, inner))
})
