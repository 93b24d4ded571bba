// SPDX-License-Identifier: Apache-2.0
/** Shows the host the bytes of tensors that it does not see, in their order, by way of a few pinned buffers. */
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import type { Move } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import { type NamedTensor, type StreamOptions, settingsOf } from "./CheckpointStream.ts"
import { inTurns } from "./inTurns.ts"
import { packed, portionsOf, stagedView } from "./portions.ts"
import { makeStagingRing } from "./stagingRing.ts"

/**
 * Calls `visit` with the number of each tensor and its dense bytes, a portion after the other; they are another's afterwards.
 * Fails with InvalidRequest (options), or as the engine does.
 */
export const visitTensors = (
  tensors: ReadonlyArray<Pick<NamedTensor, "name" | "tensor">>,
  visit: (tensor: number, bytes: Uint8Array) => void,
  options: StreamOptions = {}
): Effect.Effect<void, CheckpointError | TensorError, TensorEngine> =>
  Effect.gen(function* () {
    const file = tensors[0]?.name ?? ""
    const { inFlight, onProgress, portionBytes } = yield* Effect.fromResult(settingsOf(file, options))
    const all = tensors.map(({ name, tensor }, number) => {
      const region = tensor.shape.map((length) => [0, length] as const)
      return Result.map(portionsOf(file, { name, region, into: tensor }, portionBytes), (own) =>
        own.map((portion) => ({ ...portion, number }))
      )
    })
    const packs = packed((yield* Effect.fromResult(Result.all(all))).flat())
    const largest = packs.reduce((most, { byteLength }) => Math.max(most, byteLength), 0)
    const engine = yield* TensorEngine
    const ring = yield* makeStagingRing(inFlight, largest)
    const show = inTurns((at, bytes: Uint8Array) => {
      for (const { from, portion } of packs[at]!.parts)
        visit(portion.number, bytes.subarray(from, from + portion.byteLength))
    })
    const bring = ({ byteLength, parts }: (typeof packs)[number], at: number) =>
      ring.use((buffer) =>
        Effect.gen(function* () {
          const moves = parts.map(({ from, portion }) =>
            Result.map(stagedView(file, portion, buffer, from), (dst): Move => ({ dst, src: portion.tensor }))
          )
          yield* engine.copy(yield* Effect.fromResult(Result.all(moves)))
          yield* show(at, buffer.bytes)
          yield* onProgress(byteLength)
        })
      )
    yield* Effect.forEach(packs, bring, { concurrency: inFlight, discard: true })
  }).pipe(Effect.scoped)
