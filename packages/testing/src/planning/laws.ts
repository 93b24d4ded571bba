// SPDX-License-Identifier: Apache-2.0
/**
 * What must hold for any planner's plans, each law as a function that lists its violations; an empty list means that it
 * holds. Laws count elements one by one and share no code with `PlanCheck`, so the two check each other.
 */

import { byteLengthOf } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount, type Region, regionShape, type Shape } from "@tensorferry/core/base/Region"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { ParameterMetadata } from "@tensorferry/core/layout/ParameterMetadata"
import { type Roster, rosterDigest, rosterFromParameters } from "@tensorferry/core/layout/Roster"
import { estimatePlans } from "@tensorferry/core/planner/Estimate"
import { buildReshardPlan } from "@tensorferry/core/planner/RosterPlanner"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/** Each violation of a law in one line; none where the law holds. */
export type Violations = ReadonlyArray<string>

/** A law does not hold; the message names the first violations. */
export class LawViolated extends Schema.TaggedError<LawViolated>()("LawViolated", {
  /** One line each. */
  violations: Schema.Array(Schema.String)
}) {
  override get message(): string {
    const [shown, left] = [this.violations.slice(0, mostShown), this.violations.length - mostShown]
    return [...shown, ...(left > 0 ? [`and ${left} more`] : [])].join("; ")
  }
}

/** Violations that a message names. */
const mostShown = 5

/**
 * A property for `Arbitrary.checkEffect`: it holds where none of the laws lists a violation, and fails with them otherwise, so
 * that `Arbitrary.formatCheckFailure` names them beside the smallest input.
 */
export const holds = (...all: ReadonlyArray<Violations>): Effect.Effect<true, LawViolated> => {
  const violations = all.flat()
  return violations.length === 0 ? Effect.succeed(true) : Effect.fail(new LawViolated({ violations }))
}

const visit = (shape: Shape, region: Region, each: (at: number) => void): void => {
  const walkDim = (dim: number, base: number): void => {
    if (dim === shape.length) {
      each(base)
      return
    }
    const [start, stop] = region[dim]!
    for (let index = start; index < stop; index++) walkDim(dim + 1, base * shape[dim]! + index)
  }
  walkDim(0, 0)
}

/** Every element of every destination tensor is written exactly once, and nothing outside. */
export const coverageLaw = (plans: ReadonlyArray<ReshardPlan>): Violations =>
  plans.flatMap((plan) =>
    plan.destinationTensors.flatMap((tensor) => {
      const written = new Uint8Array(elementCount(tensor.shape))
      const faults: Array<string> = []
      for (const op of plan.recvOps) {
        if (op.paramName !== tensor.name) continue
        const isInside = op.mySlice.every(
          ([start, stop], dim) => start >= 0 && start < stop && stop <= tensor.shape[dim]!
        )
        if (!isInside || op.mySlice.length !== tensor.shape.length) {
          faults.push(`rank ${plan.rank}, ${tensor.name}: task ${op.taskId} leaves the tensor`)
          continue
        }
        visit(tensor.shape, op.mySlice, (at) => {
          written[at]! += 1
        })
      }
      const at = written.findIndex((count) => count !== 1)
      if (at >= 0) faults.push(`rank ${plan.rank}, ${tensor.name}: element ${at} is written ${written[at]} times`)
      return faults
    })
  )

/** Every task id names one send and one receive, which state the same regions from both sides. */
export const pairingLaw = (plans: ReadonlyArray<ReshardPlan>): Violations => {
  const faults: Array<string> = []
  const sends = new Map<number, string>()
  const recvs = new Map<number, string>()
  for (const plan of plans) {
    for (const op of plan.sendOps) {
      if (sends.has(op.taskId)) faults.push(`task ${op.taskId} is sent twice`)
      sends.set(op.taskId, JSON.stringify([plan.rank, op.peerRank, op.mySlice, op.peerSlice, op.wireDtype]))
    }
    for (const op of plan.recvOps) {
      if (recvs.has(op.taskId)) faults.push(`task ${op.taskId} is received twice`)
      recvs.set(op.taskId, JSON.stringify([op.peerRank, plan.rank, op.peerSlice, op.mySlice, op.wireDtype]))
    }
  }
  for (const taskId of new Set([...sends.keys(), ...recvs.keys()])) {
    if (sends.get(taskId) !== recvs.get(taskId)) {
      faults.push(
        `task ${taskId}: sent as ${sends.get(taskId) ?? "nothing"}, received as ${recvs.get(taskId) ?? "nothing"}`
      )
    }
  }
  const count = plans[0]?.taskCount ?? 0
  if (recvs.size !== count) faults.push(`${recvs.size} tasks of ${count}`)
  for (let taskId = 0; taskId < count; taskId++) if (!recvs.has(taskId)) faults.push(`task ${taskId} does not exist`)
  return faults
}

