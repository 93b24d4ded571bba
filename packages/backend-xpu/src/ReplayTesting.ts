// SPDX-License-Identifier: Apache-2.0
/**
 * Replay slots on a device for the conformance kit: the queue of copies is held by an event that nobody has set yet, and a
 * copy fails because the event before it does. Consumers' streams are the queue of the engine, and waits of the host.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import { type ReplayStreams, ReplayTesting, type ReplayTestingShape } from "@tensorferry/core/service/ReplayTesting"
import { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import type { TensorError } from "@tensorferry/core/service/TensorEngine"
import type { Device } from "@tensorferry/core/tensor/Device"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import { type Addon, backendName, copyQueue, loadAddon } from "./Addon.ts"
import { unavailableBecause } from "./failures.ts"
import type { XpuOptions } from "./options.ts"
import { engineStream, make } from "./ReplayDevice.ts"
import * as XpuEngine from "./TensorEngine.ts"
import { openXpu, type Xpu } from "./Xpu.ts"

const planted: NativeFailure = {
  code: "SystemFailure",
  op: "import host memory",
  detail: "The test has it fail.",
  nativeCode: 0,
  item: -1
}

/** The device's addon with faults, and what it knows. */
const makeFaults = ({ addon, native }: Xpu) => {
  let registered = 0
  let nextFailing = Number.POSITIVE_INFINITY
  let isCopyFailing = false
  const changed: Addon = {
    ...addon,
    importHost: (...request) => {
      nextFailing -= 1
      if (nextFailing < 0) {
        nextFailing = Number.POSITIVE_INFINITY
        return planted
      }
      const answer = addon.importHost(...request)
      if (answer.code === "Ok") registered += 1
      return answer
    },
    releaseHost: (...request) => {
      registered -= 1
      return addon.releaseHost(...request)
    },
    startCopy: (copy) => {
      if (!isCopyFailing) return addon.startCopy(copy)
      isCopyFailing = false
      const held = addon.holdQueue(native, copyQueue)
      const failure = addon.startCopy(copy)
      if (held.code === "Ok") addon.endHold(held.value, true)
      return failure
    }
  }
  return {
    changed,
    registered: () => registered,
    failRegistration: (nth: number) =>
      Effect.sync(() => {
        nextFailing = nth
      }),
    failCopy: Effect.sync(() => {
      isCopyFailing = true
    })
  }
}

/** Copies of the engine are queued when they start. A stream that is not the engine's waits on the host alone. */
const makeStreams = (xpu: Xpu): ReplayStreams => {
  const engine = XpuEngine.make(xpu)
  const queued = new Set<Fiber.Fiber<void, TensorError>>()
  return {
    open: Effect.succeed({ ...engineStream(xpu.device), handle: 1n }),
    copy: (_, move) =>
      Effect.map(Effect.forkDetach(engine.copy([move]), { startImmediately: true }), (fiber) => {
        queued.add(fiber)
      }),
    finish: () =>
      Effect.suspend(() => {
        const all = [...queued]
        queued.clear()
        return Effect.asVoid(Effect.forEach(all, Fiber.join))
      })
  }
}

export const layer = (device: Device, options: XpuOptions): Layer.Layer<ReplayTesting, BackendError> =>
  Layer.effect(
    ReplayTesting,
    Effect.gen(function* () {
      const xpu = yield* openXpu(yield* loadAddon, options, device.index)
      const { changed, registered, failRegistration, failCopy } = makeFaults(xpu)
      const { native, capabilities, driver } = xpu
      const streams = makeStreams(xpu)
      const slots = make({ ...xpu, addon: changed }, options.timing ?? false)
      const hold = Effect.acquireRelease(
        Effect.suspend(() => {
          const held = xpu.addon.holdQueue(native, copyQueue)
          return held.code === "Ok" ? Effect.succeed(held.value) : Effect.die(unavailableBecause(held))
        }),
        (held) => Effect.sync(() => void xpu.addon.endHold(held, false))
      )
      return {
        build: (settings) =>
          Effect.map(
            Layer.build(replayTransferLayer(Effect.succeed(slots), { ...settings, backend: backendName })),
            (built) => Context.get(built, ReplayTransferBackend)
          ),
        hold: Effect.asVoid(hold),
        streams: () => streams,
        registered,
        ...(capabilities.hostPointerImport ? { failRegistration } : {}),
        ...(driver === "opencl" ? { failCopy } : {}),
        lacks: {
          failRegistration: "this driver takes host memory as it is, so nothing is registered",
          failCopy: "Level Zero has no means to make a copy fail",
          deferred: "copies are submitted to the device, so submissions are not deferred"
        }
      } satisfies ReplayTestingShape
    })
  )
