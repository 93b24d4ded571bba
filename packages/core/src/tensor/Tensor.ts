// SPDX-License-Identifier: Apache-2.0
/**
 * A view of storage: element type, shape, strides and where it starts. Views never own memory.
 *
 * Invariant: every element of the view lies inside its storage; `tensorView` refuses anything else, so that a later
 * address computation cannot leave the allocation. Strides count elements, `byteOffset` bytes.
 */
import * as Result from "effect/Result"
import { bitsOf, byteLengthOf, type DType, isSubByte } from "../base/DType.ts"
import {
  dimensionLimit,
  elementCount,
  formatRegion,
  formatShape,
  isInside,
  isRepresentable,
  type Region,
  regionShape,
  rowMajorStrides,
  type Shape
} from "../base/Region.ts"
import { type Device, equalDevices, formatDevice } from "./Device.ts"
import type { Storage } from "./Storage.ts"

/** A view of a storage: element type, shape, strides in elements, and the byte at which it begins. */
export interface Tensor {
  readonly device: Device
  readonly dtype: DType
  readonly shape: Shape
  /** Elements between neighbours, per dimension. */
  readonly strides: ReadonlyArray<number>
  readonly byteOffset: number
  readonly storage: Storage
}

/** Why a view cannot be made, in words that name the numbers. */
export interface ViewFault {
  readonly _tag: "ViewFault"
  readonly detail: string
}

const fault = (detail: string): Result.Result<never, ViewFault> => Result.fail({ _tag: "ViewFault", detail })

/** The product of the shape. */
export const tensorElementCount = (tensor: Tensor): number => elementCount(tensor.shape)

/** Bytes of the elements when densely packed. */
export const tensorByteLength = (tensor: Tensor): number => byteLengthOf(tensor.dtype, elementCount(tensor.shape))

/** A view of `storage`; dense row-major from its first byte unless strides are given. */
export const tensorView = (
  storage: Storage,
  dtype: DType,
  shape: Shape,
  options: { readonly strides?: ReadonlyArray<number>; readonly byteOffset?: number } = {}
): Result.Result<Tensor, ViewFault> => {
  const bits = bitsOf(dtype)
  const strides = options.strides ?? rowMajorStrides(shape)
  const byteOffset = options.byteOffset ?? 0
  if (shape.length > dimensionLimit) return fault(`${shape.length} dimensions exceed the limit of ${dimensionLimit}`)
  if (!isRepresentable(shape, bits)) return fault(`shape ${formatShape(shape)} of ${dtype} exceeds 2^53 bits`)
  if (strides.length !== shape.length) return fault(`${strides.length} strides for ${shape.length} dimensions`)
  if (strides.some((stride) => !Number.isSafeInteger(stride) || stride < 0)) {
    return fault(`strides [${strides.join(",")}] must be non-negative integers`)
  }
  if (!Number.isSafeInteger(byteOffset) || byteOffset < 0)
    return fault(`byte offset ${byteOffset} is not a natural number`)
  const last = shape.includes(0) ? 0 : shape.reduce((sum, length, dim) => sum + (length - 1) * strides[dim]!, 1)
  const end = byteOffset + byteLengthOf(dtype, last)
  if (!Number.isSafeInteger(last * bits) || end > storage.byteLength) {
    return fault(
      `${dtype}${formatShape(shape)} with strides [${strides.join(",")}] at byte ${byteOffset} needs ${end} bytes, ` +
        `the storage has ${storage.byteLength}`
    )
  }
  return Result.succeed({ device: storage.device, dtype, shape, strides, byteOffset, storage })
}

/** The part of a tensor that `region` selects, without copying. */
export const sliceTensor = (tensor: Tensor, region: Region): Result.Result<Tensor, ViewFault> => {
  if (!isInside(region, tensor.shape)) {
    return fault(`region ${formatRegion(region)} is not inside shape ${formatShape(tensor.shape)}`)
  }
  const shape = regionShape(region)
  if (shape.includes(0)) return Result.succeed({ ...tensor, shape })
  const bits = bitsOf(tensor.dtype)
  const offsetBits = region.reduce((sum, [start], dim) => sum + start * tensor.strides[dim]!, 0) * bits
  if (offsetBits % 8 !== 0) {
    return fault(`region ${formatRegion(region)} of ${tensor.dtype}${formatShape(tensor.shape)} starts inside a byte`)
  }
  return Result.succeed({ ...tensor, shape, byteOffset: tensor.byteOffset + offsetBits / 8 })
}

/** The same elements, dimension `n` of the result being dimension `axes[n]` of the tensor. */
export const permuteTensor = (tensor: Tensor, axes: ReadonlyArray<number>): Tensor => ({
  ...tensor,
  shape: axes.map((dim) => tensor.shape[dim]!),
  strides: axes.map((dim) => tensor.strides[dim]!)
})

/** The same elements with dimensions `a` and `b` exchanged. */
export const transposeTensor = (tensor: Tensor, a: number, b: number): Tensor =>
  permuteTensor(
    tensor,
    tensor.shape.map((_, dim) => (dim === a ? b : dim === b ? a : dim))
  )

