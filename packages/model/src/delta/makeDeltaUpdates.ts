// SPDX-License-Identifier: Apache-2.0
/**
 * Updates by one plan that send only what changed: each source shard is searched where it lies, and its changes are written
 * where the plan says. A transfer names the same region at both ends, so a position in the region is a position in the
 * destination, however that is cut, joined or cast. Under a transform the parts that it sends are compared, as codes and scales.
 *
 * Collective, like the plan. A receiver states to those that send to it which version it holds, and by which changes it came
 * there; where that is not what the sender's copies are of, it gets all of its regions whole, once. Where more changed than is
 * worth listing, a region is sent whole too. Then senders state how much changed, with checksums; the copy service moves it, and
 * ranks agree that all of it was written. What arrived otherwise than stated is not written, and comes again, whole.
 *
 * Invariant: after a success every destination holds what a whole update would have written, bit by bit. After a failure
 * nobody relies on what its destination or its copies hold, so the next update is a whole one.
 */

import { digestOf } from "@tensorferry/core/base/Digest"
import { type AnyPlan, opsOf } from "@tensorferry/core/planner/MeshOps"
import type { DeltaFailure, DeltaReport, DeltaStep, DeltaUpdates } from "@tensorferry/core/refit/DeltaUpdates"
import { refusalOf } from "@tensorferry/core/reshard/PlanRuns"
import { checkTensors } from "@tensorferry/core/reshard/PlanTensors"
import { ReshardError, reshardError } from "@tensorferry/core/reshard/ReshardError"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { TensorDict } from "@tensorferry/core/tensor/TensorDict"
import type { ReshardTransform } from "@tensorferry/core/transform/ReshardTransform"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { type BaselinePlace, makeBaselines } from "./Baselines.ts"
import type { Proofs } from "./ChangeFence.ts"
import { makeChangeMoves, rowWords } from "./ChangeMoves.ts"
import { type ChangePosts, makeChangePosts } from "./ChangePosts.ts"
import { type HeldBefore, makeChangeCompletion, makeChangePreparation, type PreparedChanges } from "./ChangeRounds.ts"
import { makeChangeScan } from "./ChangeScan.ts"
import { makeListMemory } from "./ListMemory.ts"

/** How updates of changes are made. The same on all ranks, but for where copies are. */
export interface DeltaOptions {
  /** Bytes for copies of what was sent, at most; what finds no room there is sent whole. */
  readonly baselineBytes: number
  /**
   * Where copies are: `source`, with what they are copies of, by default; or `host`, in memory of the host, from where each
   * comes back to its device for as long as it is compared.
   */
  readonly baselines?: BaselinePlace
  /** What becomes of chosen tensors on their way. Its parts are compared: codes and scales, where the sender quantizes. */
  readonly transform?: ReshardTransform
  /** Whether every list of changes has a checksum; true by default. It is found where the lists lie. */
  readonly checksums?: boolean
  /**
   * Compares checksums of every region after each update, and sends those whole that differ: for destinations that others may
   * have written to. Takes as long as reading all weights where they lie, at both ends.
   */
  readonly verify?: boolean
}

/** Of a statement without its rows. */
const mostHeadBytes = 2 ** 16
/** The most parts of a transfer, for how long a statement may be. */
const mostParts = 8

const noProofs: Proofs = new Map()

/** What a rank did with its regions. */
const countsOf = ({ scanned }: PreparedChanges) => {
  const regions = [...scanned.values()].map((parts) => {
    const counts = parts.flatMap(({ sent }) => (sent === undefined ? [] : [sent.positions.shape[0]!]))
    const changed = counts.reduce((sum, count) => sum + count, 0)
    return { isWhole: counts.length === 0, isUnchanged: counts.length === parts.length && changed === 0, changed }
  })
  const whole = regions.filter(({ isWhole }) => isWhole).length
  const unchanged = regions.filter(({ isUnchanged }) => isUnchanged).length
  const changedElements = regions.reduce((sum, { changed }) => sum + changed, 0)
  return { whole, unchanged, listed: regions.length - whole - unchanged, changedElements }
}

