// SPDX-License-Identifier: Apache-2.0
/** The engine of a device for what one process does by itself. */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { tensorEngine } from "@tensorferry/core/backend/BackendLayer"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Layer from "effect/Layer"
import { type DeviceChoice, deviceOptions } from "../device/DeviceChoice.ts"
import { backendRegistry } from "./backends.ts"

/** That of the first device of a choice: one backend has the engine for both vendors. */
export const deviceEngine = (choice: DeviceChoice): Layer.Layer<TensorEngine, BackendError> =>
  tensorEngine({ deviceFamily: choice.family, backend: "cuda", options: deviceOptions(choice, 0) }).pipe(
    Layer.provide(backendRegistry([], import.meta.url))
  )