/** True where the elements lie densely in row-major order. */
export const isContiguous = (tensor: Tensor): boolean => {
  let expected = 1
  for (let dim = tensor.shape.length - 1; dim >= 0; dim--) {
    const length = tensor.shape[dim]!
    if (length === 0) return true
    if (length !== 1 && tensor.strides[dim] !== expected) return false
    expected *= length
  }
  return true
}

/** Steps of the search of `sharesElements`. */
const searchSteps = 10_000

/**
 * True where two indices of the view name the same element, as with a stride of 0: written to, such a tensor holds whatever
 * came last. Exact, except that strides which a long search does not tell apart count as sharing.
 */
export const sharesElements = ({ shape, strides }: Pick<Tensor, "shape" | "strides">): boolean => {
  if (shape.includes(0)) return false
  const dims = shape
    .map((length, dim) => ({ most: length - 1, stride: strides[dim]!, reach: 0 }))
    .filter(({ most }) => most > 0)
    .sort((a, b) => b.stride - a.stride)
  let reach = 0
  let isNested = true
  for (const dim of dims.toReversed()) {
    dim.reach = reach
    isNested &&= dim.stride > reach
    reach += dim.most * dim.stride
  }
  if (isNested || dims.at(-1)!.stride === 0) return !isNested
  let left = searchSteps
  /** Whether indices that differ before dimension `at` by `offset` elements, or not at all, can be made to meet. */
  const meets = (at: number, offset: number, differs: boolean): boolean => {
    if (at === dims.length) return differs && offset === 0
    const { most, stride, reach } = dims[at]!
    const last = Math.min(most, Math.floor((reach - offset) / stride))
    for (let by = Math.max(differs ? -most : 0, Math.ceil((-reach - offset) / stride)); by <= last; by++) {
      if (left-- <= 0 || meets(at + 1, offset + by * stride, differs || by > 0)) return true
    }
    return false
  }
  return meets(0, 0, false)
}

/** Why the tensor cannot be used, or written to, whoever moves its bytes; undefined where it can. A sentence without its stop. */
export const tensorFault = (tensor: Tensor, isWritten: boolean): string | undefined => {
  if (!equalDevices(tensor.device, tensor.storage.device)) {
    return `it is on ${formatDevice(tensor.device)} and its storage on ${formatDevice(tensor.storage.device)}`
  }
  const view = tensorView(tensor.storage, tensor.dtype, tensor.shape, tensor)
  if (Result.isFailure(view)) return `it leaves its storage: ${view.failure.detail}`
  return isWritten && sharesElements(tensor)
    ? `strides [${tensor.strides.join(",")}] of shape ${formatShape(tensor.shape)} put elements into the same memory, so it cannot be written to`
    : undefined
}

/** The bytes of a dense host tensor, without copying; `undefined` where there are none to show. */
export const tensorBytes = (tensor: Tensor): Uint8Array | undefined => {
  if (tensor.storage.bytes === undefined || tensor.storage.isFreed() || !isContiguous(tensor)) return undefined
  return tensor.storage.bytes.subarray(tensor.byteOffset, tensor.byteOffset + tensorByteLength(tensor))
}

/** One copy: shapes are equal, strides and types may differ. */
export interface Move {
  readonly dst: Tensor
  readonly src: Tensor
}

/**
 * Views a move of sub-byte elements as a move of bytes: the innermost dimensions that are dense on both sides become one
 * run of whole bytes. Other moves pass unchanged. Fails where a run or a step would cut a byte in two.
 */
export const byteMove = (move: Move): Result.Result<Move, ViewFault> => {
  if (!isSubByte(move.src.dtype) || move.src.dtype !== move.dst.dtype) return Result.succeed(move)
  const bits = bitsOf(move.src.dtype)
  const { shape } = move.src
  let split = shape.length
  let run = 1
  while (split > 0 && move.src.strides[split - 1] === run && move.dst.strides[split - 1] === run) {
    run *= shape[split - 1]!
    split -= 1
  }
  const outer = shape.slice(0, split)
  const runBits = run * bits
  const toBytes = (tensor: Tensor): Result.Result<Tensor, ViewFault> => {
    const steps = tensor.strides.slice(0, split).map((stride) => (stride * bits) / 8)
    const cut = steps.some((step, dim) => outer[dim]! > 1 && !Number.isInteger(step))
    if (cut || runBits % 8 !== 0) {
      return fault(
        `${tensor.dtype}${formatShape(shape)} with strides [${tensor.strides.join(",")}] is cut inside a byte`
      )
    }
    return Result.succeed({
      ...tensor,
      dtype: "uint8",
      shape: [...outer, runBits / 8],
      strides: [...steps.map(Math.floor), 1]
    })
  }
  const dst = toBytes(move.dst)
  if (Result.isFailure(dst)) return Result.fail(dst.failure)
  return Result.map(toBytes(move.src), (src) => ({ src, dst: dst.success }))
}
