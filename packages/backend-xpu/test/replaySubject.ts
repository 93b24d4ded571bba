// SPDX-License-Identifier: Apache-2.0
/**
 * This backend as the replay cases of the conformance kit want it, over one of its drivers: with holds of the copy queue,
 * streams, and faults of the driver where it can be made to fail.
 */

import { assert } from "@effect/vitest"
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { cpu } from "@tensorferry/core/tensor/Device"
import { makeStorage } from "@tensorferry/core/tensor/Storage"
import { type ReplayStreams, ReplaySubject } from "@tensorferry/testing"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import { copyQueue, loadAddon } from "../src/Addon.ts"
import { engineStream } from "../src/ReplayDevice.ts"
import * as XpuEngine from "../src/TensorEngine.ts"
import { openXpu } from "../src/Xpu.ts"
import { optionsOf, resetSimulator, type Subject, simulator } from "./simulator.ts"
import { openReplay, value } from "./support.ts"

/** What memory of the host looks like after its owner took it back. */
const goneByte = 0xee

const ticks = isSoak ? 10_000 : 100

export const replaySubject = (
  subject: Subject,
  settings = ""
): Layer.Layer<ReplaySubject | TensorEngine, BackendError> =>
  Layer.effectContext(
    Effect.gen(function* () {
      if (subject === "level-zero") resetSimulator(settings)
      const options = optionsOf(subject)
      const addon = yield* loadAddon
      const xpu = yield* openXpu(addon, options, 0)
      const engine = XpuEngine.make(xpu)
      const queued = new Set<Fiber.Fiber<void, TensorError>>()

      /** Copies of the engine are queued when they start. A stream that is not the engine's waits on the host alone. */
      const streams: ReplayStreams = {
        open: Effect.succeed({ ...engineStream(xpu.device), handle: 99n }),
        copy: (_stream, move) =>
          Effect.gen(function* () {
            queued.add(yield* Effect.forkDetach(engine.copy([move]), { startImmediately: true }))
          }),
        finish: () =>
          Effect.suspend(() => {
            const all = [...queued]
            queued.clear()
            return Effect.asVoid(Effect.forEach(all, Fiber.join))
          })
      }

      return Context.make(TensorEngine, engine).pipe(
        Context.add(ReplaySubject, {
          build: ({ ringDepth, deadline }) =>
            openReplay(options, ringDepth, Duration.fromInputUnsafe(deadline ?? "10 seconds")),
          allocateHost: (byteLength) =>
            Effect.acquireRelease(
              Effect.sync(() => {
                const bytes = new Uint8Array(byteLength)
                const address = value(addon.addressOf(bytes))
                const release = () => void bytes.fill(goneByte)
                return makeStorage({ device: cpu, address, byteLength, bytes, release })
              }),
              (storage) => Effect.sync(storage.free)
            ),
          hold: Effect.asVoid(
            Effect.acquireRelease(
              Effect.sync(() => value(addon.holdQueue(xpu.native, copyQueue))),
              (hold) => Effect.sync(() => void addon.endHold(hold, false))
            )
          ),
          streams: () => streams,
          ticks,
          ...(subject === "level-zero"
            ? {
                registered: () => simulator.report().live.imports!,
                failRegistration: (nth: number) =>
                  Effect.sync(() => {
                    const text = `fail=zexDriverImportExternalPointer:${nth + 1}:0x70000002`
                    assert.strictEqual(simulator.configure(text), 0)
                  }),
                failCopy: Effect.sync(() => {
                  const text = "fail=zeCommandListAppendMemoryCopy:1:0x70000003"
                  assert.strictEqual(simulator.configure(text), 0)
                })
              }
            : {})
        })
      )
    })
  )
