// SPDX-License-Identifier: Apache-2.0
/**
 * The boxes that a rank reduces before it ships or keeps them: own part and contributions, in the order of the plan's group,
 * in the source's element type, once.
 *
 * Invariant: a box is ready when every piece of it has been reduced; whoever waits for one learns of a failure anywhere, so
 * nobody waits for a contribution that will not be used.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Rank } from "../base/Ids.ts"
import { elementCount, formatRegion, fullRegion, type Region } from "../base/Region.ts"
import type { Chunk } from "../ir/Chunk.ts"
import type { MeshPlan } from "../ir/MeshPlan.ts"
import type { ReshardError } from "../reshard/ReshardError.ts"
import { engineFailed } from "../reshard/Writeback.ts"
import type { TensorEngineShape } from "../service/TensorEngine.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { allocateDense } from "./BufferPool.ts"
import { type Piece, reductionKey } from "./MeshParcels.ts"
import { boxOf } from "./MeshTensors.ts"

/** What a chunk ships: where it lies, and when it may be read. */
export interface Readable {
  readonly tensor: Tensor
  /** Undefined where it may be read at once. */
  readonly ready: Deferred.Deferred<void, ReshardError> | undefined
}

interface Contribution {
  readonly tensor: Tensor
  readonly giveBack: Effect.Effect<void>
}

interface Box {
  readonly chunk: Chunk
  readonly own: Tensor
  readonly reduced: Tensor
  readonly ready: Deferred.Deferred<void, ReshardError>
  /** By piece, the contributions that have arrived. */
  readonly parts: Map<string, Map<Rank, Contribution>>
  /** Elements that are still to be reduced. */
  left: number
}

export interface MeshReductions {
  /** What a chunk reads on this rank, its own source. */
  readonly read: (chunk: Chunk) => Readable
  /** Reduces what needs no contribution. */
  readonly reduceAlone: Effect.Effect<void, ReshardError>
  /** Takes a contribution over, and reduces the piece when it is the last one; then all of them are given back. */
  readonly deliver: (piece: Piece, contribution: Contribution) => Effect.Effect<void, ReshardError>
  /** Fails everything that is not ready yet. */
  readonly abandon: (error: ReshardError) => Effect.Effect<void>
  /** Memory of the results, kept until the update ends. */
  readonly reducedBytes: number
}

const otherMembers = (rank: Rank, chunk: Chunk): number =>
  chunk.sourcePartialGroups[0]!.ranks.filter((member) => member !== rank).length

/** The reductions of a plan over these source boxes; results live until the scope closes. */
export const makeReductions = (
  plan: MeshPlan,
  sources: ReadonlyMap<Chunk, Tensor>,
  engine: TensorEngineShape
): Effect.Effect<MeshReductions, ReshardError, Scope.Scope> =>
  Effect.gen(function* () {
    const shipped = [...sources].filter(([{ kind, sourcePartialGroups }]) => {
      return kind !== "none" && sourcePartialGroups.length > 0
    })
    const distinct = new Map(shipped.map((entry) => [reductionKey(entry[0]), entry] as const))
    const memory = yield* allocateDense(
      plan.rank,
      engine,
      [...distinct.values()].map(([, own]) => own)
    )
    const boxes = new Map<string, Box>()
    for (const [at, [key, [chunk, own]]] of [...distinct].entries()) {
      boxes.set(key, {
        chunk,
        own,
        reduced: memory.tensors[at]!,
        ready: Deferred.makeUnsafe(),
        parts: new Map(),
        left: elementCount(chunk.chunkShape)
      })
    }

    const reduce = (box: Box, within: Region, parts: ReadonlyMap<Rank, Contribution>) =>
      Effect.gen(function* () {
        const { chunk } = box
        const [group] = chunk.sourcePartialGroups
        const part = (tensor: Tensor) => Effect.fromResult(boxOf(plan, chunk, tensor, within))
        const own = yield* part(box.own)
        const result = yield* part(box.reduced)
        const operands = group!.ranks.map((member) => parts.get(member)?.tensor ?? own)
        yield* Effect.mapError(engine.reduce(result, operands, group!.op), (error) =>
          engineFailed(plan.rank, "reduce", error)
        )
        for (const { giveBack } of parts.values()) yield* giveBack
        box.left -= elementCount(result.shape)
        if (box.left <= 0) yield* Deferred.succeed(box.ready, undefined)
      })

    return {
      read: (chunk) => {
        const box = boxes.get(reductionKey(chunk))
        return chunk.kind === "none" || box === undefined
          ? { tensor: sources.get(chunk)!, ready: undefined }
          : { tensor: box.reduced, ready: box.ready }
      },
      reduceAlone: Effect.suspend(() => {
        const alone = [...boxes.values()].filter(({ chunk }) => otherMembers(plan.rank, chunk) === 0)
        const noParts: ReadonlyMap<Rank, Contribution> = new Map()
        return Effect.forEach(alone, (box) => reduce(box, fullRegion(box.chunk.chunkShape), noParts), { discard: true })
      }),
      deliver: ({ chunk, within }, contribution) =>
        Effect.suspend(() => {
          // A plan that passed its check reduces whatever is contributed to it.
          const box = boxes.get(reductionKey(chunk))!
          const place = formatRegion(within)
          const parts = box.parts.get(place) ?? new Map<Rank, Contribution>()
          box.parts.set(place, parts.set(chunk.srcIdx.rank, contribution))
          if (parts.size < otherMembers(plan.rank, chunk)) return Effect.void
          box.parts.delete(place)
          return reduce(box, within, parts)
        }),
      abandon: (error) => Effect.forEach(boxes.values(), ({ ready }) => Deferred.fail(ready, error), { discard: true }),
      reducedBytes: memory.byteLength
    }
  })
