// SPDX-License-Identifier: Apache-2.0
/** What learner and collector of the `replay` commands agree on: the job, and the messages around the pack requests. */
import { Natural } from "@tensorferry/core/base/Numbers"
import { ReplaySlotHandle } from "@tensorferry/core/replay/ReplaySlots"
import { HostMemoryHandle } from "@tensorferry/core/service/HostMemory"
import * as Schema from "effect/Schema"

/** What the collector gets first. */
export const CollectorJob = Schema.TaggedStruct("CollectorJob", {
  ring: HostMemoryHandle,
  slots: Schema.Array(ReplaySlotHandle),
  /** Of one batch. */
  rows: Natural,
  /** Rows appended before the first batch. */
  fill: Natural,
  /** Rows appended for each batch. */
  append: Natural
})
export type CollectorJob = typeof CollectorJob.Type

/** What the collector says before it serves pack requests, or instead. */
export const CollectorState = Schema.Union([
  Schema.TaggedStruct("CollectorStarted", {}),
  Schema.TaggedStruct("CollectorReady", {}),
  Schema.TaggedStruct("CollectorFailed", { message: Schema.String })
])
export type CollectorState = typeof CollectorState.Type

export interface ReplayJob {
  /** As `cuda:0`. */
  readonly device: string
  readonly rows: number
  /** Where the rows of the ring lie. */
  readonly ring: "host" | "device"
  /** Numbers in a row's observation. */
  readonly width: number
  readonly ringDepth: number
  readonly ticks: number
  /** Rows that the replay ring holds. */
  readonly capacity: number
  readonly append: number
  readonly seed: number
  readonly computeMillis: number
  readonly deadlineMillis: number
  /** Compare every row of every batch with what the collector must have written. */
  readonly verify: boolean
}
