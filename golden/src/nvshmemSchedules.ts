// SPDX-License-Identifier: Apache-2.0
/**
 * Compares the compatibility plan with recorded ones. Only tests and the runner of reference data use it.
 */

import { compatibilityPlan, type Request } from "@tensorferry/backend-nvshmem/planning/CompatibilityPlan"
import * as Result from "effect/Result"

interface RecordedSend {
  readonly task_id: number
  readonly dest_pe: number
  readonly src_pos: number
  readonly size: number
}

interface RecordedReceive {
  readonly task_id: number
  readonly src_pe: number
  readonly dest_pos: number
  readonly size: number
}

type ByPe<A> = Readonly<Record<string, A>>

interface RecordedBatch {
  readonly src_pe: number
  readonly dest_pe: number
  readonly batch_index: number
}

type Expected =
  | { readonly ok: false; readonly error: { readonly kind: string } }
  | {
      readonly ok: true
      readonly segmented_sends: ByPe<ReadonlyArray<RecordedSend>>
      readonly segmented_receives: ByPe<ReadonlyArray<RecordedReceive>>
      readonly workloads: ByPe<
        ByPe<ReadonlyArray<{ readonly total_size: number; readonly task_ids: ReadonlyArray<number> }>>
      >
      readonly gather_order: ReadonlyArray<ReadonlyArray<number>>
      readonly schedule: ReadonlyArray<RecordedBatch & { readonly iteration: number }>
      readonly num_iterations: number
      readonly per_pe: ByPe<ByPe<ReadonlyArray<RecordedBatch>>>
    }

export interface ScheduleCase {
  readonly id: string
  readonly title: string
  readonly num_pes: number
  readonly max_segment_size: number
  readonly max_tasks_per_batch: number
  readonly send_requests: ByPe<ReadonlyArray<RecordedSend>>
  readonly receive_requests: ByPe<ReadonlyArray<RecordedReceive>>
  readonly expected: Expected
}

const sendOf = ({ task_id, dest_pe, src_pos, size }: RecordedSend): Request => ({
  taskId: task_id,
  peer: dest_pe,
  position: src_pos,
  byteLength: size
})

const receiveOf = ({ task_id, src_pe, dest_pos, size }: RecordedReceive): Request => ({
  taskId: task_id,
  peer: src_pe,
  position: dest_pos,
  byteLength: size
})

/** Objects with their keys in order, so that equal data is equal text. */
const canonical = (value: unknown): unknown =>
  Array.isArray(value)
    ? value.map(canonical)
    : typeof value === "object" && value !== null
      ? Object.fromEntries(
          Object.entries(value)
            .sort(([a], [b]) => (a < b ? -1 : 1))
            .map(([key, held]) => [key, canonical(held)])
        )
      : value

/** What differs from the recorded plan; undefined where nothing does. */
export const checkScheduleCase = (recorded: ScheduleCase): string | undefined => {
  const { num_pes: peCount, expected } = recorded
  const pes = Array.from({ length: peCount }, (_, pe) => pe)
  const plan = compatibilityPlan(
    {
      sends: pes.map((pe) => (recorded.send_requests[pe] ?? []).map(sendOf)),
      receives: pes.map((pe) => (recorded.receive_requests[pe] ?? []).map(receiveOf))
    },
    { segmentBytes: recorded.max_segment_size, batchTasks: recorded.max_tasks_per_batch }
  )
  if (Result.isFailure(plan)) {
    return !expected.ok && expected.error.kind === "segmentation_limit" ? undefined : `refused: ${plan.failure.detail}`
  }
  if (!expected.ok) return `should fail with ${expected.error.kind}`
  const { sends, receives, workloads, batches, schedule } = plan.success
  const record = ({ source, destination, index }: (typeof batches)[number]): RecordedBatch => ({
    src_pe: source,
    dest_pe: destination,
    batch_index: index
  })
  const viewOf = (pe: number) => {
    const view: Record<string, Array<RecordedBatch>> = {}
    for (const [at, batch] of batches.entries()) {
      if (batch.source !== pe && batch.destination !== pe) continue
      const iteration = schedule.iterationOf[at]!
      view[iteration] = [...(view[iteration] ?? []), record(batch)]
    }
    return view
  }
  const parts: ReadonlyArray<readonly [string, unknown, unknown]> = [
    ["segmented sends", sends, pes.map((pe) => expected.segmented_sends[pe]!.map(sendOf))],
    ["segmented receives", receives, pes.map((pe) => expected.segmented_receives[pe]!.map(receiveOf))],
    [
      "workloads",
      workloads.map((lists) =>
        lists.map((packed) =>
          packed.map(({ byteLength, items }) => ({
            total_size: byteLength,
            task_ids: items.map(({ item }) => item.taskId)
          }))
        )
      ),
      pes.map((pe) => pes.map((peer) => expected.workloads[pe]![peer]!))
    ],
    [
      "gather order",
      batches.map(({ source, destination, index }) => [source, destination, index]),
      expected.gather_order
    ],
    [
      "schedule",
      batches.map((batch, at) => ({ ...record(batch), iteration: schedule.iterationOf[at]! })),
      expected.schedule
    ],
    ["number of iterations", schedule.iterations, expected.num_iterations],
    ["view of each PE", Object.fromEntries(pes.map((pe) => [pe, viewOf(pe)])), expected.per_pe]
  ]
  const wrong = parts.find(([, ours, theirs]) => JSON.stringify(canonical(ours)) !== JSON.stringify(canonical(theirs)))
  return wrong === undefined
    ? undefined
    : `${wrong[0]}: ${JSON.stringify(wrong[1]).slice(0, 200)} instead of ${JSON.stringify(wrong[2]).slice(0, 200)}`
}
