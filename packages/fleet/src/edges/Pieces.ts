// SPDX-License-Identifier: Apache-2.0
/**
 * The weights of a replica as one run of bytes: tensors one after the other, by name. Trees are cut in these bytes, so all
 * members cut alike whatever their tensors are called or shaped.
 */

import type { Digest } from "@tensorferry/core/base/Digest"
import { bitsOf } from "@tensorferry/core/base/DType"
import { rowMajorStrides } from "@tensorferry/core/base/Region"
import { tensorDigests } from "@tensorferry/core/refit/ContentDigest"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { cpu, type Device, equalDevices } from "@tensorferry/core/tensor/Device"
import { formatElementDigest, sumOfDigests } from "@tensorferry/core/tensor/ElementDigest"
import { isContiguous, type Move, type Tensor, tensorByteLength, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type FleetError, fleetError } from "../FleetError.ts"

/** Tensors by name. */
export type Weights = ReadonlyMap<string, Tensor>

/** Memory of a run of a bundle's bytes: views in the order of the bytes. */
export type BundleBytes = (bundle: string, start: number, end: number) => ReadonlyArray<Tensor>

/** Names in the order of their bytes. */
const namesOf = (weights: Weights): ReadonlyArray<string> => [...weights.keys()].sort()

/** Bytes of all tensors together. */
export const weightBytes = (weights: Weights): number =>
  [...weights.values()].reduce((sum, tensor) => sum + tensorByteLength(tensor), 0)

/** Where all tensors are; the host where they are in several places. */
export const deviceOf = (weights: Weights): Device => {
  const [first, ...others] = [...weights.values()].map(({ device }) => device)
  return first !== undefined && others.every((device) => equalDevices(device, first)) ? first : cpu
}

/** Fails with InvalidOptions for a tensor whose bytes are not one run. */
export const checkWeights = (weights: Weights, what: string): Result.Result<undefined, FleetError> => {
  for (const [name, tensor] of weights) {
    if (isContiguous(tensor) && bitsOf(tensor.dtype) % 8 === 0) continue
    const detail = `The ${what} tensor ${name} is strided, or of elements that are no whole bytes.`
    const remedy = "Give contiguous tensors; view packed elements as uint8."
    return Result.fail(fleetError("InvalidOptions", [], { paramName: name, detail, remedy }))
  }
  return Result.succeed(undefined)
}

/** Fails with InvalidOptions where two sets differ in names, types or shapes. */
export const checkAlike = (a: Weights, b: Weights): Result.Result<undefined, FleetError> => {
  const text = (weights: Weights): string =>
    namesOf(weights)
      .map((name) => `${name} ${weights.get(name)!.dtype}[${weights.get(name)!.shape.join(",")}]`)
      .join("; ")
  if (text(a) === text(b)) return Result.succeed(undefined)
  const detail = `The tensors in use are ${text(a).slice(0, 500)}; those for the next version ${text(b).slice(0, 500)}.`
  const remedy = "Give both the same names, types and shapes."
  return Result.fail(fleetError("InvalidOptions", [], { detail, remedy }))
}

/** The tensors' bytes as one run: views of bytes in order from `start` to `end`. */
const runOf = (weights: Weights) => {
  const placed: Array<{ readonly first: number; readonly end: number; readonly tensor: Tensor }> = []
  let end = 0
  for (const name of namesOf(weights)) {
    const tensor = weights.get(name)!
    placed.push({ first: end, end: end + tensorByteLength(tensor), tensor })
    end += tensorByteLength(tensor)
  }
  return (start: number, end: number): ReadonlyArray<Tensor> => {
    const pieces: Array<Tensor> = []
    // The first that ends behind the start.
    let [low, high] = [0, placed.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if (placed[middle]!.end <= start) low = middle + 1
      else high = middle
    }
    for (let at = low; at < placed.length && placed[at]!.first < end; at++) {
      const { first, end: last, tensor } = placed[at]!
      const [from, to] = [Math.max(start, first), Math.min(end, last)]
      if (from >= to) continue
      const byteOffset = tensor.byteOffset + from - first
      pieces.push({ ...tensor, dtype: "uint8", shape: [to - from], strides: [1], byteOffset })
    }
    return pieces
  }
}

