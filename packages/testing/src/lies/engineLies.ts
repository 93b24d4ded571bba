// SPDX-License-Identifier: Apache-2.0
/** Engines that copy, cast, reduce or own memory wrongly. */

import { bitsOf, isSubByte } from "@tensorferry/core/base/DType"
import { elementCount, rowMajorStrides } from "@tensorferry/core/base/Region"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { type Move, sharesElements, type Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { type EngineLie, endOf } from "./Lie.ts"

/** Changes the moves of every copy. */
const withMoves =
  (change: (moves: ReadonlyArray<Move>) => ReadonlyArray<Move>) =>
  (honest: TensorEngineShape): TensorEngineShape => ({ ...honest, copy: (moves) => honest.copy(change(moves)) })

/** Does something to destinations after every copy. */
const afterCopy =
  (spoil: (move: Move, bytes: Uint8Array) => void) =>
  (honest: TensorEngineShape): TensorEngineShape => ({
    ...honest,
    copy: (moves) =>
      Effect.tap(honest.copy(moves), () =>
        Effect.sync(() => {
          for (const move of moves) {
            const { bytes } = move.dst.storage
            if (bytes !== undefined && elementCount(move.dst.shape) > 0) spoil(move, bytes)
          }
        })
      )
  })

/** Rewrites dense results of one kind of cast, element by element. */
const afterCast = (from: string, to: string, rewrite: (bytes: DataView, at: number, source: number) => void) =>
  afterCopy(({ dst, src }, bytes) => {
    if (src.dtype !== from || dst.dtype !== to || dst.strides.some((stride) => stride !== 1)) return
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    const source = src.storage.bytes!
    const read = new DataView(source.buffer, source.byteOffset, source.byteLength)
    const width = bitsOf(dst.dtype) / 8
    for (let at = 0; at < elementCount(dst.shape); at++) {
      rewrite(view, dst.byteOffset + at * width, read.getUint32(src.byteOffset + at * 4, true))
    }
  })

const shorter = (tensor: Tensor): Tensor => {
  const last = tensor.shape.length - 1
  return { ...tensor, shape: tensor.shape.map((length, dim) => (dim === last ? length - 1 : length)) }
}

/** Lies of an engine over host memory. */
export const engineLies: ReadonlyArray<EngineLie> = [
  {
    name: "drops the tail of odd lengths",
    caughtBy: "copies dense tensors of every length",
    tell: withMoves((moves) =>
      moves.map((move) =>
        move.dst.dtype === "uint8" && (move.dst.shape.at(-1) ?? 0) % 2 === 1 && (move.dst.shape.at(-1) ?? 0) > 16
          ? { dst: shorter(move.dst), src: shorter(move.src) }
          : move
      )
    )
  },
  {
    name: "copies only the first 512 moves of a batch",
    caughtBy: "copies a batch of 1000 moves",
    tell: withMoves((moves) => moves.slice(0, 512))
  },
  {
    name: "quiets NaNs",
    caughtBy: "keeps NaN payloads",
    tell: afterCopy(({ dst, src }, bytes) => {
      if (dst.dtype !== "float32" || src.dtype !== "float32") return
      const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
      const bits = view.getUint32(dst.byteOffset, true)
      if ((bits & 0x7fffffff) > 0x7f800000) view.setUint32(dst.byteOffset, bits | 0x400000, true)
    })
  },
  {
    name: "ignores strides",
    caughtBy: "copies transposed views in logical order",
    tell: withMoves((moves) =>
      moves.map(({ dst, src }) => ({ dst, src: { ...src, strides: rowMajorStrides(src.shape) } }))
    )
  },
  {
    name: "accepts freed storage",
    caughtBy: "refuses freed storage",
    tell: (honest) => ({
      ...honest,
      copy: (moves) =>
        Effect.catchIf(
          honest.copy(moves),
          (error) => error.reason._tag === "FreedStorage",
          () => Effect.void
        )
    })
  },
  {
    name: "broadcasts",
    caughtBy: "refuses unequal shapes, broadcasts included",
    tell: withMoves((moves) =>
      moves.map(({ dst, src }) =>
        dst.shape.length !== src.shape.length
          ? { dst, src }
          : {
              dst,
              src: {
                ...src,
                shape: src.shape.map((length, dim) => (length === 1 ? dst.shape[dim]! : length)),
                strides: src.strides.map((stride, dim) => (src.shape[dim] === 1 ? 0 : stride))
              }
            }
      )
    )
  },
  {
    name: "moves part of a batch that it refuses",
    caughtBy: "refuses unequal shapes, broadcasts included",
    tell: (honest) => ({
      ...honest,
      copy: (moves) => Effect.forEach(moves, (move) => honest.copy([move]), { discard: true })
    })
  },
  {
    name: "truncates instead of rounding",
    caughtBy: "rounds to nearest, ties to even",
    tell: afterCast("float32", "bfloat16", (view, at, source) => view.setUint16(at, source >>> 16, true))
  },
  {
    name: "rounds ties up",
    caughtBy: "rounds to nearest, ties to even",
    tell: afterCast("float32", "bfloat16", (view, at, source) => view.setUint16(at, (source + 0x8000) >>> 16, true))
  },
  {
    name: "does not saturate",
    caughtBy: "saturates float8_e4m3fn at 448, infinity included",
    tell: afterCast("float32", "float8_e4m3fn", (view, at, source) => {
      if ((source & 0x7fffffff) > 0x43e80000) view.setUint8(at, (source >>> 24) & 0x80 ? 0xff : 0x7f)
    })
  },
  {
    name: "writes one byte too many",
    caughtBy: "touches nothing outside of the destination",
    tell: afterCopy(({ dst }, bytes) => {
      const at = endOf(dst)
      if (!isSubByte(dst.dtype) && at < bytes.byteLength) bytes[at] = 0
    })
  },
  {
    name: "takes destinations whose elements share memory",
    caughtBy: "refuses destinations whose elements share memory",
    tell: withMoves((moves) => moves.filter(({ dst }) => !sharesElements(dst)))
  },
  {
    name: "reduces in reverse order",
    caughtBy: "reduces in the order given",
    tell: (honest) => ({ ...honest, reduce: (dst, sources, op) => honest.reduce(dst, [...sources].reverse(), op) })
  },
  {
    name: "rounds after every step of a reduction",
    caughtBy: "accumulates 16-bit floats in float32 with one rounding",
    tell: (honest) => ({
      ...honest,
      reduce: (dst, sources, op) =>
        op !== "sum" || sources.length < 3
          ? honest.reduce(dst, sources, op)
          : Effect.andThen(
              honest.reduce(dst, sources.slice(0, 2), op),
              Effect.forEach(sources.slice(2), (source) => honest.reduce(dst, [dst, source], op), { discard: true })
            )
    })
  },
  {
    name: "fills the gaps between elements",
    caughtBy: "fills every byte of the elements and no other",
    tell: (honest) => ({
      ...honest,
      fill: (tensor, byte) =>
        Effect.tap(honest.fill(tensor, byte), () =>
          Effect.sync(() => {
            if (elementCount(tensor.shape) > 0) tensor.storage.bytes?.fill(byte, tensor.byteOffset, endOf(tensor))
          })
        )
    })
  },
  {
    name: "goes on writing when interrupted",
    caughtBy: "stops writing when interrupted",
    tell: (honest) => ({
      ...honest,
      copy: (moves) =>
        Effect.flatMap(Effect.forkDetach(Effect.andThen(Effect.yieldNow, honest.copy(moves))), Fiber.join)
    })
  },
  {
    name: "frees nothing",
    caughtBy: "allocates dense memory of its own and frees it with the scope",
    tell: (honest) => ({
      ...honest,
      allocate: (dtype, shape, device) =>
        Effect.map(honest.allocate(dtype, shape, device), (tensor) => ({
          ...tensor,
          storage: { ...tensor.storage, isFreed: () => false }
        }))
    })
  },
  {
    name: "copies what it wraps",
    caughtBy: "wraps the caller's bytes without copying them",
    tell: (honest) => ({ ...honest, wrapHost: (bytes) => honest.wrapHost(bytes.slice()) })
  }
]
