// SPDX-License-Identifier: Apache-2.0
/**
 * The two kinds of rings as subjects: over any tensor engine, and in memory of the host.
 */
import { packRows } from "@tensorferry/core/replay/ReplayPack"
import { claimReplayWriter, createReplayRing, replayRingBytes } from "@tensorferry/core/replay/ReplayRing"
import type { OpenRing, TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import { openRing } from "@tensorferry/replay/copyingRing"
import type { DeviceBatch } from "@tensorferry/replay/DeviceReplayRing"
import { makeDeviceRing } from "@tensorferry/replay/DeviceRingLayer"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { RingBatch, RingDraw, RingFailure, RingSubjectShape } from "./RingSubject.ts"

interface Reasoned {
  readonly reason: { readonly _tag: string; readonly detail: string }
}

const failure = ({ reason }: Reasoned): RingFailure => ({ tag: reason._tag, detail: reason.detail })

const failed = <A, E extends Reasoned, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, RingFailure, R> =>
  Effect.mapError(effect, failure)

/** A tensor over bytes of this process. */
const hostTensor = (engine: TensorEngineShape, bytes: Uint8Array, like: Tensor) =>
  Effect.map(engine.wrapHost(bytes), (storage) => Result.getOrThrow(tensorView(storage, like.dtype, like.shape)))

/** The bytes of a tensor of an engine. */
export const readTensor = (engine: TensorEngineShape, tensor: Tensor) =>
  Effect.scoped(
    Effect.gen(function* () {
      const bytes = new Uint8Array(tensorByteLength(tensor))
      yield* engine.copy([{ dst: yield* hostTensor(engine, bytes, tensor), src: tensor }])
      return bytes
    })
  )

/** What happens to the steps of a ring before the engine gets them. */
export type Meddling = (ring: OpenRing, pieceBytes: number) => OpenRing

/** The engine, whose rings are not left alone. */
export const meddled = (engine: TensorEngineShape, meddle: (ring: OpenRing) => OpenRing): TensorEngineShape => ({
  ...engine,
  openRing: (geometry) => Effect.map(openRing(engine, geometry), meddle)
})

/** Rings over the engine in the context. */
export const deviceRingSubject: Effect.Effect<RingSubjectShape, never, TensorEngine> = Effect.map(
  TensorEngine,
  (engine): RingSubjectShape => ({
    make: Effect.fnUntraced(function* ({ capacity, episodeEnd, layout, pieceRows }) {
      const ring = yield* failed(
        Effect.provideService(
          makeDeviceRing({
            layout,
            capacity,
            deadline: "20 seconds",
            ...(episodeEnd === undefined ? {} : { episodeEnd }),
            ...(pieceRows === undefined ? {} : { pieceBytes: pieceRows * layout.rowBytes })
          }),
          TensorEngine,
          engine
        )
      )

      /** Packed rows of a batch, whatever its packing: columns are put back where they lie in a row. */
      const packed = Effect.fnUntraced(function* ({ columns, form, memory }: DeviceBatch) {
        if (form.packing === "rows") return yield* failed(readTensor(engine, memory))
        const rows = new Uint8Array(form.count * form.window * layout.rowBytes)
        for (const { byteLength, byteOffset, name } of layout.columns) {
          const dense = yield* failed(readTensor(engine, columns[name]!))
          for (let at = 0; at * layout.rowBytes < rows.byteLength; at++) {
            rows.set(dense.subarray(at * byteLength, (at + 1) * byteLength), at * layout.rowBytes + byteOffset)
          }
        }
        return rows
      })

      const drawn = (
        draw: RingDraw,
        work: (batch: DeviceBatch) => Effect.Effect<{ readonly first: number; readonly end: number }, Reasoned>
      ): Effect.Effect<RingBatch, RingFailure> =>
        Effect.scoped(
          Effect.gen(function* () {
            const { count, packing = "columns", window = 1 } = draw
            const batch = yield* failed(ring.allocateBatch({ count, window, packing }))
            yield* failed(engine.fill(batch.memory, 0xee))
            const { end, first } = yield* failed(work(batch))
            const positions = new BigInt64Array((yield* failed(readTensor(engine, batch.positions))).buffer)
            const lengths = new Uint32Array((yield* failed(readTensor(engine, batch.lengths))).buffer)
            const rows = yield* packed(batch)
            return { first, end, redrawn: 0, rows, positions: Array.from(positions, Number), lengths: [...lengths] }
          })
        )

      return {
        push: (rows, weight) => failed(ring.push(rows, weight)),
        sample: (draw) => drawn(draw, (batch) => ring.sample(batch, draw)),
        tick: (rows, draw) => drawn(draw, (batch) => ring.tick(rows, batch, draw)),
        weigh: (positions, weights) =>
          Effect.scoped(
            Effect.gen(function* () {
              const where = yield* failed(engine.allocate("int64", [positions.length]))
              const what = yield* failed(engine.allocate("uint32", [weights.length]))
              const moves = [
                { dst: where, src: new Uint8Array(BigInt64Array.from(positions, BigInt).buffer) },
                { dst: what, src: new Uint8Array(Uint32Array.from(weights).buffer) }
              ]
              for (const { dst, src } of moves) {
                yield* failed(engine.copy([{ dst, src: yield* failed(hostTensor(engine, src, dst)) }]))
              }
              yield* failed(ring.weigh(where, what))
            })
          )
      }
    })
  })
)

/** Rings in host memory, written and read by this process; `allocate` gives memory. */
export const hostRingSubject = (
  allocate: (byteLength: number) => Effect.Effect<Storage, Reasoned, Scope.Scope>
): RingSubjectShape => ({
  lacksWindows: "the ring on the host draws rows one by one, uniformly",
  make: Effect.fnUntraced(function* ({ capacity, layout }) {
    const storage = yield* failed(allocate(replayRingBytes(layout, capacity)))
    const ring = yield* failed(Effect.fromResult(createReplayRing(storage, layout, capacity)))
    const writer = yield* failed(claimReplayWriter(ring))
    return {
      push: (rows) => Effect.map(failed(writer.append(rows)), Number),
      sample: Effect.fnUntraced(function* ({ count, seed, tick }) {
        const into = new Uint8Array(count * layout.rowBytes)
        const { end, first, redrawn } = yield* failed(packRows({ ring, seed, tick, rows: count, into }))
        return { first: Number(first), end: Number(end), redrawn, rows: into }
      })
    }
  })
})
