// SPDX-License-Identifier: Apache-2.0
/**
 * What a learner does with a batch, for a chosen time. On the host it works on the batch's bytes, in slices between which
 * the process takes messages, as a learner that drives a device does. On a device only the time passes.
 */
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { tensorBytes } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"

const sliceBytes = 512 * 1024

/** A checksum of the batch, again and again until the time is over. Zero milliseconds: nothing. */
export const compute = (batch: Tensor, millis: number): Effect.Effect<number> => {
  const bytes = tensorBytes(batch)
  if (millis === 0) return Effect.succeed(0)
  if (bytes === undefined || bytes.byteOffset % 4 !== 0) return Effect.as(Effect.sleep(millis), 0)
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, Math.floor(bytes.byteLength / 4))
  const slice = Math.max(1, Math.min(words.length, sliceBytes / 4))
  return Effect.gen(function* () {
    const end = performance.now() + millis
    let sum = 0
    for (let from = 0; performance.now() < end; from = from + slice < words.length ? from + slice : 0) {
      const to = Math.min(words.length, from + slice)
      for (let at = from; at < to; at++) sum = (sum + words[at]!) | 0
      yield* Effect.yieldNow
    }
    return sum
  })
}
