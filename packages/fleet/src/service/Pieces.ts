// SPDX-License-Identifier: Apache-2.0
/**
 * The weights of a replica as one run of bytes: tensors one after the other, by name. Trees are cut in these bytes, so all
 * members cut alike whatever their tensors are called or shaped.
 */

import { type Digest, digestOf } from "@tensorferry/core/base/Digest"
import { bitsOf } from "@tensorferry/core/base/DType"
import { tensorDigest } from "@tensorferry/core/refit/ContentDigest"
import type { TensorEngine, TensorError } from "@tensorferry/core/service/TensorEngine"
import { isContiguous, type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type FleetError, fleetError } from "../FleetError.ts"

/** Tensors by name. */
export type Weights = ReadonlyMap<string, Tensor>

/** Names in the order of their bytes. */
const namesOf = (weights: Weights): ReadonlyArray<string> => [...weights.keys()].sort()

/** Bytes of all tensors together. */
export const weightBytes = (weights: Weights): number =>
  [...weights.values()].reduce((sum, tensor) => sum + tensorByteLength(tensor), 0)

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

/** One digest of some pieces: equal for equal bytes that are cut alike. */
export const digestPieces = (pieces: ReadonlyArray<Tensor>): Effect.Effect<Digest, TensorError, TensorEngine> =>
  Effect.map(Effect.forEach(pieces, tensorDigest), digestOf)

/** The digest of each tensor. */
export const digestWeights = (
  weights: Weights
): Effect.Effect<Readonly<Record<string, Digest>>, TensorError, TensorEngine> =>
  Effect.map(
    Effect.forEach(namesOf(weights), (name) =>
      Effect.map(tensorDigest(weights.get(name)!), (digest) => [name, digest] as const)
    ),
    Object.fromEntries<Digest>
  )
