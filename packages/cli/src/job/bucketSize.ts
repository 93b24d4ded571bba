// SPDX-License-Identifier: Apache-2.0
/**
 * The size of buckets, settled among the ranks of a job before anybody plans: from the memory that the rank with least has
 * left and the slowest link.
 *
 * Invariant: every rank gets the same number, whatever it stated, because the composition of buckets follows from it.
 */

import { exchange } from "@tensorferry/core/group/Exchange"
import { partAlignment } from "@tensorferry/core/planner/Bucketing"
import { hostLinkSpeeds } from "@tensorferry/core/planner/Estimate"
import { bucketsPerWave } from "@tensorferry/core/planner/MeshOps"
import { ProcessGroup, type ProcessGroupError, processGroupError } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"

/** What the size of buckets is chosen by. Bytes, seconds, bytes per second. */
export interface BucketBudget {
  /** Memory that buffers may take, on the rank that has least. */
  readonly freeBytes: number
  /** Buffers alive at once: sending and receiving, each as many as may be in flight. */
  readonly buffers: number
  readonly bytesPerSecond: number
  /** What starting a transfer costs. */
  readonly startSeconds: number
}

/** A transfer as long as this many starts wastes little on starting. */
const startsPerTransfer = 32
const smallestBucket = 64 * 1024
const largestBucket = 256 * 1024 * 1024

/**
 * Bytes of a bucket: long enough that starting it does not count, short enough that the buffers fit into half of the free
 * memory and that filling one overlaps sending another. A multiple of the alignment; the same for the same budget, so
 * ranks that agree on the budget agree on the buckets.
 */
export const bucketBytesFor = (budget: BucketBudget): number => {
  const worthwhile = budget.bytesPerSecond * budget.startSeconds * startsPerTransfer
  const affordable = budget.freeBytes / 2 / Math.max(1, budget.buffers)
  const bytes = Math.min(Math.max(worthwhile, smallestBucket), affordable, largestBucket)
  return Math.max(partAlignment, Math.floor(bytes / partAlignment) * partAlignment)
}

/** What one rank states to `agreeOnBucketBytes`. */
export interface BucketMeans {
  /** Memory of the buffers' device that this rank may fill with buffers. */
  readonly freeBytes: number
  /** One direction of this rank's link to others, in bytes per second. A host's by default. */
  readonly bytesPerSecond?: number
  /** What starting a transfer costs. A millisecond by default: what ranks say to each other in a run over TCP. */
  readonly startSeconds?: number
}

const Means = Schema.Struct({
  freeBytes: Schema.Finite,
  bytesPerSecond: Schema.Finite,
  startSeconds: Schema.Finite
})

/** Waves that hold buffers at once, in each direction. */
const wavesWithBuffers = 2

/**
 * Bytes for `LowerOptions.bucketBytes`. Collective: every rank of the group calls it. A rank exchanges with all others at
 * worst, so each of these channels counts with its buffers.
 */
export const agreeOnBucketBytes = Effect.fn("agreeOnBucketBytes")(function* (
  means: BucketMeans
): Effect.fn.Return<number, ProcessGroupError, ProcessGroup> {
  const group = yield* ProcessGroup
  const mine = {
    freeBytes: means.freeBytes,
    bytesPerSecond: means.bytesPerSecond ?? hostLinkSpeeds.remote,
    startSeconds: means.startSeconds ?? 0.001
  }
  const all = yield* exchange(group, "size of buckets", Means, mine).pipe(
    Effect.catchTag("UnreadableAnswer", ({ rank, detail }) =>
      Effect.fail(
        processGroupError("ProtocolViolation", [rank], {
          rank,
          op: "agreeOnBucketBytes",
          detail,
          remedy: "Run the same version of tensorferry on every rank, and state finite numbers."
        })
      )
    )
  )
  const least = (of: (one: typeof mine) => number) => Math.min(...all.map(of))
  const most = (of: (one: typeof mine) => number) => Math.max(...all.map(of))
  const channels = 2 * Math.max(1, group.size - 1)
  return bucketBytesFor({
    freeBytes: Math.max(
      0,
      least(({ freeBytes }) => freeBytes)
    ),
    buffers: channels * wavesWithBuffers * bucketsPerWave,
    bytesPerSecond: least(({ bytesPerSecond }) => bytesPerSecond),
    startSeconds: most(({ startSeconds }) => startSeconds)
  })
})
