// SPDX-License-Identifier: Apache-2.0
/**
 * The portable replay backend for the conformance kit: copies are the engine's, held back before it makes them.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import { ReplayTesting } from "@tensorferry/core/service/ReplayTesting"
import { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { Device } from "@tensorferry/core/tensor/Device"
import { makeHeldCopies } from "@tensorferry/testing/HeldEngine"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { backendName } from "./Addon.ts"
import type { TorchCopyOptions } from "./options.ts"
import { engineFor, open } from "./ReplayDevice.ts"

export const layer = (
  device: Device,
  options: TorchCopyOptions,
  familyEngine?: Layer.Layer<TensorEngine, BackendError>
): Layer.Layer<ReplayTesting, BackendError> =>
  Layer.sync(ReplayTesting, () => {
    const { wrap, hold, failCopy } = makeHeldCopies()
    const engine = Layer.effect(TensorEngine, Effect.map(TensorEngine, wrap)).pipe(
      Layer.provide(engineFor(device, options, familyEngine))
    )
    return {
      build: (settings) =>
        Effect.map(
          Layer.build(replayTransferLayer(open(engine, device, options), { ...settings, backend: backendName })),
          (built) => Context.get(built, ReplayTransferBackend)
        ),
      hold,
      failCopy,
      registered: () => 0,
      lacks: {
        streams: "copies are made by the host while their caller waits, so there are no streams",
        failRegistration: "host memory is copied as it is, so nothing is registered with a driver",
        deferred: "submissions are deferred with the option deferred only"
      }
    }
  })
