// SPDX-License-Identifier: Apache-2.0
/**
 * What tensors hold, as a digest: equal for equal elements, wherever and however they lie. The device that holds them reads
 * them; no byte comes to the host.
 */
import * as Effect from "effect/Effect"
import { type Digest, digestOf, digestOfText } from "../base/Digest.ts"
import { TensorEngine, type TensorError } from "../service/TensorEngine.ts"
import { formatElementDigest } from "../tensor/ElementDigest.ts"
import type { Tensor } from "../tensor/Tensor.ts"

/** Digests of the types, shapes and elements of tensors, in the order given. They detect faults, not forgeries. */
export const tensorDigests = (
  tensors: ReadonlyArray<Tensor>
): Effect.Effect<ReadonlyArray<Digest>, TensorError, TensorEngine> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const digests = yield* engine.digest(tensors.map((tensor) => ({ tensor })))
    return tensors.map(({ dtype, shape }, at) =>
      digestOfText(`${dtype}[${shape.join(",")}]${formatElementDigest(digests[at]!)}`)
    )
  })

/** Digest of one tensor's type, shape and elements in order. */
export const tensorDigest = (tensor: Tensor): Effect.Effect<Digest, TensorError, TensorEngine> =>
  Effect.map(tensorDigests([tensor]), ([digest]) => digest!)

/** One digest of many, by name. */
export const contentDigest = (digests: ReadonlyMap<string, Digest>): Digest => digestOf(Object.fromEntries(digests))
