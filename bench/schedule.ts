// SPDX-License-Identifier: Apache-2.0
/**
 * Scheduling at scale, on one core: in which iteration every batch of a cluster travels, and what one PE makes of it.
 */
import { type ScheduledBatch, scheduleBatches } from "@tensorferry/backend-nvshmem/planning/CommunicationScheduler"
import { executionPlan } from "@tensorferry/backend-nvshmem/planning/ExecutionPlan"
import { median } from "@tensorferry/core/base/Numbers"
import { type BenchResult, sample } from "./measure.ts"

/** Every PE sends as many batches, to the PEs after it in turn; lengths differ. */
const even = (peCount: number, count: number): ReadonlyArray<ScheduledBatch> =>
  Array.from({ length: count }, (_, at) => {
    const [source, turn] = [at % peCount, Math.floor(at / peCount)]
    return {
      source,
      destination: (source + 1 + (turn % (peCount - 1))) % peCount,
      index: Math.floor(turn / (peCount - 1)),
      byteLength: 1 + ((at * 7919) % 1_000_003)
    }
  })

/** Batches between PEs drawn at random, from a fixed seed. */
const random = (peCount: number, count: number): ReadonlyArray<ScheduledBatch> => {
  let state = 12345
  const below = (bound: number): number => {
    state = (Math.imul(state, 1_103_515_245) + 12345) >>> 0
    return (state >>> 8) % bound
  }
  return Array.from({ length: count }, (_, index) => {
    const source = below(peCount)
    return { source, destination: (source + 1 + below(peCount - 1)) % peCount, index, byteLength: 1 + below(1_000_000) }
  })
}

export const schedule = (): ReadonlyArray<BenchResult> =>
  [
    { name: "even", make: even, peCount: 1024, count: 10_000 },
    { name: "even", make: even, peCount: 1024, count: 100_000, target: 1 },
    { name: "random", make: random, peCount: 1024, count: 100_000, target: 1 },
    { name: "random", make: random, peCount: 1024, count: 400_000 },
    { name: "one pair", make: even, peCount: 2, count: 100_000, target: 1 }
  ].map(({ name, make, peCount, count, target }) => {
    const batches = make(peCount, count)
    const seconds = median(
      sample(5, () => {
        executionPlan(0, batches, scheduleBatches(batches), { send: 2, receive: 4 })
      })
    )
    const { iterations, imbalance } = scheduleBatches(batches)
    return {
      case: `schedule of ${peCount} PEs, ${count} batches, ${name}: ${iterations} iterations, imbalance ${imbalance.toFixed(3)}`,
      unit: "s",
      ours: seconds,
      lowerIsBetter: true,
      ...(target === undefined ? {} : { target })
    }
  })
