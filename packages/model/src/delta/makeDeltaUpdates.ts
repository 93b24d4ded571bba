// SPDX-License-Identifier: Apache-2.0
/**
 * Updates by one plan that send only what changed: each source shard is searched where it lies, and its changes are written
 * where the plan says. A transfer names the same region at both ends, so a position in the region is a position in the
 * destination, however that is cut, joined or cast.
 *
 * Collective, like the plan. Ranks state first which version their destination holds and which one their copies are of: where
 * the two are not the same, a rank gets all of its regions whole, once. Where more changed than is worth listing, a region is
 * sent whole too. Then senders state how much changed, the copy service moves it, and ranks agree that all of it was written.
 *
 * Invariant: after a success every destination holds what a whole update would have written, bit by bit. After a failure
 * nobody relies on what its destination or its copies hold, so the next update is a whole one.
 */

import { Natural, Natural32 } from "@tensorferry/core/base/Numbers"
import { exchangeResults } from "@tensorferry/core/group/Exchange"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import { type AnyPlan, opsOf } from "@tensorferry/core/planner/MeshOps"
import type { DeltaFailure, DeltaReport, DeltaStep, DeltaUpdates } from "@tensorferry/core/refit/DeltaUpdates"
import { touching } from "@tensorferry/core/reshard/InPlace"
import { refusalOf } from "@tensorferry/core/reshard/PlanRuns"
import { checkTensors, plainView } from "@tensorferry/core/reshard/PlanTensors"
import { ReshardError, reshardError } from "@tensorferry/core/reshard/ReshardError"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { resolveTensor, type TensorDict } from "@tensorferry/core/tensor/TensorDict"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { type ChangeExchange, type ChangeMoves, makeChangeMoves, wholeRegion } from "./ChangeMoves.ts"
import { makeChangeScan, type ScannedRegion } from "./ChangeScan.ts"

/** How updates of changes are made. */
export interface DeltaOptions {
  /** Bytes for copies of what was sent, at most, on the devices of the source; tensors beyond are always sent whole. */
  readonly baselineBytes: number
  /**
   * Compares digests of every region after each update, and sends those whole that differ: for destinations that others may
   * have written to. Takes as long as hashing all weights on the host.
   */
  readonly verify?: boolean
}

const Versions = {
  success: Schema.Struct({
    version: Schema.String,
    holds: Schema.NullOr(Schema.String),
    base: Schema.NullOr(Schema.String)
  }),
  failure: ReshardError
}
/** Of each region that is sent by its changes: receiver, task, number of changes, and the digest of the region. */
const Counts = {
  success: Schema.Array(Schema.Tuple([Natural32, Natural32, Natural, Schema.NullOr(Schema.String)])),
  failure: ReshardError
}
/** What differs after an update: sender and task. */
const Written = { success: Schema.Array(Schema.Tuple([Natural32, Natural32])), failure: ReshardError }

const keyOf = (peer: number, task: number): string => `${peer} ${task}`

