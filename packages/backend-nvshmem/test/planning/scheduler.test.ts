// SPDX-License-Identifier: Apache-2.0
/**
 * Laws of the default scheduler and of what each PE makes of a schedule.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Schema from "effect/Schema"
import { type ScheduledBatch, scheduleBatches, scheduleFirstFit } from "../../src/planning/CommunicationScheduler.ts"
import { type ExecutionPlan, executionPlan } from "../../src/planning/ExecutionPlan.ts"
import { randomBatches, shuffled } from "./random.ts"

const between = (minimum: number, maximum: number) => Schema.Int.check(Schema.isBetween({ minimum, maximum }))
const Input = { seed: between(1, 1e6), peCount: between(1, 24), count: between(0, 160), skew: Schema.Boolean }
const runs = { arbitrary: { runs: 300, seed: "schedules" } }

const degree = (batches: ReadonlyArray<ScheduledBatch>, end: "source" | "destination"): number => {
  const counts = new Map<number, number>()
  for (const batch of batches) counts.set(batch[end], (counts.get(batch[end]) ?? 0) + 1)
  return Math.max(0, ...counts.values())
}

describe("the default scheduler", () => {
  it.prop(
    "one send and one receive per PE and iteration, in as few iterations as possible",
    Input,
    (input) => {
      const batches = randomBatches(input.seed, input.peCount, input.count, input.skew)
      const { iterations, iterationOf, imbalance } = scheduleBatches(batches)
      assert.strictEqual(iterations, Math.max(degree(batches, "source"), degree(batches, "destination")))
      assert.strictEqual(iterationOf.length, batches.length)
      const seen = new Set<string>()
      for (const [at, { source, destination }] of batches.entries()) {
        const iteration = iterationOf[at]!
        assert.isTrue(iteration >= 0 && iteration < iterations)
        for (const key of [`${source} sends ${iteration}`, `${destination} receives ${iteration}`]) {
          assert.isFalse(seen.has(key), key)
          seen.add(key)
        }
      }
      assert.isAtLeast(imbalance, 1)
    },
    runs
  )

  it.prop(
    "the order of the list does not count",
    Input,
    (input) => {
      const batches = randomBatches(input.seed, input.peCount, input.count, input.skew)
      const known = scheduleBatches(batches)
      const other = shuffled(input.seed + 7, batches)
      const schedule = scheduleBatches(other)
      for (const [at, batch] of batches.entries()) {
        assert.strictEqual(schedule.iterationOf[other.indexOf(batch)], known.iterationOf[at])
      }
    },
    runs
  )

  it("batches of like length meet", () => {
    const batches = [0, 1, 2, 3].flatMap((source) =>
      [900, 90, 9].map((byteLength, index) => ({ source, destination: (source + 1) % 4, index, byteLength }))
    )
    assert.strictEqual(scheduleBatches(batches).imbalance, 1)
    assert.isAbove(scheduleFirstFit(shuffled(3, batches)).imbalance, 1)
  })

  it("never needs more iterations than first fit, which is half duplex", () => {
    for (let seed = 1; seed <= 100; seed++) {
      const batches = randomBatches(seed, 2 + (seed % 9), 60)
      assert.isAtMost(scheduleBatches(batches).iterations, scheduleFirstFit(batches).iterations)
    }
  })

  it("the busiest PE decides, however many batches it has", () => {
    const batches = randomBatches(5, 400, 20_000, true)
    const { iterations } = scheduleBatches(batches)
    assert.strictEqual(iterations, Math.max(degree(batches, "source"), degree(batches, "destination")))
  })
})

/** Lets all PEs carry out their plans, one step of any PE at a time; gives the batches in the order of arrival. */
const carryOut = (seed: number, plans: ReadonlyArray<ExecutionPlan>, receiveSlots: number): ReadonlyArray<number> => {
  const order = shuffled(seed, [...plans.keys()])
  const leaves = new Set<string>()
  const occupied = new Map<string, number>()
  const [sent, received] = [plans.map(() => 0), plans.map(() => 0)]
  const arrived: Array<number> = []
  const leaveKey = (from: number, to: number, iteration: number) => `${from} to ${to} in ${iteration}`
  for (const [pe, plan] of plans.entries()) {
    for (const { peer, iteration } of plan.leaves) leaves.add(leaveKey(pe, peer, iteration))
  }
  const send = (pe: number): boolean => {
    const next = plans[pe]!.sends[sent[pe]!]
    if (next === undefined || !leaves.delete(leaveKey(next.peer, pe, next.iteration))) return false
    assert.isBelow(next.receiveSlot, receiveSlots)
    const slot = `${next.peer} ${next.receiveSlot}`
    assert.isFalse(occupied.has(slot), "written while it is in use")
    occupied.set(slot, next.batch)
    sent[pe]! += 1
    return true
  }
  const receive = (pe: number): boolean => {
    const at = received[pe]!
    const next = plans[pe]!.receives[at]
    const slot = next === undefined ? "" : `${pe} ${next.receiveSlot}`
    if (next === undefined || occupied.get(slot) !== next.batch) return false
    occupied.delete(slot)
    arrived.push(next.batch)
    const leave = plans[pe]!.nextLeaves[at]
    if (leave !== undefined) leaves.add(leaveKey(pe, leave.peer, leave.iteration))
    received[pe]! += 1
    return true
  }
  for (let isMoving = true; isMoving; ) {
    isMoving = false
    for (const pe of order) isMoving = send(pe) || receive(pe) || isMoving
  }
  return arrived
}

describe("the plans of all PEs", () => {
  it.prop(
    "move every batch once and stand still only at the end, however few slots there are",
    { ...Input, slots: between(1, 4) },
    ({ seed, peCount, count, skew, slots }) => {
      const batches = randomBatches(seed, peCount, count, skew)
      const schedule = scheduleBatches(batches)
      const plans = Array.from({ length: peCount }, (_, pe) =>
        executionPlan(pe, batches, schedule, { send: 2, receive: slots })
      )
      const arrived = carryOut(seed, plans, slots)
      assert.deepStrictEqual(
        arrived.toSorted((a, b) => a - b),
        [...batches.keys()]
      )
    },
    runs
  )
})
