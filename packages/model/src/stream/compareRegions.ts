// SPDX-License-Identifier: Apache-2.0
/**
 * Compares what a source reads with what lies in memory of a device, by digests that the device makes of both: nothing of the
 * memory comes to the host unless it differs.
 *
 * Invariant: portions are read by `readRegion` alone, so that what was loaded in another way is held against it.
 */
import { elementCount } from "@tensorferry/core/base/Region"
import { endsWithin } from "@tensorferry/core/service/endsWithin"
import { TensorEngine, type TensorEngineShape, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import { late, type StreamOptions, type StreamRead, type StreamSource, settingsOf } from "./CheckpointStream.ts"
import { type Portion, portionsOf, stagedView } from "./portions.ts"
import { makeStagingRing, type Staged } from "./stagingRing.ts"

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
export const hostCopy = (
  engine: TensorEngineShape,
  tensor: Tensor,
  into: Uint8Array
): Effect.Effect<void, TensorError, Scope.Scope> =>
  Effect.gen(function* () {
    if (elementCount(tensor.shape) === 0) return
    const dst = Result.getOrThrow(tensorView(yield* engine.wrapHost(into), tensor.dtype, tensor.shape))
    yield* engine.copy([{ dst, src: tensor }])
  })

const differenceOf = (engine: TensorEngineShape, { byteLength, name, region, tensor }: Portion, { bytes }: Staged) =>
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
    const portions = all.flat()
    const engine = yield* TensorEngine
    const largest = portions.reduce((most, { byteLength }) => Math.max(most, byteLength), 0)
    const ring = yield* makeStagingRing(inFlight, largest)
    const differences: Array<{ readonly at: number; readonly difference: Difference }> = []
    const compare = (portion: Portion, at: number) =>
      ring.use((buffer) =>
        Effect.gen(function* () {
          if (differences.length > 0) return
          const bytes = buffer.bytes.subarray(0, portion.byteLength)
          const expected = yield* Effect.fromResult(stagedView(file, portion, buffer))
          const error = late(file, portion.name, "The read of a portion", deadline)
          yield* endsWithin(source.readRegion(portion.name, portion.region, bytes), deadline, Effect.fail(error))
          const [wanted, found] = yield* engine.digest([{ tensor: expected }, { tensor: portion.tensor }])
          if (wanted !== found) differences.push({ at, difference: yield* differenceOf(engine, portion, buffer) })
          yield* onProgress(portion.byteLength)
        })
      )
    yield* Effect.forEach(portions, compare, { concurrency: inFlight, discard: true })
    return differences.sort((a, b) => a.at - b.at)[0]?.difference
  }).pipe(Effect.scoped)

/**
 * Shows the dense bytes of a tensor in their order, a portion at a time: by way of one pinned buffer. Fails as the engine does.
 */
export const visitBytes = (
  name: string,
  tensor: Tensor,
  visit: (bytes: Uint8Array) => Effect.Effect<void>,
  portionBytes = 16 << 20
): Effect.Effect<void, CheckpointError | TensorError, TensorEngine> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const region = tensor.shape.map((length) => [0, length] as const)
    const portions = yield* Effect.fromResult(portionsOf(name, { name, region, into: tensor }, portionBytes))
    const largest = portions.reduce((most, { byteLength }) => Math.max(most, byteLength), 0)
    const ring = yield* makeStagingRing(1, largest)
    for (const portion of portions) {
      yield* ring.use((buffer) =>
        Effect.gen(function* () {
          const dst = yield* Effect.fromResult(stagedView(name, portion, buffer))
          yield* engine.copy([{ dst, src: portion.tensor }])
          yield* visit(buffer.bytes.subarray(0, portion.byteLength))
        })
      )
    }
  }).pipe(Effect.scoped)