/** Updates by a plan without reductions. Copies of what was sent live in the scope. */
export const makeDeltaUpdates = Effect.fn("makeDeltaUpdates")(function* (
  plan: AnyPlan,
  { baselineBytes, verify = false }: DeltaOptions
): Effect.fn.Return<DeltaUpdates, ReshardError, TensorEngine | Scope.Scope> {
  const lowered = opsOf(plan)
  const { rank, sendOps, recvOps } = lowered
  if ((lowered.reductions ?? []).length > 0) {
    return yield* reshardError("InvalidPlan", {
      rank,
      detail: "The plan reduces contributions, which have no elements that changed.",
      remedy: "Carry it out with executeReshardPlan."
    })
  }
  const scanner = yield* makeChangeScan(lowered, baselineBytes)
  let [holds, base]: [string | undefined, string | undefined] = [undefined, undefined]

  const exchangeFailed = (error: { readonly message: string }) =>
    error instanceof ReshardError
      ? error
      : reshardError("ExchangeFailed", { rank, detail: error.message, remedy: "See what the named rank printed." })

  const destinationViews = Effect.fnUntraced(function* (destination: TensorDict | undefined) {
    const views = new Map<TransferOp, Tensor>()
    for (const op of recvOps) {
      const own = destination === undefined ? undefined : resolveTensor(destination, op.paramName)
      if (own !== undefined) views.set(op, yield* plainView(rank, op, own))
    }
    return views
  })

  /** Everything that this rank knows by itself before it tells the others what it sends. */
  const prepare = Effect.fnUntraced(function* (
    moves: ChangeMoves,
    source: TensorDict | undefined,
    destination: TensorDict | undefined,
    isKnown: (op: TransferOp) => boolean
  ) {
    const views = yield* destinationViews(destination)
    const regions = yield* scanner.scan(sendOps, source, isKnown)
    const isWritten = touching([...views.values()])
    const shared = sendOps.find((op) => isWritten(regions.get(op)!.view))
    if (shared !== undefined) {
      return yield* reshardError("TensorMismatch", {
        rank,
        paramName: shared.paramName,
        detail: "The source shares memory with the destination, so what changed cannot be told from what was written.",
        remedy: "Carry the plan out with executeReshardPlan."
      })
    }
    const digests = new Map<TransferOp, string>()
    for (const op of verify ? sendOps : []) {
      digests.set(op, yield* moves.digest(op, regions.get(op)!.view))
    }
    return { views, regions, digests }
  })

  const run = Effect.fnUntraced(function* ({ ops, finish }: ChangeExchange) {
    const service = yield* CopyService
    yield* service.submitAll(ops)
    const report = yield* service.run({ together: true })
    const written = yield* Effect.result(Effect.all(finish, { discard: true }))
    return { report, written }
  })

  const body = Effect.fnUntraced(function* (
    step: DeltaStep,
    source: TensorDict | undefined,
    destination: TensorDict | undefined
  ): Effect.fn.Return<DeltaReport, DeltaFailure, CopyService | ProcessGroup | TensorEngine | Scope.Scope> {
    const group = yield* ProcessGroup
    const moves = makeChangeMoves(rank, yield* TensorEngine)
    const { version } = step
    const fault = checkTensors(plan, rank, source, destination)
    const own = step.holds === undefined ? (holds ?? null) : step.holds
    const [wasBase, statement] = [base, { version, holds: own, base: base ?? null }]
    // Until all of it is over, nobody knows what is where.
    holds = undefined
    base = undefined
    const stated = yield* Effect.mapError(
      exchangeResults(
        group,
        "delta versions",
        Versions,
        fault === undefined ? Result.succeed(statement) : Result.fail(fault)
      ),
      exchangeFailed
    )
    const other = stated.findIndex((one) => one.version !== version)
    if (other >= 0) {
      return yield* reshardError("InvalidPlan", {
        rank,
        detail: `Rank ${other} updates to version ${stated[other]!.version}, this one to ${version}.`,
        remedy: "Call update for the same version on all ranks."
      })
    }
    const isKnown = ({ peerRank }: TransferOp) => wasBase !== undefined && stated[peerRank]?.holds === wasBase
    const prepared = yield* Effect.result(prepare(moves, source, destination, isKnown))
    const listed = Result.map(prepared, ({ digests, regions }) =>
      sendOps.flatMap((op) => {
        const { changes } = regions.get(op)!
        const digest = digests.get(op) ?? null
        if (changes === undefined)
          return digest === null ? [] : [[op.peerRank, op.taskId, wholeRegion, digest] as const]
        return [[op.peerRank, op.taskId, changes.positions.shape[0]!, digest] as const]
      })
    )
    const counts = yield* Effect.mapError(exchangeResults(group, "delta counts", Counts, listed), exchangeFailed)
    const { regions, views } = yield* Effect.fromResult(prepared)
    const arriving = new Map(
      counts.flatMap((list, sender) =>
        list.flatMap(([receiver, task, count, digest]) =>
          receiver === rank ? [[keyOf(sender, task), { count, digest }] as const] : []
        )
      )
    )
    const exchange = yield* Effect.result(
      moves.assemble(lowered, regions, views, (op) => arriving.get(keyOf(op.peerRank, op.taskId))?.count ?? wholeRegion)
    )
    if (Result.isFailure(exchange)) {
      // The others are about to run, and learn of it there.
      yield* Effect.ignore((yield* CopyService).run({ refuse: refusalOf(rank, exchange.failure) }))
      return yield* exchange.failure
    }
    const { report, written } = yield* run(exchange.success)
    /** Regions that do not hold what their sender has. */
    const differing = Result.isFailure(written)
      ? Result.fail(written.failure)
      : yield* Effect.result(
          Effect.filter(recvOps, (op) => {
            const digest = arriving.get(keyOf(op.peerRank, op.taskId))?.digest ?? null
            if (digest === null || views.get(op)!.dtype !== op.wireDtype) return Effect.succeed(false)
            return Effect.map(moves.digest(op, views.get(op)!), (found) => found !== digest)
          })
        )
    const wrong = yield* Effect.mapError(
      exchangeResults(
        group,
        "delta written",
        Written,
        Result.map(differing, (ops) => ops.map(({ peerRank, taskId }) => [peerRank, taskId] as const))
      ),
      exchangeFailed
    )
    const repaired = wrong.flat().length
    if (repaired > 0) yield* repair(moves, wrong, regions, views)
    yield* scanner.advance(regions.values())
    holds = version
    base = version
    if (destination !== undefined) yield* Effect.all(destination.refreshCaches, { discard: true })
    const sizes = sendOps.map((op) => regions.get(op)!.changes?.positions.shape[0])
    return {
      version,
      whole: sizes.filter((size) => size === undefined).length,
      listed: sizes.filter((size) => size !== undefined && size > 0).length,
      unchanged: sizes.filter((size) => size === 0).length,
      changedElements: sizes.reduce((sum: number, size) => sum + (size ?? 0), 0),
      repaired,
      baselineBytes: scanner.bytes(),
      copy: report
    }
  })

  /** Sends whole what receivers found to differ; `wrong` is by receiver. */
  const repair = Effect.fnUntraced(function* (
    moves: ChangeMoves,
    wrong: ReadonlyArray<ReadonlyArray<readonly [sender: number, task: number]>>,
    regions: ReadonlyMap<TransferOp, ScannedRegion>,
    views: ReadonlyMap<TransferOp, Tensor>
  ) {
    const again: ChangeExchange = { ops: [], finish: [] }
    const isWrong = (receiver: number, sender: number, task: number) =>
      wrong[receiver]!.some(([from, of]) => from === sender && of === task)
    for (const op of sendOps)
      if (isWrong(op.peerRank, rank, op.taskId)) yield* moves.whole(again, op, regions.get(op)!.view)
    for (const op of recvOps) if (isWrong(rank, op.peerRank, op.taskId)) yield* moves.whole(again, op, views.get(op)!)
    const { written } = yield* run(again)
    const group = yield* ProcessGroup
    const outcome = Result.map(written, () => [])
    yield* Effect.mapError(exchangeResults(group, "delta repaired", Written, outcome), exchangeFailed)
  })

  return {
    plan,
    holds: () => holds,
    assume: (version, source) =>
      Effect.scoped(
        Effect.gen(function* () {
          const regions = yield* scanner.scan(sendOps, source, () => false)
          yield* scanner.advance(regions.values())
          holds = version
          base = version
        })
      ),
    update: (step, source, destination) => Effect.scoped(body(step, source, destination))
  }
})
