// SPDX-License-Identifier: Apache-2.0
/**
 * Bytes of tensors on the host, and a checksum of tensors: for what may have been damaged on its way, not for what somebody
 * forged.
 */
import type { TensorEngineShape, TensorError } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorByteLength, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"

/** All bytes of a dense tensor; its own memory where the host sees it. */
export const hostBytes = (engine: TensorEngineShape, tensor: Tensor): Effect.Effect<Uint8Array, TensorError> =>
  Effect.suspend(() => {
    const own = tensorBytes(tensor)
    if (own !== undefined) return Effect.succeed(own)
    const bytes = new Uint8Array(tensorByteLength(tensor))
    const src: Tensor = { ...tensor, dtype: "uint8", shape: [bytes.length], strides: [1] }
    const copied = Effect.flatMap(engine.wrapHost(bytes), (storage) =>
      engine.copy([{ dst: Result.getOrThrow(tensorView(storage, "uint8", [bytes.length])), src }])
    )
    return Effect.as(Effect.scoped(copied), bytes)
  })

/**
 * 32 bits of the digests of tensors, one after the other: the same on every engine, each of which finds it where the tensors
 * lie. They are the upper bits of words of digests, on which every bit of an element has effect.
 */
export const checksumOf = (
  engine: TensorEngineShape,
  tensors: ReadonlyArray<Tensor>
): Effect.Effect<number, TensorError> =>
  Effect.map(engine.digest(tensors.map((tensor) => ({ tensor }))), (digests) =>
    digests.reduce((sum, digest) => {
      const own = Number(BigInt.asUintN(32, digest >> 32n)) ^ Number(digest >> 96n)
      return (Math.imul(sum, 0x9e3779b1) + own) >>> 0
    }, 0)
  )
