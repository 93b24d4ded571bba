// SPDX-License-Identifier: Apache-2.0
/** What a rank of a bench gets, and what it reports. Plain data. */
import * as Schema from "effect/Schema"
import { DeviceChoice } from "../device/DeviceChoice.ts"
import { backendPlace } from "./conformanceWork.ts"

export const BenchWork = Schema.toCodecJson(
  Schema.Struct({
    ...backendPlace,
    /** Whose memory is moved, where it was stated; else that of the backend's engine. */
    device: Schema.optionalKey(DeviceChoice),
    /** Bytes that each rank sends to the next one, case by case. */
    lengths: Schema.Array(Schema.Int)
  })
)
export type BenchWork = typeof BenchWork.Type

/** One length on one rank. Seconds per round, in the order in which all ranks had them. */
export const BenchNews = Schema.toCodecJson(
  Schema.Struct({
    byteLength: Schema.Int,
    moveSeconds: Schema.Array(Schema.Finite),
    copySeconds: Schema.Array(Schema.Finite),
    path: Schema.String,
    reason: Schema.String,
    /** What is wrong with the bytes that arrived in the last round; empty where nothing is. */
    fault: Schema.String
  })
)
export type BenchNews = typeof BenchNews.Type
