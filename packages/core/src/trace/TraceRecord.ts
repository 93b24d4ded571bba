// SPDX-License-Identifier: Apache-2.0
/**
 * What one process kept of its spans, as data that travels, so that the spans of all ranks come into one trace.
 *
 * Contract
 * - Times of spans are whole nanoseconds since the record's beginning. The beginning is stated twice: by the wall clock, and by
 *   the monotonic clock of the machine that `host` names, which its processes share and which nobody sets.
 * - Records of one host are put together by the monotonic clock, exactly; those of several by their wall clocks, as well as
 *   these agree.
 */
import * as Schema from "effect/Schema"

const Attributes = Schema.Record(Schema.String, Schema.Unknown)

/** Whole nanoseconds, more than a number holds exactly. */
const Nanoseconds = Schema.String.check(Schema.isPattern(/^\d{1,30}$/))

/** One span that has ended; its parent is null, or the id of a span. */
export const SpanRecord = Schema.Struct({
  id: Schema.String,
  parent: Schema.NullOr(Schema.String),
  name: Schema.String,
  start: Schema.Int,
  duration: Schema.Int,
  attributes: Attributes,
  /** Things noted on the way, such as what went to each peer. */
  notes: Schema.Array(Schema.Struct({ name: Schema.String, attributes: Attributes })),
  /** How the span failed, where it did. */
  error: Schema.NullOr(Schema.String)
})
export type SpanRecord = typeof SpanRecord.Type

/** Spans and clock of one rank in a form that can travel. */
export const TraceRecord = Schema.Struct({
  pid: Schema.Int,
  processName: Schema.String,
  /** The row of spans that name none; null for a row per name. */
  track: Schema.NullOr(Schema.String),
  /** Names the machine, or its boot, whose monotonic clock is meant. */
  host: Schema.String,
  wall: Nanoseconds,
  monotonic: Nanoseconds,
  spans: Schema.Array(SpanRecord),
  droppedSpans: Schema.Int
})
export type TraceRecord = typeof TraceRecord.Type

/** The least of some times; 0 of none. */
export const earliest = (times: ReadonlyArray<bigint>): bigint => {
  let least = times[0] ?? 0n
  for (const time of times) if (time < least) least = time
  return least
}

/** When each record began, in nanoseconds after the first one did. */
export const offsetsOf = (records: ReadonlyArray<TraceRecord>): ReadonlyArray<number> => {
  const isOneHost = new Set(records.map(({ host }) => host)).size <= 1
  const begun = records.map(({ monotonic, wall }) => BigInt(isOneHost ? monotonic : wall))
  const first = earliest(begun)
  return begun.map((time) => Number(time - first))
}
