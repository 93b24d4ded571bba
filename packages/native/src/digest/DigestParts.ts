// SPDX-License-Identifier: Apache-2.0
/**
 * Parts of wholes as bytes: what must hold of them before they are digested, and where their bytes stand.
 *
 * Invariant: elements that share bytes have become whole bytes, but for the last of a whole, whose mask says which bits count.
 */
import { bitsOf } from "@tensorferry/core/base/DType"
import { formatShape, isRepresentable, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import type { DigestPart } from "@tensorferry/core/service/TensorEngine"
import { isContiguous, type Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { type Checked, describeTensor, type makeMoveChecks, maxDimensions, type Refusal } from "../MoveChecks.ts"

/** Elements of whole bytes, and where they stand in the whole. Steps are bytes. */
export interface DigestBytes {
  /** Number of the part. */
  readonly part: number
  /** The tensor that holds them. */
  readonly tensor: Tensor
  /** Bytes from the tensor's beginning to the first of them. */
  readonly offset: number
  /** Bytes from the beginning of the whole to the first of them. */
  readonly position: number
  /** Bytes of an element. */
  readonly size: number
  /** Bits of each byte that count. */
  readonly mask: number
  readonly shape: Shape
  readonly steps: ReadonlyArray<number>
  readonly positionSteps: ReadonlyArray<number>
}

/** Why a part cannot be one of its whole. */
const wholeFault = ({ tensor, whole = tensor.shape, origin = [] }: DigestPart): string | undefined => {
  const { dtype, shape } = tensor
  const text = `${describeTensor(tensor)} from [${origin.join(",")}] of ${formatShape(whole)}`
  if (whole.length !== shape.length || (origin.length > 0 && origin.length !== shape.length)) {
    return `${text} has as many dimensions, lengths of a whole and numbers of an origin as each other, or none of the latter.`
  }
  if (!isRepresentable(whole, bitsOf(dtype))) return `${text} exceeds 2^53 bits.`
  const isInside = shape.every((length, dim) => {
    const from = origin[dim] ?? 0
    return Number.isSafeInteger(from) && from >= 0 && from + length <= whole[dim]!
  })
  return isInside ? undefined : `${text} does not lie inside of the whole.`
}

/** The bytes of a part whose elements share bytes; undefined where it is cut inside one. */
const sharedBytes = (
  at: number,
  { tensor, whole = tensor.shape, origin = tensor.shape.map(() => 0) }: DigestPart
): ReadonlyArray<DigestBytes> | undefined => {
  const bits = bitsOf(tensor.dtype)
  const { shape, strides } = tensor
  const common = { part: at, tensor, size: 1, mask: 0xff }
  const isWhole = shape.every((length, dim) => length === whole[dim])
  if (isWhole && isContiguous(tensor)) {
    const total = bits * shape.reduce((product, length) => product * length, 1)
    const full = Math.floor(total / 8)
    const run = { ...common, offset: 0, position: 0, shape: [full], steps: [1], positionSteps: [1] }
    const rest = { ...run, offset: full, position: full, shape: [1], mask: (1 << (total % 8)) - 1 }
    return total % 8 === 0 ? [run] : [run, rest]
  }
  const last = shape.length - 1
  const places = rowMajorStrides(whole)
  const inBytes = [
    ...[bits * shape[last]!, bits * origin[last]!, bits * whole[last]!],
    ...strides.slice(0, last).map((stride, dim) => (shape[dim] === 1 ? 0 : stride * bits))
  ]
  if (strides[last] !== 1 || inBytes.some((length) => length % 8 !== 0)) return undefined
  const bytes = (lengths: ReadonlyArray<number>) => lengths.map((length) => Math.floor((length * bits) / 8))
  return [
    {
      ...common,
      offset: 0,
      position: (bits * places.reduce((sum, stride, dim) => sum + stride * origin[dim]!, 0)) / 8,
      shape: [...shape.slice(0, last), (bits * shape[last]!) / 8],
      steps: [...bytes(strides.slice(0, last)), 1],
      positionSteps: [...bytes(places.slice(0, last)), 1]
    }
  ]
}

/** The bytes of a part, or what is wrong with it. */
export const bytesOfPart = (at: number, part: DigestPart): Result.Result<ReadonlyArray<DigestBytes>, string> => {
  const { tensor, whole = tensor.shape, origin } = part
  const fault = wholeFault(part)
  if (fault !== undefined) return Result.fail(fault)
  if (tensor.shape.includes(0)) return Result.succeed([])
  const bits = bitsOf(tensor.dtype)
  if (bits % 8 !== 0) {
    const shared = sharedBytes(at, part)
    return shared === undefined
      ? Result.fail(`${describeTensor(tensor)} is cut inside a byte, or lies in one that others share.`)
      : Result.succeed(shared)
  }
  const size = bits / 8
  const places = rowMajorStrides(whole)
  return Result.succeed([
    {
      ...{ part: at, tensor, offset: 0, size, mask: 0xff, shape: tensor.shape },
      position: size * places.reduce((sum, stride, dim) => sum + stride * (origin?.[dim] ?? 0), 0),
      steps: tensor.strides.map((stride) => stride * size),
      positionSteps: places.map((stride) => stride * size)
    }
  ])
}

/** Parts that an engine may digest, as bytes. `checkTensor` is the engine's own check of one tensor. */
export const makeDigestCheck =
  (refusal: Refusal, { checkTensor }: Pick<ReturnType<typeof makeMoveChecks>, "checkTensor">) =>
  (parts: ReadonlyArray<DigestPart>): Checked<ReadonlyArray<DigestBytes>> => {
    const all: Array<DigestBytes> = []
    for (const [at, part] of parts.entries()) {
      const wrong = checkTensor("digest", part.tensor, false)
      if (wrong !== undefined) return Result.fail(wrong)
      if (part.tensor.shape.filter((length) => length > 1).length > maxDimensions) {
        const detail = `${describeTensor(part.tensor)} has more than ${maxDimensions} dimensions.`
        return Result.fail(refusal("Unsupported", "digest", detail))
      }
      const bytes = bytesOfPart(at, part)
      if (Result.isFailure(bytes)) return Result.fail(refusal("InvalidRequest", "digest", bytes.failure))
      all.push(...bytes.success)
    }
    return Result.succeed(all)
  }
