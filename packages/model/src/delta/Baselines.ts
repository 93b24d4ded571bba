// SPDX-License-Identifier: Apache-2.0
/**
 * Copies of regions as they were sent last, within a stated budget: beside the source, or in host memory, from where a region
 * comes back to its device for as long as it is compared.
 *
 * Where there is no room, copies go that were of no use: those of regions of which twice in a row more changed than is worth
 * listing. What has no copy is sent whole.
 *
 * Invariant: a copy is compared with only after all of it was written.
 */
import { byteLengthOf } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount } from "@tensorferry/core/base/Region"
import { engineFailed } from "@tensorferry/core/reshard/Buffers"
import type { ReshardError } from "@tensorferry/core/reshard/ReshardError"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import type { Changes } from "@tensorferry/core/tensor/Changes"
import { type Tensor, tensorByteLength, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { hostBytes } from "./hostBytes.ts"

/** Where copies lie: with what they are copies of, or in host memory. */
export type BaselinePlace = "source" | "host"

/** A copy of one region. */
export interface Baseline {
  readonly tensor: Tensor
  /** All of it was written. */
  isFilled: boolean
  /** It made room for another one, also between a comparison and what follows from that. */
  isFreed: boolean
  /** How often in a row more of its region changed than is worth listing. */
  useless: number
}

/** The copies of a rank. */
export interface Baselines {
  /** The copy of a region, made where there is room for it. */
  readonly of: (key: string, region: Tensor) => Effect.Effect<Baseline | undefined, ReshardError>
  /** The copy where the region is: for a comparison. */
  readonly near: (baseline: Baseline, region: Tensor) => Effect.Effect<Tensor, ReshardError, Scope.Scope>
  /** The copy becomes what was sent: all of the region, or its changes. */
  readonly advance: (
    baseline: Baseline,
    region: Tensor,
    changes: Changes | undefined
  ) => Effect.Effect<void, ReshardError>
  /** Bytes of all copies. */
  readonly bytes: () => number
  /** How many may be near at once: those of the host need memory there. */
  readonly nearAtOnce: number
}

/** While the engine's threads end one search, or its device is told of it, the next one is under way. */
const searchesAtOnce = 4
/** How often in a row a copy may be of no use before it makes room for another one. */
const mostUseless = 2

/** Writes elements into dense bytes. */
const writeElements = (into: Uint8Array, positions: Uint32Array, values: Uint8Array, size: number): void => {
  for (const [at, position] of positions.entries()) {
    for (let byte = 0; byte < size; byte++) into[position * size + byte] = values[at * size + byte]!
  }
}

/** Copies of one rank, which live in the scope in which this is called. */
export const makeBaselines = Effect.fnUntraced(function* (
  rank: Rank,
  engine: TensorEngineShape,
  { baselineBytes, baselines: place = "source" }: { readonly baselineBytes: number; readonly baselines?: BaselinePlace }
): Effect.fn.Return<Baselines, never, Scope.Scope> {
  const owner = yield* Effect.scope
  const held = new Map<string, { readonly baseline: Baseline; readonly scope: Scope.Closeable }>()
  let bytes = 0

  const failed =
    (op: string) =>
    <A, E extends Parameters<typeof engineFailed>[2], R>(effect: Effect.Effect<A, E, R>) =>
      Effect.mapError(effect, (error) => engineFailed(rank, op, error))

  /** Frees useless copies, until there is room. */
  const makeRoom = Effect.fnUntraced(function* (byteLength: number) {
    for (const [key, { baseline, scope }] of held) {
      if (bytes + byteLength <= baselineBytes) return true
      if (baseline.useless < mostUseless) continue
      held.delete(key)
      baseline.isFreed = true
      bytes -= tensorByteLength(baseline.tensor)
      yield* Scope.close(scope, Exit.void)
    }
    return bytes + byteLength <= baselineBytes
  })

  const allocate = ({ device, dtype, shape }: Tensor): Effect.Effect<Tensor, ReshardError, Scope.Scope> => {
    if (place === "source") return failed("allocate")(engine.allocate(dtype, shape, device))
    return Effect.map(
      failed("allocate")(engine.wrapHost(new Uint8Array(byteLengthOf(dtype, elementCount(shape))))),
      (storage) => Result.getOrThrow(tensorView(storage, dtype, shape))
    )
  }

  /** Whether the engine cannot compare the copy where it lies. */
  const isApart = (copy: Tensor, region: Tensor): boolean =>
    tensorBytes(copy) !== undefined && region.storage.bytes === undefined

  return {
    bytes: () => bytes,
    nearAtOnce: place === "host" ? 1 : searchesAtOnce,
    of: Effect.fnUntraced(function* (key, region) {
      const known = held.get(key)
      if (known !== undefined) return known.baseline
      const byteLength = tensorByteLength(region)
      if (!(yield* makeRoom(byteLength))) return undefined
      const scope = yield* Scope.fork(owner)
      const tensor = yield* Effect.onError(Scope.provide(allocate(region), scope), () => Scope.close(scope, Exit.void))
      const baseline: Baseline = { tensor, isFilled: false, isFreed: false, useless: 0 }
      bytes += byteLength
      held.set(key, { baseline, scope })
      return baseline
    }),
    near: Effect.fnUntraced(function* ({ tensor }, region) {
      if (!isApart(tensor, region)) return tensor
      const staged = yield* failed("allocate")(engine.allocate(region.dtype, region.shape, region.device))
      yield* failed("copy")(engine.copy([{ dst: staged, src: tensor }]))
      return staged
    }),
    advance: Effect.fnUntraced(function* (baseline, region, changes) {
      const { isFreed, tensor } = baseline
      if (isFreed) return
      if (changes === undefined) {
        yield* failed("copy")(engine.copy([{ dst: tensor, src: region }]))
        baseline.isFilled = true
        return
      }
      if (changes.positions.shape[0] === 0) return
      if (!isApart(tensor, region)) return yield* failed("apply")(engine.apply(tensor, changes))
      const [positions, values] = [
        yield* failed("copy")(hostBytes(engine, changes.positions)),
        yield* failed("copy")(hostBytes(engine, changes.values))
      ]
      const words = new Uint32Array(positions.slice().buffer)
      writeElements(tensorBytes(tensor)!, words, values, values.length / words.length)
    })
  }
})
