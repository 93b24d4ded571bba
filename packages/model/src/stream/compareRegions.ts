// SPDX-License-Identifier: Apache-2.0
/**
 * Compares what a source reads with what lies in memory of a device, by digests that the device makes of both: nothing of the
 * memory comes to the host unless it differs.
 *
 * Invariant: portions are read by `readRegion` alone, so that what was loaded in another way is held against it.
 */
import { elementCount } from "@tensorferry/core/base/Region"
import { endsWithin } from "@tensorferry/core/service/endsWithin"
import {
  type DigestPart,
  TensorEngine,
  type TensorEngineShape,
  type TensorError
} from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import { late, type StreamOptions, type StreamRead, type StreamSource, settingsOf } from "./CheckpointStream.ts"
import { type Portion, packed, portionsOf, stagedView } from "./portions.ts"
import { makeStagingRing } from "./stagingRing.ts"

/** The first byte of a portion that is not what the source has. */
export interface Difference extends Pick<Portion, "name" | "region"> {
  /** Number of the byte among those of the region. */
  readonly at: number
  /** The byte in memory. */
  readonly found: number
  /** The byte of the source. */
  readonly expected: number
}

/** Dense bytes of a tensor of any device and any strides, of whole bytes in all. */
const hostCopy = (
  engine: TensorEngineShape,
  tensor: Tensor,
  into: Uint8Array
): Effect.Effect<void, TensorError, Scope.Scope> =>
  Effect.gen(function* () {
    if (elementCount(tensor.shape) === 0) return
    const dst = Result.getOrThrow(tensorView(yield* engine.wrapHost(into), tensor.dtype, tensor.shape))
    yield* engine.copy([{ dst, src: tensor }])
  })

const differenceOf = (engine: TensorEngineShape, { byteLength, name, region, tensor }: Portion, bytes: Uint8Array) =>
  Effect.gen(function* () {
    const found = new Uint8Array(byteLength)
    yield* hostCopy(engine, tensor, found)
    const at = found.findIndex((byte, place) => byte !== bytes[place])
    // A digest that differs where no byte does is a fault of its own, and no proof either.
    const place = Math.max(0, at)
    return { name, region, at: place, found: found[place]!, expected: bytes[place]! } satisfies Difference
  }).pipe(Effect.scoped)

/**
 * The first difference between regions of a source and the memory that should hold them, or nothing where there is none. Types
 * are those of the memory. Fails with the source's error, with Unreadable where a portion takes longer than the deadline, or as
 * the engine does.
 */
export const compareRegions = <E>(
  source: Pick<StreamSource<E>, "path" | "readRegion">,
  reads: ReadonlyArray<Omit<StreamRead, "storedAs">>,
  options: StreamOptions = {}
): Effect.Effect<Difference | undefined, E | CheckpointError | TensorError, TensorEngine> =>
  Effect.gen(function* () {
    const { path: file } = source
    const { deadline, inFlight, onProgress, portionBytes } = yield* Effect.fromResult(settingsOf(file, options))
    const all = yield* Effect.fromResult(Result.all(reads.map((read) => portionsOf(file, read, portionBytes))))
    const packs = packed(all.flat())
    const engine = yield* TensorEngine
    const largest = packs.reduce((most, { byteLength }) => Math.max(most, byteLength), 0)
    const ring = yield* makeStagingRing(inFlight, largest)
    const differences: Array<{ readonly at: number; readonly difference: Difference }> = []
    const compare = ({ parts }: (typeof packs)[number], at: number) =>
      ring.use((buffer) =>
        Effect.gen(function* () {
          if (differences.length > 0) return
          const pairs: Array<DigestPart> = []
          for (const { from, portion } of parts) {
            const { byteLength, name, region } = portion
            const bytes = buffer.bytes.subarray(from, from + byteLength)
            const error = late(file, name, "The read of a portion", deadline)
            yield* endsWithin(source.readRegion(name, region, bytes), deadline, Effect.fail(error))
            const tensor = yield* Effect.fromResult(stagedView(file, portion, buffer, from))
            pairs.push({ tensor }, { tensor: portion.tensor })
          }
          const digests = yield* engine.digest(pairs)
          const wrong = parts.find((_, part) => digests[2 * part] !== digests[2 * part + 1])
          if (wrong !== undefined) {
            const { from, portion } = wrong
            const expected = buffer.bytes.subarray(from, from + portion.byteLength)
            differences.push({ at, difference: yield* differenceOf(engine, portion, expected) })
          }
          yield* onProgress(parts.reduce((sum, { portion }) => sum + portion.byteLength, 0))
        })
      )
    yield* Effect.forEach(packs, compare, { concurrency: inFlight, discard: true })
    return differences.sort((a, b) => a.at - b.at)[0]?.difference
  }).pipe(Effect.scoped)
