// SPDX-License-Identifier: Apache-2.0
/** The backend that claims device family `thread`. It offers replay transfers and nothing else. */
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { makeThreadDevice } from "./ThreadDevice.ts"

/** Of the contracts. Core's own constant would agree with any core. */
const apiVersion = 1

export const descriptors: ReadonlyArray<BackendDescriptor> = [
  {
    name: "copy-thread",
    apiVersion,
    deviceFamilies: ["thread"],
    capabilities: { replayTransfer: true },
    options: Schema.Struct({}),
    probe: Effect.succeed({ _tag: "Available", detail: "A thread of this process.", versions: {} }),
    replayTransfer: (device, ringDepth) =>
      replayTransferLayer(makeThreadDevice(device), { ringDepth, backend: "copy-thread" })
  }
]
