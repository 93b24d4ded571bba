// SPDX-License-Identifier: Apache-2.0
/**
 * Bytes of tensors on the host, and a checksum of them: for what may have been damaged on its way, not for what somebody
 * forged. Bytes of devices come in pieces of bounded size.
 */
import { crc32 } from "node:zlib"
import type { TensorEngineShape, TensorError } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorByteLength, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"

const pieceBytes = 16 << 20

/** A part of the bytes of a dense tensor, in memory of the host; `into` is where they go unless they are there. */
const piece = Effect.fnUntraced(function* (
  engine: TensorEngineShape,
  tensor: Tensor,
  at: number,
  into: Tensor
): Effect.fn.Return<Uint8Array, TensorError> {
  const own = tensorBytes(tensor)
  const { shape } = into
  if (own !== undefined) return own.subarray(at, at + shape[0]!)
  const src: Tensor = { ...tensor, dtype: "uint8", shape, strides: [1], byteOffset: tensor.byteOffset + at }
  yield* engine.copy([{ dst: into, src }])
  return tensorBytes(into)!
})

const hostView = (engine: TensorEngineShape, byteLength: number): Effect.Effect<Tensor, TensorError, Scope.Scope> =>
  Effect.map(engine.wrapHost(new Uint8Array(byteLength)), (storage) =>
    Result.getOrThrow(tensorView(storage, "uint8", [byteLength]))
  )

/** All bytes of a dense tensor; its own memory where the host sees it. */
export const hostBytes = (engine: TensorEngineShape, tensor: Tensor): Effect.Effect<Uint8Array, TensorError> =>
  Effect.scoped(
    Effect.flatMap(hostView(engine, tensorBytes(tensor) === undefined ? tensorByteLength(tensor) : 0), (into) =>
      piece(engine, tensor, 0, { ...into, shape: [tensorByteLength(tensor)] })
    )
  )

/** CRC-32 over the bytes of dense tensors, one after the other. */
export const checksumOf = (
  engine: TensorEngineShape,
  tensors: ReadonlyArray<Tensor>
): Effect.Effect<number, TensorError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const longest = Math.max(0, ...tensors.map((one) => (tensorBytes(one) === undefined ? tensorByteLength(one) : 0)))
      const into = yield* hostView(engine, Math.min(pieceBytes, longest))
      let sum = 0
      for (const tensor of tensors) {
        const total = tensorByteLength(tensor)
        for (let at = 0; at < total; at += pieceBytes) {
          const shape = [Math.min(pieceBytes, total - at)]
          sum = crc32(yield* piece(engine, tensor, at, { ...into, shape }), sum)
          if (total > pieceBytes) yield* Effect.yieldNow
        }
      }
      return sum
    })
  )