const ranksOf = (...rosters: ReadonlyArray<Roster>): ReadonlyArray<Rank> =>
  [...new Set(rosters.flatMap((roster) => roster.members.map(({ rank }) => rank)))].sort((a, b) => a - b)

const planOf = (source: Roster, destination: Roster, rank: Rank): string =>
  Result.match(buildReshardPlan(source, destination, rank), {
    onFailure: (error) => `refused: ${error.message}`,
    onSuccess: (plan) => JSON.stringify(plan)
  })

/** Receives of a rank with their ids, without what names the whole job. */
const receives = (source: Roster, destination: Roster, rank: Rank): string =>
  Result.match(buildReshardPlan(source, destination, rank), {
    onFailure: (error) => `refused: ${error.message}`,
    onSuccess: (plan) => JSON.stringify(plan.recvOps)
  })

/** Destination ranks appended behind the others leave the ids and regions of those as they are. */
export const appendLaw = (source: Roster, destination: Roster, extended: Roster): Violations =>
  ranksOf(destination).flatMap((rank) =>
    receives(source, destination, rank) === receives(source, extended, rank)
      ? []
      : [`rank ${rank} receives otherwise after ranks were appended`]
  )

/** What ranks say decides, not the order in which it came together. `order` gives positions of a permutation. */
export const assemblyLaw = (
  source: ReadonlyArray<readonly [Rank, ReadonlyArray<ParameterMetadata>]>,
  destination: ReadonlyArray<readonly [Rank, ReadonlyArray<ParameterMetadata>]>,
  shuffle: <A>(values: ReadonlyArray<A>) => ReadonlyArray<A>
): Violations => {
  const [a, b] = [rosterFromParameters(source), rosterFromParameters(destination)]
  const [shuffledA, shuffledB] = [rosterFromParameters(shuffle(source)), rosterFromParameters(shuffle(destination))]
  const faults: Array<string> = []
  if (rosterDigest(a, b) !== rosterDigest(shuffledA, shuffledB)) faults.push("the digest depends on the order of ranks")
  for (const rank of ranksOf(a, b)) {
    if (planOf(a, b, rank) !== planOf(shuffledA, shuffledB, rank)) {
      faults.push(`the plan of rank ${rank} depends on the order of ranks`)
    }
  }
  return faults
}

/** Estimates add up: traffic to operations, ranks to traffic, totals to both. */
export const estimateLaw = (plans: ReadonlyArray<ReshardPlan>): Violations => {
  const estimate = estimatePlans(plans)
  const faults: Array<string> = []
  const same = (what: string, actual: number, expected: number): void => {
    if (actual !== expected) faults.push(`${what} is ${actual} instead of ${expected}`)
  }
  let [total, remote, ops] = [0, 0, 0]
  for (const plan of plans) {
    const own = estimate.ranks.find(({ rank }) => rank === plan.rank)
    if (own === undefined) {
      faults.push(`rank ${plan.rank} is left out`)
      continue
    }
    let [received, local, sent] = [0, 0, 0]
    for (const op of plan.recvOps) {
      const bytes = byteLengthOf(op.wireDtype, elementCount(regionShape(op.mySlice)))
      if (op.peerRank === plan.rank) local += bytes
      else received += bytes
      ops += 1
    }
    for (const op of plan.sendOps) {
      if (op.peerRank !== plan.rank) sent += byteLengthOf(op.wireDtype, elementCount(regionShape(op.mySlice)))
    }
    total += received + local
    remote += received
    same(`received bytes of rank ${plan.rank}`, own.receivedBytes, received)
    same(`sent bytes of rank ${plan.rank}`, own.sentBytes, sent)
    same(`local bytes of rank ${plan.rank}`, own.localBytes, local)
  }
  same("total bytes", estimate.totalBytes, total)
  same("remote bytes", estimate.remoteBytes, remote)
  same("operations", estimate.ops, ops)
  same(
    "traffic",
    estimate.traffic.reduce((sum, { bytes }) => sum + bytes, 0),
    total
  )
  if (!Number.isFinite(estimate.seconds) || estimate.seconds < 0) faults.push(`${estimate.seconds} seconds`)
  return faults
}

/** A destination element is fetched once, so the bytes that move are those of the destination in the wire's types. */
export const payloadLaw = (plans: ReadonlyArray<ReshardPlan>): Violations => {
  const moved = estimatePlans(plans).totalBytes
  const wanted = plans.reduce((sum, plan) => {
    const wire = new Map(plan.recvOps.map((op) => [op.paramName, op.wireDtype]))
    return plan.destinationTensors.reduce(
      (bytes, tensor) => bytes + byteLengthOf(wire.get(tensor.name) ?? tensor.dtype, elementCount(tensor.shape)),
      sum
    )
  }, 0)
  return moved === wanted ? [] : [`${moved} bytes move for ${wanted} bytes of destinations`]
}
