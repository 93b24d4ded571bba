// SPDX-License-Identifier: Apache-2.0
/** The kit's replay cases on the device. Its memory is of shared buffers, so the kit's own engine can look into it. */

import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { ReferenceEngine, ReplaySubject } from "@tensorferry/testing"
import { describeReplayTransfer } from "@tensorferry/testing/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { allocateShared, makeThreadDevice } from "../src/ThreadDevice.ts"

const device = { family: "thread", index: 0 }

const subject = Layer.effect(
  ReplaySubject,
  Effect.gen(function* () {
    const opened = yield* makeThreadDevice(device)
    return {
      build: (options) =>
        Effect.gen(function* () {
          const layer = replayTransferLayer(Effect.succeed(opened), { ...options, backend: "copy-thread" })
          return Context.get(yield* Layer.buildWithScope(layer, yield* Scope.Scope), ReplayTransferBackend)
        }),
      allocateHost: (byteLength) => allocateShared(byteLength),
      hold: opened.hold
    }
  })
)

describeReplayTransfer("copy-thread", Layer.merge(subject, ReferenceEngine.layer({ deviceFamily: device.family })), {
  timeout: 60_000
})
