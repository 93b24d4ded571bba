/** The backend that claims device family `thread`. It offers replay transfers and nothing else. */
import { type BackendDescriptor, backendApiVersion } from "@tensorferry/core/backend/BackendDescriptor"
import { replayTransferLayer } from "@tensorferry/core/service/ReplayTransferLayer"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { makeThreadDevice } from "./ThreadDevice.ts"

export const descriptors: ReadonlyArray<BackendDescriptor> = [
  {
    name: "copy-thread",
    apiVersion: backendApiVersion,
    deviceFamilies: ["thread"],
    capabilities: { replayTransfer: true },
    options: Schema.Struct({}),
    probe: Effect.succeed({ _tag: "Available", detail: "A thread of this process.", versions: {} }),
    replayTransfer: (device, ringDepth) =>
      replayTransferLayer(makeThreadDevice(device), { ringDepth, backend: "copy-thread" })
  }
]
