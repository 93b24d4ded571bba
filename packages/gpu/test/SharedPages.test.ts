// SPDX-License-Identifier: Apache-2.0
/**
 * Plain copies of host memory beside work that pins its neighbours: pins are of whole pages and end with the work that took
 * them, and a copy of pinned memory goes on after the call that began it.
 */
import { assert, it } from "@effect/vitest"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { makeEngine } from "@tensorferry/simulators/gpuEngine"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { afterEach, beforeEach } from "vitest"

beforeEach(() => resetSimulator("seed=5"))
afterEach(() => assertClean())

const slot = 1 << 14

/** Every other byte of a place in a buffer: a kernel reads it, so its pages are pinned for as long as that takes. */
const everyOther = (engine: TensorEngineShape, buffer: ArrayBuffer, offset: number) =>
  Effect.map(engine.wrapHost(new Uint8Array(buffer, offset, slot)), (storage) =>
    Result.getOrThrow(tensorView(storage, "uint8", [slot / 2], { strides: [2] }))
  )

const whole = (engine: TensorEngineShape, buffer: ArrayBuffer, offset: number, byteLength: number) =>
  Effect.map(engine.wrapHost(new Uint8Array(buffer, offset, byteLength)), (storage) =>
    Result.getOrThrow(tensorView(storage, "uint8", [byteLength]))
  )

/** Copies plainly out of the middle of pages and into it while the other engine pins both of its sides. */
const beside = (byteLength: number) =>
  it.live(`plain copies of ${byteLength} bytes hold the pages that others pin`, () =>
    Effect.gen(function* () {
      const [copying, pinning] = [yield* makeEngine({ device: 0 }), yield* makeEngine({ device: 1 })].map(
        ({ engine }) => engine
      ) as [TensorEngineShape, TensorEngineShape]
      const at = slot + 100
      const buffer = new ArrayBuffer(at + byteLength + slot)
      const [from, to] = [new Uint8Array(buffer, at, byteLength), new ArrayBuffer(at + byteLength + slot)]
      const back = new Uint8Array(to, at, byteLength)
      const device = yield* copying.allocate("uint8", [byteLength])
      const src = yield* whole(copying, buffer, at, byteLength)
      const dst = yield* whole(copying, to, at, byteLength)
      const there = yield* pinning.allocate("uint8", [slot / 2])
      const neighbours: Array<Tensor> = []
      for (const memory of [buffer, to])
        for (const offset of [100, at + byteLength]) neighbours.push(yield* everyOther(pinning, memory, offset))
      const rounds = byteLength < 1 << 20 ? 60 : 4
      let isDone = false
      const pins = Effect.gen(function* () {
        while (!isDone) for (const neighbour of neighbours) yield* pinning.copy([{ dst: there, src: neighbour }])
      })
      const copies = Effect.gen(function* () {
        for (let round = 1; round <= rounds; round++) {
          from.fill(round)
          back.fill(0)
          yield* copying.copy([{ dst: device, src }])
          yield* copying.copy([{ dst, src: device }])
          assert.isTrue(
            back.every((byte) => byte === round),
            `round ${round}`
          )
        }
      }).pipe(Effect.ensuring(Effect.sync(() => (isDone = true))))
      yield* Effect.all([copies, pins], { concurrency: "unbounded", discard: true })
    }).pipe(Effect.scoped)
  )

for (const byteLength of [64, 3000, 1 << 16, (1 << 24) + 5000]) beside(byteLength)
