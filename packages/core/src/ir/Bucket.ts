// SPDX-License-Identifier: Apache-2.0
/**
 * Chunks that travel together from one rank to the same others, and where each lies in the buffer. Data only.
 *
 * Invariant: both ends make equal buckets, because their composition follows from the shared plan alone; `device` and what
 * execution adds (`bufferReadyEvent`) are each end's own business.
 */

import * as Schema from "effect/Schema"
import { Natural } from "../base/Numbers.ts"
import { DeviceText } from "../tensor/Device.ts"
import { Chunk } from "./Chunk.ts"

/** A chunk at its place in a bucket: `offset` and `nbytes` in bytes. */
export const BucketEntry = Schema.Struct({
  chunk: Chunk,
  /** In bytes from the start of the buffer; aligned for every element type. */
  offset: Natural,
  nbytes: Natural
})
export type BucketEntry = typeof BucketEntry.Type

/** Chunks that travel from one rank to another in one buffer. Bytes and elements. */
export const Bucket = Schema.Struct({
  /** The chunks' bucket key and the bucket's number under it: the name of the bucket on both ends. */
  key: Schema.String,
  /** Where this rank makes the buffer. */
  device: DeviceText,
  /** At least one. */
  entries: Schema.Array(BucketEntry),
  totalBytes: Natural
})
export type Bucket = typeof Bucket.Type
