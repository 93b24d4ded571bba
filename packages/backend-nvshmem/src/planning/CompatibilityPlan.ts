// SPDX-License-Identifier: Apache-2.0
/**
 * The planning of Megatron-LM's NVSHMEM copy service, step by step: segments, batches by destination, gather order, first
 * fit. For comparing plans; transfers use the default scheduler.
 *
 * Invariant: the same requests give the same segments, batches and iterations as there.
 */
import * as Result from "effect/Result"
import { type Schedule, type ScheduledBatch, scheduleFirstFit } from "./CommunicationScheduler.ts"
import { type ByteTask, type SegmentationLimit, segmentByteTasks } from "./TaskSegmenter.ts"
import { type Batch, packWorkload } from "./WorkloadPacker.ts"

/** A request of one PE. `peer` receives what is sent, or sends what is received. */
export interface Request extends ByteTask {
  readonly peer: number
}

/** Most bytes of a segment, which are those of a batch too, and most tasks of a batch. */
export interface CompatibilityLimits {
  readonly segmentBytes: number
  readonly batchTasks: number
}

/** By PE. */
export interface Requests {
  readonly sends: ReadonlyArray<ReadonlyArray<Request>>
  readonly receives: ReadonlyArray<ReadonlyArray<Request>>
}

/** What ranks exchange of programs whose messages were not prepared together: requests of every rank, by peer. */
export interface CompatibilityPlan extends Requests {
  /** By sending PE and destination, itself included: what stays is packed but not scheduled. */
  readonly workloads: ReadonlyArray<ReadonlyArray<ReadonlyArray<Batch<Request>>>>
  /** All batches between different PEs, in gather order. */
  readonly batches: ReadonlyArray<ScheduledBatch>
  readonly schedule: Schedule
}

/** The plan of one rank from the messages of all; fails where both ends of a message do not agree. */
export const compatibilityPlan = (
  requests: Requests,
  { segmentBytes, batchTasks }: CompatibilityLimits
): Result.Result<CompatibilityPlan, SegmentationLimit> => {
  const segmented = (lists: Requests["sends"]) => {
    const all: Array<ReadonlyArray<Request>> = []
    for (const list of lists) {
      const segments = segmentByteTasks(list, segmentBytes)
      if (Result.isFailure(segments)) return Result.fail(segments.failure)
      all.push(segments.success)
    }
    return Result.succeed(all)
  }
  const sends = segmented(requests.sends)
  if (Result.isFailure(sends)) return Result.fail(sends.failure)
  const receives = segmented(requests.receives)
  if (Result.isFailure(receives)) return Result.fail(receives.failure)
  const limits = { batchBytes: segmentBytes, batchItems: batchTasks, alignment: 1 }
  const workloads = sends.success.map((list, _, { length }) =>
    Array.from({ length }, (__, peer) =>
      packWorkload(
        list.filter((request) => request.peer === peer),
        limits
      )
    )
  )
  const batches = workloads.flatMap((destinations, source) =>
    destinations.flatMap((packed, destination) =>
      destination === source
        ? []
        : packed.map(({ byteLength }, index): ScheduledBatch => ({ source, destination, index, byteLength }))
    )
  )
  return Result.succeed({
    sends: sends.success,
    receives: receives.success,
    workloads,
    batches,
    schedule: scheduleFirstFit(batches)
  })
}
