// SPDX-License-Identifier: Apache-2.0
/**
 * A ring in the memory of an engine that has no kernels for one: rows lie on the device and are gathered there by its copies.
 * The words, the weights and the ends of episodes are kept in this process, which knows when each copy has ended.
 *
 * Invariant: steps are carried out one after the other, each to its end, in the order of the list.
 */
import type { RingAnswer, RingGeometry, RingSample, RingStep } from "@tensorferry/core/service/ReplayRingKernels"
import {
  type OpenRing,
  type TensorEngineShape,
  type TensorError,
  tensorError
} from "@tensorferry/core/service/TensorEngine"
import { type Move, type Tensor, tensorByteLength, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { columnPlaces } from "./BatchLayout.ts"
import { type DrawnWindows, drawWindows } from "./drawWindows.ts"
import { RingModel } from "./RingModel.ts"

const invalid = (detail: string): TensorError =>
  tensorError("InvalidRequest", { op: "ring", detail, remedy: "Give dense tensors of the stated types." })

/** `length` bytes in rows that lie `step` bytes apart. */
const strip = (memory: Tensor, byteOffset: number, rows: number, length: number, step: number): Tensor => ({
  ...memory,
  shape: [rows, length],
  strides: [step, 1],
  byteOffset: memory.byteOffset + byteOffset
})

/** The copies that gather windows. */
const gatherMoves = (
  { capacity, columns, rowBytes }: RingGeometry,
  rows: Tensor,
  { count, into, packing, window }: RingSample,
  { lengths, positions }: DrawnWindows
): ReadonlyArray<Move> => {
  const parts = packing === "rows" ? [{ byteOffset: 0, byteLength: rowBytes }] : columns
  const places = packing === "rows" ? [0] : columnPlaces(columns, { count, window })
  const moves: Array<Move> = []
  for (let k = 0; k < count; k++) {
    const first = Number(positions[k]!)
    const length = lengths[k]!
    // Rows up to the end of the memory, those behind its beginning, and copies of the last.
    const slot = first % capacity
    const straight = Math.min(length, capacity - slot)
    const runs: Array<readonly [to: number, slot: number, rows: number]> = [[0, slot, straight]]
    if (straight < length) runs.push([straight, 0, length - straight])
    for (let to = length; to < window; to++) runs.push([to, (first + length - 1) % capacity, 1])
    for (const [at, { byteLength, byteOffset }] of parts.entries()) {
      if (byteLength === 0) continue
      for (const [to, from, many] of runs) {
        const place = places[at]! + (k * window + to) * byteLength
        moves.push({
          dst: strip(into, place, many, byteLength, byteLength),
          src: strip(rows, from * rowBytes + byteOffset, many, byteLength, rowBytes)
        })
      }
    }
  }
  return moves
}

/** Opens a ring over the engine's copies. */
export const openCopyingRing = Effect.fnUntraced(function* (
  engine: TensorEngineShape,
  geometry: RingGeometry
): Effect.fn.Return<OpenRing, TensorError, Scope.Scope> {
  const { capacity, episodeEnd, rowBytes } = geometry
  const rows = yield* engine.allocate("uint8", [capacity, rowBytes])
  const model = new RingModel(capacity)
  const ends = new Uint8Array(episodeEnd === undefined ? 0 : capacity)

  /** Bytes of this process as a tensor like the other. */
  const onHost = Effect.fnUntraced(function* (bytes: Uint8Array, like: Tensor) {
    const storage = yield* engine.wrapHost(bytes)
    const view = tensorView(storage, like.dtype, like.shape)
    return yield* Effect.mapError(Effect.fromResult(view), ({ detail }) => invalid(`${detail}.`))
  })

  const write = (tensor: Tensor, bytes: Uint8Array) =>
    Effect.scoped(Effect.flatMap(onHost(bytes, tensor), (src) => engine.copy([{ dst: tensor, src }])))

  const read = (tensor: Tensor) =>
    Effect.scoped(
      Effect.gen(function* () {
        const bytes = new Uint8Array(tensorByteLength(tensor))
        yield* engine.copy([{ dst: yield* onHost(bytes, tensor), src: tensor }])
        return bytes
      })
    )

  const place = (at: number, source: Tensor): Effect.Effect<void, TensorError> =>
    Effect.suspend(() => {
      const bytes = tensorBytes(source)
      const many = source.shape[0]!
      const slot = at % capacity
      if (bytes === undefined || slot + many > capacity)
        return Effect.fail(invalid(`${many} rows from slot ${slot} on.`))
      if (episodeEnd !== undefined) {
        for (let row = 0; row < many; row++) ends[slot + row] = bytes[row * rowBytes + episodeEnd]!
      }
      return engine.copy([{ dst: strip(rows, slot * rowBytes, many, rowBytes, rowBytes), src: source }])
    })

  const sample = Effect.fnUntraced(function* (asked: RingSample): Effect.fn.Return<RingAnswer, TensorError> {
    const windows = drawWindows(model, asked, (row) => ends[row % capacity] !== 0)
    const answer: RingAnswer = {
      first: model.first,
      end: model.written,
      drawn: windows.drawn,
      total: model.weights.total,
      isTorn: model.isTorn
    }
    if (windows.drawn < asked.count) return answer
    yield* engine.copy(gatherMoves(geometry, rows, asked, windows))
    yield* write(asked.positions, new Uint8Array(windows.positions.buffer))
    yield* write(asked.lengths, new Uint8Array(windows.lengths.buffer))
    return answer
  })

  const weigh = Effect.fnUntraced(function* (positions: Tensor, weights: Tensor) {
    const [where, what] = [yield* read(positions), yield* read(weights)]
    model.weigh(new BigInt64Array(where.buffer), new Uint32Array(what.buffer))
  })

  /** What a step answers. */
  const carryOut = (step: RingStep): Effect.Effect<ReadonlyArray<RingAnswer>, TensorError> => {
    const silent = (work: Effect.Effect<void, TensorError>) => Effect.as(work, [])
    switch (step._tag) {
      case "Reserve":
        return silent(Effect.sync(() => model.reserve(step.at, step.rows)))
      case "Place":
        return silent(place(step.at, step.source))
      case "Commit":
        return silent(Effect.sync(() => model.commit(step.at, step.rows, step.weight)))
      case "Sample":
        return Effect.map(sample(step), (answer) => [answer])
      case "Weigh":
        return silent(weigh(step.positions, step.weights))
      default:
        return Effect.succeed([])
    }
  }

  return {
    gather: "copies",
    rows,
    run: (steps) => Effect.map(Effect.forEach(steps, carryOut), (answers) => answers.flat())
  }
})

/** The engine's own ring where it has kernels for one, and else one over its copies. */
export const openRing = (
  engine: TensorEngineShape,
  geometry: RingGeometry
): Effect.Effect<OpenRing, TensorError, Scope.Scope> =>
  engine.openRing === undefined ? openCopyingRing(engine, geometry) : engine.openRing(geometry)
