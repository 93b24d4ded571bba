// SPDX-License-Identifier: Apache-2.0
/**
 * The moves of an update of changes: what is queued at the copy service for each region, whole or by its changes, and what
 * completes it when it has arrived. Casts at either end are of lists where only changes travel.
 */

import type { Digest } from "@tensorferry/core/base/Digest"
import type { DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount } from "@tensorferry/core/base/Region"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import { tensorDigest } from "@tensorferry/core/refit/ContentDigest"
import { engineFailed } from "@tensorferry/core/reshard/Buffers"
import { type ReshardError, reshardError } from "@tensorferry/core/reshard/ReshardError"
import type { CopyOp } from "@tensorferry/core/service/CopyService"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import type { Changes } from "@tensorferry/core/tensor/Changes"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { ScannedRegion } from "./ChangeScan.ts"

/** In the place of a number of changes: the region is sent whole. */
export const wholeRegion = Number.MAX_SAFE_INTEGER

/** What one rank moves in one run of the copy service. */
export interface ChangeExchange {
  readonly ops: Array<CopyOp>
  /** What completes it: casts and writings. */
  readonly finish: Array<Effect.Effect<void, ReshardError>>
}

/** Moves of one rank. What they allocate lives in the scope. */
export interface ChangeMoves {
  /** Adds one end of a region that is sent whole. */
  readonly whole: (into: ChangeExchange, op: TransferOp, view: Tensor) => Effect.Effect<void, ReshardError, Scope.Scope>
  /** All that the rank sends and receives; `countOf` says how much comes of a region. */
  readonly assemble: (
    plan: ReshardPlan,
    regions: ReadonlyMap<TransferOp, ScannedRegion>,
    views: ReadonlyMap<TransferOp, Tensor>,
    countOf: (op: TransferOp) => number
  ) => Effect.Effect<ChangeExchange, ReshardError, Scope.Scope>
  /** The digest of a region in the type that travels. */
  readonly digest: (op: TransferOp, view: Tensor) => Effect.Effect<Digest, ReshardError>
}

/** Moves of a rank on an engine. */
export const makeChangeMoves = (rank: Rank, engine: TensorEngineShape): ChangeMoves => {
  const failed = (op: string) => (error: Parameters<typeof engineFailed>[2]) => engineFailed(rank, op, error)

  /** One end of a region that is sent whole. */
  const moveWhole = Effect.fnUntraced(function* (into: ChangeExchange, op: TransferOp, view: Tensor) {
    const { paramName, peerRank, taskId } = op
    const isCast = view.dtype !== op.wireDtype
    const allocated = engine.allocate(op.wireDtype, view.shape, view.device)
    const travels = isCast ? yield* Effect.mapError(allocated, failed("allocate")) : view
    const copy = (dst: Tensor, src: Tensor) => Effect.mapError(engine.copy([{ dst, src }]), failed("cast"))
    if (op.isSend) {
      if (isCast) yield* copy(travels, view)
      into.ops.push({ _tag: "SendOp", tensor: travels, destRank: peerRank, taskId, part: 0, paramName })
    } else {
      into.ops.push({ _tag: "RecvOp", tensor: travels, srcRank: peerRank, taskId, part: 0, paramName })
      if (isCast) into.finish.push(copy(view, travels))
    }
  })

  /** A list of elements in another type. */
  const castList = Effect.fnUntraced(function* (values: Tensor, dtype: DType) {
    if (values.dtype === dtype) return values
    const made = yield* Effect.mapError(engine.allocate(dtype, values.shape, values.device), failed("allocate"))
    yield* Effect.mapError(engine.copy([{ dst: made, src: values }]), failed("cast"))
    return made
  })

  const sendChanges = Effect.fnUntraced(function* (into: ChangeExchange, op: TransferOp, changes: Changes) {
    const { paramName, peerRank: destRank, taskId } = op
    const values = yield* castList(changes.values, op.wireDtype)
    for (const [part, tensor] of [changes.positions, values].entries()) {
      into.ops.push({ _tag: "SendOp", tensor, destRank, taskId, part, paramName })
    }
  })

  const receiveChanges = Effect.fnUntraced(function* (
    into: ChangeExchange,
    op: TransferOp,
    view: Tensor,
    count: number
  ) {
    const { paramName, peerRank: srcRank, taskId } = op
    const list = (dtype: DType) => Effect.mapError(engine.allocate(dtype, [count], view.device), failed("allocate"))
    const [positions, values] = [yield* list("uint32"), yield* list(op.wireDtype)]
    for (const [part, tensor] of [positions, values].entries()) {
      into.ops.push({ _tag: "RecvOp", tensor, srcRank, taskId, part, paramName })
    }
    into.finish.push(
      Effect.scoped(
        Effect.flatMap(castList(values, view.dtype), (own) =>
          Effect.mapError(engine.apply(view, { positions, values: own }), failed("apply"))
        )
      )
    )
  })

  /** The digest of a region in the type that travels. */
  const regionDigest = Effect.fnUntraced(function* (op: TransferOp, view: Tensor) {
    const dense = yield* Effect.mapError(engine.allocate(op.wireDtype, view.shape, view.device), failed("allocate"))
    yield* Effect.mapError(engine.copy([{ dst: dense, src: view }]), failed("cast"))
    return yield* Effect.mapError(Effect.provideService(tensorDigest(dense), TensorEngine, engine), failed("digest"))
  }, Effect.scoped)

  const tooMany = ({ paramName, peerRank, taskId }: TransferOp, count: number) =>
    reshardError("TensorMismatch", {
      rank,
      paramName,
      taskId,
      detail: `Rank ${peerRank} states ${count} changes, more than there are elements.`,
      remedy: "Plan again on all ranks."
    })

  /** All that this rank sends and receives; `countOf` says how much comes of a region. */
  const assemble = Effect.fnUntraced(function* (
    { recvOps, sendOps }: ReshardPlan,
    regions: ReadonlyMap<TransferOp, ScannedRegion>,
    views: ReadonlyMap<TransferOp, Tensor>,
    countOf: (op: TransferOp) => number
  ) {
    const exchange: ChangeExchange = { ops: [], finish: [] }
    for (const op of sendOps) {
      const { changes, view } = regions.get(op)!
      if (changes === undefined) yield* moveWhole(exchange, op, view)
      else if (changes.positions.shape[0]! > 0) yield* sendChanges(exchange, op, changes)
    }
    for (const op of recvOps) {
      const [view, count] = [views.get(op)!, countOf(op)]
      if (count === wholeRegion) yield* moveWhole(exchange, op, view)
      else if (count > elementCount(view.shape)) return yield* tooMany(op, count)
      else if (count > 0) yield* receiveChanges(exchange, op, view, count)
    }
    return exchange
  })

  return { whole: moveWhole, assemble, digest: regionDigest }
}
