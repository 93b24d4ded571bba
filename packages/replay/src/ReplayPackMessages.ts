// SPDX-License-Identifier: Apache-2.0
/**
 * What learner and collector say to each other about packs: plain JSON, so that any channel carries it. Everything that
 * arrives is decoded and checked; what is not one of these messages is none of this protocol's business.
 */

import { Natural } from "@tensorferry/core/base/Numbers"
import { ReplayPipelineReason } from "@tensorferry/core/replay/ReplayPipelineError"
import * as Schema from "effect/Schema"

/** A number of 64 bits, as text. */
const Long = Schema.String.check(Schema.isPattern(/^\d{1,19}$/))

export const ToCollector = Schema.Union([
  Schema.TaggedStruct("ReplayPack", { id: Natural, tick: Natural, seed: Natural, rows: Natural, slot: Natural }),
  /** Let go of the slot as soon as possible. Answered like the request itself. */
  Schema.TaggedStruct("ReplayCancel", { id: Natural })
])
export type ToCollector = typeof ToCollector.Type

export const FromCollector = Schema.Union([
  Schema.TaggedStruct("ReplayPacked", {
    id: Natural,
    tick: Natural,
    slot: Natural,
    first: Long,
    end: Long,
    redrawn: Natural,
    pid: Natural,
    startedAt: Long,
    endedAt: Long
  }),
  Schema.TaggedStruct("ReplayPackFailed", { id: Natural, reason: ReplayPipelineReason }),
  Schema.TaggedStruct("ReplayCancelled", { id: Natural })
])
export type FromCollector = typeof FromCollector.Type

export const decodeToCollector = Schema.decodeUnknownOption(ToCollector)
export const decodeFromCollector = Schema.decodeUnknownOption(FromCollector)
