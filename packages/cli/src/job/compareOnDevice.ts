// SPDX-License-Identifier: Apache-2.0
/**
 * Compares tensors of two models by digests that a device makes of both, as their bytes lie in pinned memory: several portions
 * are read at a time, and no core of the host looks at them unless they differ.
 *
 * Invariant: a digest is of all bytes at their places, so that equal ones of two models are those of equal tensors.
 */
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, fullRegion } from "@tensorferry/core/base/Region"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type ElementDigest, sumOfDigests } from "@tensorferry/core/tensor/ElementDigest"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import { boundedBytes, boundedRegions, deviceInFlight } from "@tensorferry/model/BoundedRegions"
import type { ModelTensor } from "@tensorferry/model/layout/ModelLayout"
import type { Model } from "@tensorferry/model/Model"
import { storedOf } from "@tensorferry/model/stream/CheckpointStream"
import { makeStagingRing } from "@tensorferry/model/stream/stagingRing"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"

/** What was found out about one tensor. */
export interface Compared {
  readonly bytes: number
  /** Of the first model's tensor. */
  readonly digest: ElementDigest
  /** The first byte that differs, and what both models have there. */
  readonly difference?: { readonly at: number; readonly one: number; readonly two: number }
}

type Difference = NonNullable<Compared["difference"]>

const earlier = (known: Difference | undefined, found: Difference): Difference =>
  known === undefined || found.at < known.at ? found : known

/** Both models must have these tensors alike in type and shape. Results are in their order. */
export const compareOnDevice = (a: Model, b: Model, tensors: ReadonlyArray<ModelTensor>) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const found = tensors.map(() => ({ digest: 0n, difference: undefined as Difference | undefined }))
    const totals = tensors.map(({ dtype, shape }) => byteLengthOf(dtype, elementCount(shape)))
    const portions = tensors.flatMap(({ dtype, name, shape }, tensor) =>
      boundedRegions(dtype, fullRegion(shape)).map((piece) => ({ tensor, name, ...piece }))
    )
    // Values that are converted as they are read take memory of their own.
    const isStored = [a, b].every((model) => storedOf(model) !== undefined)
    const inFlight = isStored ? deviceInFlight : 2
    const ring = yield* makeStagingRing(inFlight, 2 * boundedBytes)
    const compare = ({ end, name, region, start, tensor }: (typeof portions)[number]) =>
      ring.use(({ byteOffset, bytes, storage }) =>
        Effect.gen(function* () {
          const length = end - start
          const [one, two] = [bytes.subarray(0, length), bytes.subarray(boundedBytes, boundedBytes + length)]
          yield* a.readRegion(name, region, one)
          yield* b.readRegion(name, region, two)
          const parts = [0, boundedBytes].map((from) => ({
            tensor: Result.getOrThrow(tensorView(storage, "uint8", [length], { byteOffset: byteOffset + from })),
            whole: [totals[tensor]!],
            origin: [start]
          }))
          const [left, right] = yield* engine.digest(parts)
          const own = found[tensor]!
          own.digest = sumOfDigests([own.digest, left!])
          if (left === right) return
          const at = Math.max(
            0,
            one.findIndex((byte, place) => byte !== two[place])
          )
          own.difference = earlier(own.difference, { at: start + at, one: one[at]!, two: two[at]! })
        })
      )
    yield* Effect.forEach(portions, compare, { concurrency: inFlight, discard: true })
    return found.map(
      ({ difference, digest }, at): Compared => ({
        bytes: totals[at]!,
        digest,
        ...(difference === undefined ? {} : { difference })
      })
    )
  }).pipe(Effect.scoped)
