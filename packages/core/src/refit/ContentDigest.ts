// SPDX-License-Identifier: Apache-2.0
/**
 * What tensors hold, as a digest: equal for equal elements, wherever and however they lie. Bytes of devices come to the host
 * in pieces of bounded size.
 */
import type { Hash } from "node:crypto"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type Digest, digestOf, tensorHash } from "../base/Digest.ts"
import { bitsOf, byteLengthOf } from "../base/DType.ts"
import { elementCount } from "../base/Region.ts"
import { TensorEngine, type TensorError } from "../service/TensorEngine.ts"
import { isContiguous, type Tensor, tensorBytes, tensorView } from "../tensor/Tensor.ts"

const pieceBytes = 16 << 20

const hashDense = (hash: Hash, tensor: Tensor): Effect.Effect<void, TensorError, TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    const bytes = tensorBytes(tensor)
    if (bytes !== undefined) {
      hash.update(bytes)
      return
    }
    const engine = yield* TensorEngine
    const total = byteLengthOf(tensor.dtype, elementCount(tensor.shape))
    const host = new Uint8Array(Math.min(total, pieceBytes))
    const storage = yield* engine.wrapHost(host)
    for (let at = 0; at < total; at += host.length) {
      const shape = [Math.min(host.length, total - at)]
      const dst = Result.getOrThrow(tensorView(storage, "uint8", shape))
      const src: Tensor = { ...tensor, dtype: "uint8", shape, strides: [1], byteOffset: tensor.byteOffset + at }
      yield* engine.copy([{ dst, src }])
      hash.update(host.subarray(0, shape[0]))
    }
  })

/** Digest of a tensor's type, shape and elements in order. */
export const tensorDigest = (tensor: Tensor): Effect.Effect<Digest, TensorError, TensorEngine> =>
  Effect.gen(function* () {
    const hash = tensorHash(tensor.dtype, tensor.shape)
    if (isContiguous(tensor) || bitsOf(tensor.dtype) % 8 !== 0) yield* hashDense(hash, tensor)
    else {
      const engine = yield* TensorEngine
      const dense = yield* engine.allocate(tensor.dtype, tensor.shape, tensor.device)
      yield* engine.copy([{ dst: dense, src: tensor }])
      yield* hashDense(hash, dense)
    }
    return hash.digest("hex")
  }).pipe(Effect.scoped)

/** One digest of many, by name. */
export const contentDigest = (digests: ReadonlyMap<string, Digest>): Digest => digestOf(Object.fromEntries(digests))
