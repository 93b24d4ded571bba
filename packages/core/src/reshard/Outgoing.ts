// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank sends: regions where they lie, what is cast into buffers first, what a transform makes of a tensor, and the
 * results of reductions.
 *
 * Invariant: prepared before the update writes anything, so that whatever it would overwrite before it is read is kept.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { fullRegion } from "../base/Region.ts"
import type { ReshardPlan } from "../ir/ReshardPlan.ts"
import { type Leg, legShape, sourceKey, type Wave } from "../planner/Waves.ts"
import type { CopyOp } from "../service/CopyService.ts"
import { TensorEngine } from "../service/TensorEngine.ts"
import type { Move, Tensor } from "../tensor/Tensor.ts"
import { resolveTensor } from "../tensor/TensorDict.ts"
import { allocateDense, allocateWaves, engineFailed } from "./Buffers.ts"
import { type Incoming, type Sides, transformFailed } from "./Incoming.ts"
import { touching } from "./InPlace.ts"
import { legView, plainView } from "./PlanTensors.ts"
import type { ReshardError } from "./ReshardError.ts"

/** What a rank sends in one wave. */
export interface LeavingWave {
  readonly ops: ReadonlyArray<CopyOp>
  /** Moves that fill the buffers among it. */
  readonly fills: ReadonlyArray<Move>
}

export interface Outgoing {
  readonly waves: ReadonlyArray<LeavingWave>
  /** Copies within the rank that cast. */
  readonly casts: ReadonlyArray<Move>
  /** How many sends were copied first, because the update overwrites their memory, and the bytes of that. */
  readonly keptSends: number
  readonly keptBytes: number
  readonly bufferBytes: number
}

/** A leg with what it reads: `tensor` is of the type that travels unless it is to be cast. */
interface Read {
  readonly leg: Leg
  readonly part: number
  readonly tensor: Tensor
}

/** Prepares what a rank sends in these waves; results of reductions must be there. */
export const prepareOutgoing = Effect.fnUntraced(function* (
  plan: ReshardPlan,
  waves: ReadonlyArray<Wave>,
  { source, transform }: Sides,
  incoming: Pick<Incoming, "casts" | "results" | "written">
): Effect.fn.Return<Outgoing, ReshardError, TensorEngine | Scope.Scope> {
  const engine = yield* TensorEngine
  const { rank } = plan
  const isTouched = touching(incoming.written)
  const reads: Array<Array<Read>> = []
  for (const { sends } of waves) {
    const found: Array<Read> = []
    reads.push(found)
    for (const leg of sends) {
      const { op } = leg
      const own = source === undefined ? undefined : resolveTensor(source, op.paramName)
      if (own === undefined) continue
      const result = op.reduction === undefined ? undefined : incoming.results[op.reduction]
      if (transform?.shouldTransform(op.paramName) === true && (op.reduction === undefined || result !== undefined)) {
        const read = { tensor: result ?? own, region: result === undefined ? op.mySlice : fullRegion(result.shape) }
        const prepared = transform.prepareSend({ paramName: op.paramName, ...read })
        const parts = yield* Effect.mapError(prepared, (error) => transformFailed(rank, op, error))
        for (const [part, tensor] of parts.entries()) found.push({ leg, part, tensor })
        continue
      }
      const view = result ?? (yield* plainView(rank, op, own))
      found.push({ leg, part: leg.part, tensor: yield* legView(rank, leg, view) })
    }
  }

  const isCast = ({ leg, tensor }: Read): boolean =>
    incoming.casts.has(leg.op) ||
    (tensor.dtype !== leg.op.wireDtype && transform?.shouldTransform(leg.op.paramName) !== true)
  /** Read before anything is written: the buffers of the first wave. */
  const isSafe = (read: Read, wave: number): boolean => wave === 0 && isCast(read) && !incoming.casts.has(read.leg.op)
  const kept = [...reads.entries()].flatMap(([wave, found]) =>
    found.filter((read) => !isSafe(read, wave) && isTouched(read.tensor))
  )
  const memory = yield* allocateDense(
    rank,
    engine,
    kept.map(({ tensor }) => tensor)
  )
  const saves = kept.map(({ tensor }, at): Move => ({ dst: memory.tensors[at]!, src: tensor }))
  if (saves.length > 0) yield* Effect.mapError(engine.copy(saves), (error) => engineFailed(rank, "save", error))
  const copies = new Map(kept.map((read, at) => [read, memory.tensors[at]!] as const))
  const readFrom = (read: Read): Tensor => copies.get(read) ?? read.tensor

  /** By wave, what is cast; the same region for several ranks once. */
  const filled = reads.map((found) => {
    const distinct = new Map<string, Read>()
    for (const read of found) {
      if (isCast(read) && !incoming.casts.has(read.leg.op))
        distinct.set(sourceKey(read.leg), distinct.get(sourceKey(read.leg)) ?? read)
    }
    return distinct
  })
  const buffers = yield* allocateWaves(
    rank,
    engine,
    filled.map((distinct) =>
      [...distinct.values()].map(({ leg, tensor }) => ({
        dtype: leg.op.wireDtype,
        shape: legShape(leg),
        device: tensor.device
      }))
    )
  )
  const made = reads.map((found, wave): LeavingWave => {
    const places = new Map([...filled[wave]!.keys()].map((key, at) => [key, buffers.waves[wave]![at]!] as const))
    const fills = [...filled[wave]!].map(([key, read]): Move => ({ dst: places.get(key)!, src: readFrom(read) }))
    const ops = found.flatMap((read): ReadonlyArray<CopyOp> => {
      const { op } = read.leg
      if (incoming.casts.has(op)) return []
      const tensor = isCast(read) ? places.get(sourceKey(read.leg))! : readFrom(read)
      const { peerRank: destRank, taskId, paramName } = op
      return [{ _tag: "SendOp", tensor, destRank, taskId, part: read.part, paramName }]
    })
    return { ops, fills }
  })
  const casts = reads.flat().flatMap((read): ReadonlyArray<Move> => {
    const dst = incoming.casts.get(read.leg.op)
    return dst === undefined ? [] : [{ dst, src: readFrom(read) }]
  })
  return {
    waves: made,
    casts,
    keptSends: kept.length,
    keptBytes: memory.byteLength,
    bufferBytes: buffers.byteLength
  }
})
