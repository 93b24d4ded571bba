// SPDX-License-Identifier: Apache-2.0
/**
 * Deltas of one bfloat16 tensor of 256 MiB on the host: bytes of a payload beside the stated model, and what making and
 * applying it takes beside writing and reading the tensor's digest, which every delta needs anyway.
 */
import { TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import { tensorHash } from "@tensorferry/core/base/Digest"
import { median } from "@tensorferry/core/base/Numbers"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import { applyDelta, decodeDelta, encodeDelta, payloadHeadBytes } from "@tensorferry/model/delta/DeltaPayload"
import { expectedChangeBytes } from "@tensorferry/model/delta/DeltaSize"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { BenchResult } from "./measure.ts"

const elements = 2 ** 27
const rounds = 5
const shares = [0.0005, 0.01, 0.03, 0.1]

/** Each element with the same chance, by a generator of 32 bits. */
const change = (words: Uint16Array, share: number): void => {
  let state = 12_345
  const below = share * 2 ** 32
  for (let at = 0; at < words.length; at++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    if (state < below) words[at]! ^= 1 << (at % 16)
  }
}

const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.suspend(() => {
    const begun = performance.now()
    return Effect.map(effect, (value) => ({ value, millis: performance.now() - begun }))
  })

const measure = (share: number) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const base = new Uint16Array(elements).map((_, at) => Math.imul(at, 40_503) >>> 8)
    const result = base.slice()
    change(result, share)
    const bytesOf = (words: Uint16Array) => new Uint8Array(words.buffer)
    const view = (words: Uint16Array) =>
      Effect.map(
        engine.wrapHost(bytesOf(words)),
        (storage): Tensor => Result.getOrThrow(tensorView(storage, "bfloat16", [elements]))
      )
    const [before, after] = [yield* view(base), yield* view(result)]
    const list = (count: number) =>
      Effect.all({ positions: engine.allocate("uint32", [count]), values: engine.allocate("bfloat16", [count]) })
    const shape = { elements, elementBytes: 2 }
    const make = Effect.gen(function* () {
      const changed = yield* engine.diff(before, after, yield* list(0))
      const found = yield* list(changed)
      yield* engine.diff(before, after, found)
      const positions = new Uint32Array(tensorBytes(found.positions)!.slice().buffer)
      const values = tensorBytes(found.values)!
      const delta = { ...shape, base: bytesOf(base), result: bytesOf(result), changed, positions, values }
      return encodeDelta(delta).bytes
    }).pipe(Effect.scoped)
    const [making, applying, hashing]: [Array<number>, Array<number>, Array<number>] = [[], [], []]
    let payload = new Uint8Array()
    for (let round = 0; round < rounds; round++) {
      const made = yield* timed(make)
      payload = new Uint8Array(made.value)
      const target = bytesOf(base.slice())
      const applied = yield* timed(
        Effect.sync(() => applyDelta(Result.getOrThrow(decodeDelta(payload, shape)), target, 2))
      )
      const hashed = yield* timed(Effect.sync(() => tensorHash("bfloat16", [elements]).update(target).digest("hex")))
      making.push(made.millis)
      applying.push(applied.millis)
      hashing.push(hashed.millis)
    }
    const percent = `${100 * share}% changed`
    const stated = payloadHeadBytes + expectedChangeBytes(elements, 2, share)
    return [
      {
        case: `bytes of a payload, ${percent}, of the tensor's; reference is the stated model`,
        unit: "%",
        ours: (100 * payload.length) / (2 * elements),
        reference: (100 * stated) / (2 * elements),
        target: (105 * stated) / (2 * elements),
        lowerIsBetter: true
      },
      {
        case: `find and encode, ${percent}, median of ${rounds}; reference is the tensor's digest`,
        ...{ unit: "ms", ours: median(making), reference: median(hashing), lowerIsBetter: true }
      },
      {
        case: `decode and apply, ${percent}, median of ${rounds}; reference is the tensor's digest`,
        ...{ unit: "ms", ours: median(applying), reference: median(hashing), lowerIsBetter: true }
      }
    ] satisfies ReadonlyArray<BenchResult>
  }).pipe(Effect.scoped)

export const delta = async (): Promise<ReadonlyArray<BenchResult>> => {
  const all = Effect.forEach(shares, measure)
  return (await Effect.runPromise(Effect.provide(all, HostEngine.layer({ threads: 2 })))).flat()
}