/** Updates by a plan without reductions. Copies of what was sent live in the scope. */
export const makeDeltaUpdates = Effect.fn("makeDeltaUpdates")(function* (
  plan: AnyPlan,
  options: DeltaOptions
): Effect.fn.Return<DeltaUpdates, ReshardError, TensorEngine | Scope.Scope> {
  const lowered = opsOf(plan)
  const { rank, sendOps, recvOps, rosterDigest } = lowered
  if ((lowered.reductions ?? []).length > 0) {
    return yield* reshardError("InvalidPlan", {
      rank,
      detail: "The plan reduces contributions, which have no elements that changed.",
      remedy: "Carry it out with executeReshardPlan."
    })
  }
  const owner = yield* Effect.scope
  const own = yield* TensorEngine
  const { begin: beginLending, engine } = yield* makeListMemory(own)
  const { checksums = true, transform, verify = false } = options
  const baselines = yield* makeBaselines(rank, own, options)
  const scanner = makeChangeScan(lowered, engine, baselines, transform)
  const moves = makeChangeMoves(rank, engine, { checksums, verify })
  const work = { plan: lowered, engine, scanner, moves, transform }
  const [rounds, { complete }] = [makeChangePreparation(work), makeChangeCompletion(work)]
  const peers = [...new Set([...rounds.receivers, ...rounds.senders])].filter((peer) => peer !== rank)
  let [holds, base]: [string | undefined, string | undefined] = [undefined, undefined]
  let [sentProofs, heldProofs] = [noProofs, noProofs]
  let listening: { readonly group: ProcessGroupShape; readonly posts: ChangePosts } | undefined

  const postsOf = Effect.fnUntraced(function* (group: ProcessGroupShape) {
    if (listening?.group === group) return listening.posts
    const most = mostHeadBytes + 4 * rowWords * mostParts * Math.max(sendOps.length, recvOps.length)
    const posts = yield* Scope.provide(makeChangePosts(group, most), owner)
    listening = { group, posts }
    return posts
  })

  /** What this rank goes by; until an update is over, nobody knows what is where. */
  const takeBefore = (stated: string | null | undefined): HeldBefore => {
    const own = stated === undefined ? (holds ?? null) : stated
    // What a caller claims has no history.
    const before = { holds: own, base, sentProofs, heldProofs: own === (holds ?? null) ? heldProofs : noProofs }
    holds = undefined
    base = undefined
    sentProofs = noProofs
    heldProofs = noProofs
    return before
  }

  const become = (version: string, proofs: Pick<PreparedChanges, "heldProofs" | "sentProofs">) => {
    holds = version
    base = version
    sentProofs = proofs.sentProofs
    heldProofs = proofs.heldProofs
  }

  const body = Effect.fnUntraced(function* (
    step: DeltaStep,
    source: TensorDict | undefined,
    destination: TensorDict | undefined
  ): Effect.fn.Return<DeltaReport, DeltaFailure, CopyService | ProcessGroup | Scope.Scope> {
    const [group, service] = [yield* ProcessGroup, yield* CopyService]
    const { version } = step
    yield* beginLending
    const posts = yield* postsOf(group)
    yield* posts.begin
    const statement = { digest: digestOf(["delta", rosterDigest, version]), runs: 1 }
    const before = takeBefore(step.holds)
    /** The others are about to run, and learn of it there. */
    const giveUp = Effect.fnUntraced(function* (error: ReshardError) {
      yield* posts.fail(peers, error)
      yield* Effect.ignore(service.run({ refuse: refusalOf(rank, error), plan: statement }))
      if (error.reason.scope !== "peer") return yield* error
      // A group that somebody left fails at once, and knows who was the first.
      const known = yield* Effect.result(group.barrier("delta rank gone"))
      return yield* Result.isSuccess(known)
        ? error
        : new ReshardError({ reason: { ...error.reason, detail: known.failure.message } })
    })
    const interrupted = reshardError("ExchangeFailed", {
      rank,
      isRetryable: true,
      detail: `Rank ${rank} was interrupted before its changes moved.`,
      remedy: "See the output of that rank for the reason, then update again."
    })
    const request = { version, lost: new Set(step.lost), source, destination }
    const fault = checkTensors(plan, rank, source, destination)
    const preparing = fault === undefined ? rounds.prepare(posts, request, before) : Effect.fail(fault)
    const prepared = yield* group.keepAlive(preparing).pipe(
      Effect.catch(giveUp),
      Effect.onInterrupt(() => Effect.ignore(giveUp(interrupted)))
    )
    yield* service.submitAll(prepared.ops)
    // Copies become what is sent while that travels: should it fail, nobody relies on them.
    const advancing = yield* Effect.forkScoped(scanner.advance([...prepared.scanned.values()].flat()), {
      startImmediately: true
    })
    const copy = yield* service.run({ together: true, plan: statement })
    const repaired = yield* complete(prepared)
    yield* Fiber.join(advancing)
    become(version, prepared)
    if (destination !== undefined) yield* Effect.all(destination.refreshCaches, { discard: true })
    return { version, ...countsOf(prepared), repaired, baselineBytes: baselines.bytes(), copy }
  })

  return {
    plan,
    holds: () => holds,
    assume: (version, source) =>
      Effect.scoped(
        Effect.gen(function* () {
          const scanned = yield* scanner.scan(sendOps, source, () => "whole")
          yield* scanner.advance([...scanned.values()].flat())
          become(version, { sentProofs: noProofs, heldProofs: noProofs })
        })
      ),
    update: (step, source, destination) => Effect.scoped(body(step, source, destination))
  }
})
