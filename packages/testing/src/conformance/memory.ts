// SPDX-License-Identifier: Apache-2.0
/**
 * Memory of cases: tensors in many forms with guard bytes around them, filled and judged byte by byte on the host.
 *
 * Invariant: everything that no element covers is poison before an operation and must be poison after it. Device memory is
 * reached by the engine's own copies to wrapped host memory.
 */

import { bitsOf, byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { formatShape, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { isContiguous, type Tensor, tensorElementCount, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import { walk } from "../tensorWalk.ts"
import { elementCodec } from "../values/casts.ts"
import { CaseFailure, check } from "./Case.ts"

/** The byte that stands wherever no case has written. */
export const poison = 0xd7
/** A multiple of every element's width, so that views stay aligned. */
const guardBytes = 64

/** How a tensor lies in memory. */
export type Form = "dense" | "padded" | "transposed" | "spread"

/** Strides in elements: dense, rows with gaps, first dimension fastest, or every third element. */
export const stridesOf = (shape: Shape, form: Form): ReadonlyArray<number> => {
  switch (form) {
    case "dense":
      return rowMajorStrides(shape)
    case "padded":
      return rowMajorStrides(shape.map((length, dim) => (dim === 0 ? length : length + 3)))
    case "transposed":
      return [...rowMajorStrides([...shape].reverse())].reverse()
    case "spread":
      return rowMajorStrides(shape).map((stride) => stride * 3)
  }
}

/** A tensor and all the bytes of its storage. */
export interface Placed {
  readonly tensor: Tensor
  readonly whole: Tensor
}

/** A view that the case itself got wrong is a fault of the case, reported like any other. */
export const viewOf = (
  storage: Storage,
  dtype: DType,
  shape: Shape,
  options: { readonly strides?: ReadonlyArray<number>; readonly byteOffset?: number } = {}
): Effect.Effect<Tensor, CaseFailure> =>
  Effect.fromResult(
    Result.mapError(
      tensorView(storage, dtype, shape, options),
      (fault) => new CaseFailure({ detail: `No view: ${fault.detail}.` })
    )
  )

/** Every byte of a storage, copied to the host. */
export const loadBytes = Effect.fnUntraced(function* (
  whole: Tensor
): Effect.fn.Return<Uint8Array, TensorError | CaseFailure, TensorEngine> {
  const { storage } = whole
  if (storage.bytes !== undefined) return storage.bytes.slice()
  const bytes = new Uint8Array(storage.byteLength)
  yield* Effect.scoped(
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const host = yield* viewOf(yield* engine.wrapHost(bytes), "uint8", whole.shape)
      yield* engine.copy([{ dst: host, src: whole }])
    })
  )
  return bytes
})

/** Replaces every byte of a storage. */
export const storeBytes = Effect.fnUntraced(function* (
  whole: Tensor,
  bytes: Uint8Array
): Effect.fn.Return<void, TensorError | CaseFailure, TensorEngine> {
  const { storage } = whole
  if (storage.bytes !== undefined) {
    storage.bytes.set(bytes)
    return
  }
  yield* Effect.scoped(
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const host = yield* viewOf(yield* engine.wrapHost(bytes), "uint8", whole.shape)
      yield* engine.copy([{ dst: whole, src: host }])
    })
  )
})

/** New memory, poisoned, with a tensor in the middle of it. */
export const place = Effect.fnUntraced(function* (
  dtype: DType,
  shape: Shape,
  form: Form = "dense"
): Effect.fn.Return<Placed, TensorError | CaseFailure, TensorEngine | EffectScope.Scope> {
  const engine = yield* TensorEngine
  const strides = stridesOf(shape, form)
  const extent = shape.includes(0) ? 0 : shape.reduce((sum, length, dim) => sum + (length - 1) * strides[dim]!, 1)
  const whole = yield* engine.allocate("uint8", [2 * guardBytes + byteLengthOf(dtype, extent)])
  yield* storeBytes(whole, new Uint8Array(whole.storage.byteLength).fill(poison))
  return { tensor: yield* viewOf(whole.storage, dtype, shape, { strides, byteOffset: guardBytes }), whole }
})

/** First byte of every element in logical order. Elements are whole bytes. */
const elementStarts = (tensor: Tensor): ReadonlyArray<number> => {
  const size = bitsOf(tensor.dtype) / 8
  const starts: Array<number> = []
  walk(tensor.shape, [tensor.strides], ([at]) => starts.push(tensor.byteOffset + at! * size))
  return starts
}

/** Elements one after the other, as those that are parts of bytes always are. */
const isDense = (tensor: Tensor): boolean => bitsOf(tensor.dtype) % 8 !== 0 || isContiguous(tensor)

