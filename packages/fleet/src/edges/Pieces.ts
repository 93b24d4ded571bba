// SPDX-License-Identifier: Apache-2.0
/**
 * The weights of a replica as one run of bytes: tensors one after the other, by name. Trees are cut in these bytes, so all
 * members cut alike whatever their tensors are called or shaped.
 */

import { createHash, type Hash } from "node:crypto"
import type { Digest } from "@tensorferry/core/base/Digest"
import { bitsOf } from "@tensorferry/core/base/DType"
import { rowMajorStrides } from "@tensorferry/core/base/Region"
import { tensorDigests } from "@tensorferry/core/refit/ContentDigest"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { cpu, type Device, equalDevices } from "@tensorferry/core/tensor/Device"
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

/** The tensors' bytes from `start` to `end`, as views of bytes in order. */
export const piecesOf = (weights: Weights, start: number, end: number): ReadonlyArray<Tensor> => {
  const pieces: Array<Tensor> = []
  let first = 0
  for (const name of namesOf(weights)) {
    const tensor = weights.get(name)!
    const bytes = tensorByteLength(tensor)
    const [from, to] = [Math.max(start, first), Math.min(end, first + bytes)]
    if (from < to) {
      const byteOffset = tensor.byteOffset + from - first
      pieces.push({ ...tensor, dtype: "uint8", shape: [to - from], strides: [1], byteOffset })
    }
    first += bytes
  }
  return pieces
}

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

const dense = ({ dtype, shape }: Tensor) => ({ dtype, shape, strides: rowMajorStrides(shape) })

/** Bytes that are hashed before others of the process get a turn: some milliseconds. */
const bytesPerTurn = 2 ** 22

/** Hashes bytes without keeping beats, programs and transfers of the process waiting. */
const hashInTurns = (hash: Hash, bytes: Uint8Array): Effect.Effect<void> =>
  Effect.gen(function* () {
    for (let at = 0; at < bytes.length; at += bytesPerTurn) {
      if (at > 0) yield* Effect.yieldNow
      hash.update(bytes.subarray(at, at + bytesPerTurn))
    }
  })

/** The digest of the bytes of pieces, one after the other: equal for equal bytes, however they are cut. */
export const digestPieces = (pieces: ReadonlyArray<Tensor>): Effect.Effect<Digest, TensorError, TensorEngine> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const hash = createHash("sha256")
    for (const piece of pieces) {
      const bytes = isContiguous(piece) ? tensorBytes(piece) : undefined
      if (bytes !== undefined) {
        yield* hashInTurns(hash, bytes)
        continue
      }
      const host = new Uint8Array(tensorByteLength(piece))
      const storage = yield* engine.wrapHost(host)
      yield* engine.copy([{ dst: { ...dense(piece), byteOffset: 0, device: storage.device, storage }, src: piece }])
      hash.update(host)
    }
    return hash.digest("hex")
  }).pipe(Effect.scoped)

/** All tensors as one bundle. */
export const wholeBundle = "weights"

/** The bytes of members that hold whole tensors. */
export const wholeBytes =
  (weights: Weights): BundleBytes =>
  (_, start, end) =>
    piecesOf(weights, start, end)

/** The digest of each tensor. */
export const digestWeights = (
  weights: Weights
): Effect.Effect<Readonly<Record<string, Digest>>, TensorError, TensorEngine> => {
  const names = namesOf(weights)
  return Effect.map(tensorDigests(names.map((name) => weights.get(name)!)), (digests) =>
    Object.fromEntries(names.map((name, at) => [name, digests[at]!]))
  )
}
