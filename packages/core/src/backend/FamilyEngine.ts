// SPDX-License-Identifier: Apache-2.0
/**
 * The tensor engine that goes with a backend: its own, or the one that is registered for its device family.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { TensorEngine } from "../service/TensorEngine.ts"
import { cpu } from "../tensor/Device.ts"
import type { BackendDescriptor, BackendError, BackendOptions } from "./BackendDescriptor.ts"
import type { BackendRegistryShape } from "./BackendRegistry.ts"

/** The family whose memory a backend works on: the first that it names. */
export const familyOf = ({ deviceFamilies }: BackendDescriptor): string =>
  deviceFamilies.find((family) => family !== "*") ?? cpu.family

/** The backend's own engine, or the one that is registered for its family. */
export const engineOf = (
  registry: BackendRegistryShape,
  descriptor: BackendDescriptor,
  options: BackendOptions
): Layer.Layer<TensorEngine, BackendError> =>
  descriptor.tensorEngine !== undefined
    ? descriptor.tensorEngine(options)
    : Layer.unwrap(
        Effect.map(registry.forFamily(familyOf(descriptor), "tensorEngine"), (owner) => owner.tensorEngine!({}))
      )
