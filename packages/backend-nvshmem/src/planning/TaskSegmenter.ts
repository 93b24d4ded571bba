// SPDX-License-Identifier: Apache-2.0
/**
 * Cuts what is longer than a slot into segments that fit.
 *
 * Invariants: segments cover their task exactly once and in order, none is longer than the limit, and both ends cut alike,
 * since only sizes and the limit count.
 */

import { bitsOf, byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, fullRegion, type Region, regionShape, type Shape } from "@tensorferry/core/base/Region"
import { cutShape } from "@tensorferry/gpu/stagingBoxes"
import * as Result from "effect/Result"

/** A region of a tensor that fits a slot. */
export interface TensorSegment {
  readonly region: Region
  readonly byteLength: number
}

/** Segments of a tensor in row-major order. The limit is at least one element. */
export const segmentTensor = (shape: Shape, dtype: DType, limit: number): ReadonlyArray<TensorSegment> => {
  const byteLength = byteLengthOf(dtype, elementCount(shape))
  if (byteLength === 0) return []
  if (byteLength <= limit) return [{ region: fullRegion(shape), byteLength }]
  return cutShape(shape, bitsOf(dtype), limit).map((region) => ({
    region,
    byteLength: byteLengthOf(dtype, elementCount(regionShape(region)))
  }))
}

/** A run of bytes under a task id: what the compatibility planner works with. */
export interface ByteTask {
  readonly taskId: number
  readonly position: number
  readonly byteLength: number
}

/** A task that the numbering of segments has no room for. */
export interface SegmentationLimit {
  readonly taskId: number
  readonly detail: string
}

/** Ids of segments begin here, so that they meet no id of a task. */
const segmentIdBase = 1_000_000_000
const segmentsPerTask = 1000
const segmentedTaskIds = 1_000_000

/** The numbering of the compatibility planner: segment `index` of a task is 10^9 + 1000 * task id + index. */
export const segmentByteTasks = <Task extends ByteTask>(
  tasks: ReadonlyArray<Task>,
  limit: number
): Result.Result<ReadonlyArray<Task>, SegmentationLimit> => {
  const segments: Array<Task> = []
  for (const task of tasks) {
    const { taskId, position, byteLength } = task
    if (byteLength <= limit) {
      segments.push(task)
      continue
    }
    const count = Math.ceil(byteLength / limit)
    if (count > segmentsPerTask || taskId >= segmentedTaskIds) {
      return Result.fail({
        taskId,
        detail:
          taskId >= segmentedTaskIds
            ? `Task ${taskId} needs segments, whose ids end at those of task ${segmentedTaskIds - 1}.`
            : `Task ${taskId} needs ${count} segments of ${limit} bytes; ${segmentsPerTask} have ids.`
      })
    }
    for (let index = 0; index < count; index++) {
      const begin = index * limit
      segments.push({
        ...task,
        taskId: segmentIdBase + taskId * segmentsPerTask + index,
        position: position + begin,
        byteLength: Math.min(limit, byteLength - begin)
      })
    }
  }
  return Result.succeed(segments)
}