const scatter = (tensor: Tensor, elements: Uint8Array, into: Uint8Array): void => {
  if (isDense(tensor)) {
    into.set(elements, tensor.byteOffset)
    return
  }
  const size = bitsOf(tensor.dtype) / 8
  for (const [at, start] of elementStarts(tensor).entries()) {
    into.set(elements.subarray(at * size, (at + 1) * size), start)
  }
}

/** The bytes of the elements in logical order, out of those of the whole storage. */
export const gatherElements = (tensor: Tensor, whole: Uint8Array): Uint8Array => {
  if (isDense(tensor)) {
    const { byteOffset, dtype } = tensor
    return whole.slice(byteOffset, byteOffset + byteLengthOf(dtype, tensorElementCount(tensor)))
  }
  const size = bitsOf(tensor.dtype) / 8
  const elements = new Uint8Array(tensorElementCount(tensor) * size)
  for (const [at, start] of elementStarts(tensor).entries())
    elements.set(whole.subarray(start, start + size), at * size)
  return elements
}

/** Poison everywhere, and these bytes as the elements in logical order. */
export const setElements = (
  placed: Placed,
  elements: Uint8Array
): Effect.Effect<void, TensorError | CaseFailure, TensorEngine> =>
  Effect.suspend(() => {
    const bytes = new Uint8Array(placed.whole.storage.byteLength).fill(poison)
    scatter(placed.tensor, elements, bytes)
    return storeBytes(placed.whole, bytes)
  })

/** Poison in every byte of the storage, the elements included. */
export const setPoison = (placed: Placed): Effect.Effect<void, TensorError | CaseFailure, TensorEngine> =>
  Effect.suspend(() => storeBytes(placed.whole, new Uint8Array(placed.whole.storage.byteLength).fill(poison)))

const hex = (bytes: Uint8Array, around: number): string =>
  Buffer.from(bytes.subarray(Math.max(0, around - 4), around + 8)).toString("hex")

/** The elements are these bytes, and every other byte of the storage is still poison. */
export const expectElements = Effect.fnUntraced(function* (
  what: string,
  placed: Placed,
  elements: Uint8Array
): Effect.fn.Return<void, TensorError | CaseFailure, TensorEngine> {
  const actual = yield* loadBytes(placed.whole)
  const expected = new Uint8Array(actual.byteLength).fill(poison)
  scatter(placed.tensor, elements, expected)
  const isSame = Buffer.compare(actual, expected) === 0
  const at = isSame ? -1 : actual.findIndex((byte, position) => byte !== expected[position])
  const { tensor } = placed
  yield* check(
    at < 0,
    () =>
      `${what}: ${tensor.dtype}${formatShape(tensor.shape)} with strides [${tensor.strides.join(",")}] differs at byte ` +
      `${at - tensor.byteOffset}: ${hex(actual, at)} instead of ${hex(expected, at)}.`
  )
})

/** Nothing was written at all. */
export const expectPoison = Effect.fnUntraced(function* (
  what: string,
  placed: Placed
): Effect.fn.Return<void, TensorError | CaseFailure, TensorEngine> {
  const at = (yield* loadBytes(placed.whole)).findIndex((byte) => byte !== poison)
  yield* check(at < 0, () => `${what}: byte ${at - placed.tensor.byteOffset} was written.`)
})

/** Bytes that differ between neighbours, rows, seeds and 256-byte blocks. */
export const patternBytes = (length: number, seed: number): Uint8Array => {
  const bytes = new Uint8Array(length)
  for (let at = 0; at < length; at++) bytes[at] = (at * 131 + seed * 29 + (at >> 8) * 7 + 17) & 0xff
  return bytes
}

/** The pattern of a seed for all elements of a tensor, in logical order. */
export const patternFor = (tensor: Tensor, seed: number): Uint8Array =>
  patternBytes(byteLengthOf(tensor.dtype, tensorElementCount(tensor)), seed)

/** Dense bytes of numbers, each rounded to the type as the reference engine casts. */
export const encode = (dtype: DType, values: ArrayLike<number>): Uint8Array => {
  const size = bitsOf(dtype) / 8
  const bytes = new Uint8Array(values.length * size)
  const view = new DataView(bytes.buffer)
  const codec = elementCodec(dtype)!
  for (let at = 0; at < values.length; at++) codec.write(view, at * size, values[at]!)
  return bytes
}

/** The numbers that dense bytes are, exact in float32. */
export const decode = (dtype: DType, bytes: Uint8Array): Float32Array => {
  const size = bitsOf(dtype) / 8
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const codec = elementCodec(dtype)!
  return Float32Array.from({ length: bytes.length / size }, (_, at) => Number(codec.read(view, at * size)))
}