/** The tensors' bytes from `start` to `end`, as views of bytes in order. */
export const piecesOf = (weights: Weights, start: number, end: number): ReadonlyArray<Tensor> =>
  runOf(weights)(start, end)

/** Moves between pieces and the bytes of a window, in which they lie one after the other. */
export const windowMoves = (
  window: Tensor,
  pieces: ReadonlyArray<Tensor>,
  direction: "to window" | "from window"
): ReadonlyArray<Move> => {
  let byteOffset = window.byteOffset
  return pieces.map((piece) => {
    const there: Tensor = { ...window, ...dense(piece), byteOffset }
    byteOffset += tensorByteLength(piece)
    return direction === "to window" ? { dst: there, src: piece } : { dst: piece, src: there }
  })
}

/** More than this is copied by threads of the engine. */
const mostAtOnce = 2 ** 24

/**
 * Copies between pieces and a window. Where both are plain host memory, at once: what an engine adds to a copy takes longer
 * than some MiB.
 */
export const copyWindow = (
  engine: TensorEngine["Service"],
  window: Tensor,
  pieces: ReadonlyArray<Tensor>,
  direction: "to window" | "from window"
): Effect.Effect<void, TensorError> =>
  Effect.suspend(() => {
    const there = tensorBytes(window)
    const here = pieces.map((piece) => (isContiguous(piece) ? tensorBytes(piece) : undefined))
    if (there === undefined || there.length > mostAtOnce || here.includes(undefined))
      return engine.copy(windowMoves(window, pieces, direction))
    let at = 0
    for (const bytes of here) {
      const part = there.subarray(at, at + bytes!.length)
      if (direction === "to window") part.set(bytes!)
      else bytes!.set(part)
      at += bytes!.length
    }
    return Effect.void
  })

const dense = ({ dtype, shape }: Tensor) => ({ dtype, shape, strides: rowMajorStrides(shape) })

/** Pieces as dense ones of the same bytes: those that are strided as copies, until the scope closes. */
const densely = Effect.fnUntraced(function* (pieces: ReadonlyArray<Tensor>) {
  const strided = pieces.filter((piece) => !isContiguous(piece))
  const [first] = strided
  if (first === undefined) return pieces
  const engine = yield* TensorEngine
  const bytes = strided.reduce((sum, piece) => sum + tensorByteLength(piece), 0)
  const moves = windowMoves(yield* engine.allocate("uint8", [bytes], first.device), strided, "to window")
  yield* engine.copy(moves)
  const copies = new Map(moves.map(({ src, dst }) => [src, dst]))
  return pieces.map((piece) => copies.get(piece) ?? piece)
})

/**
 * The digest of the bytes of pieces, one after the other: equal for equal bytes, however they are cut. The device that holds
 * them computes it.
 */
export const digestPieces = (pieces: ReadonlyArray<Tensor>): Effect.Effect<Digest, TensorError, TensorEngine> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const whole = [pieces.reduce((sum, piece) => sum + tensorByteLength(piece), 0)]
    let at = 0
    const parts = (yield* densely(pieces)).map((piece) => {
      const bytes = tensorByteLength(piece)
      const part = { tensor: { ...piece, dtype: "uint8", shape: [bytes], strides: [1] }, whole, origin: [at] } as const
      at += bytes
      return part
    })
    return formatElementDigest(sumOfDigests(yield* engine.digest(parts)))
  }).pipe(Effect.scoped)

/** All tensors as one bundle. */
export const wholeBundle = "weights"

/** The bytes of members that hold whole tensors. */
export const wholeBytes = (weights: Weights): BundleBytes => {
  const pieces = runOf(weights)
  return (_, start, end) => pieces(start, end)
}

/** The digest of each tensor. */
export const digestWeights = (
  weights: Weights
): Effect.Effect<Readonly<Record<string, Digest>>, TensorError, TensorEngine> => {
  const names = namesOf(weights)
  return Effect.map(tensorDigests(names.map((name) => weights.get(name)!)), (digests) =>
    Object.fromEntries(names.map((name, at) => [name, digests[at]!]))
  )
}
