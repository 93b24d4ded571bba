// SPDX-License-Identifier: Apache-2.0
/**
 * The record of one run of `reshard`: what was moved, by whom, how, and what it took. Versioned data, checked when read.
 *
 * Contract: bytes are payload bytes, times seconds. Phases begin with the earliest one of any rank. A record holds names
 * from checkpoints and machines as they are; whoever shows one escapes them.
 */

import { CopyReport } from "@tensorferry/core/service/CopyService"
import { readSmallFile } from "@tensorferry/model/checkpoint/FileAccess"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as SchemaIssue from "effect/SchemaIssue"
import { ObservedMemory } from "../job/Observed.ts"
import { type ReportError, reportError } from "./ReportError.ts"

const Count = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }))
const Seconds = Schema.Finite.check(Schema.isGreaterThanOrEqualTo(0))

/** A span of a rank, with the row that it is drawn on: below what it is part of. */
export const RecordedPhase = Schema.Struct({
  name: Schema.String,
  row: Count,
  start: Seconds,
  seconds: Seconds,
  /** Attributes worth reading, in words. */
  about: Schema.String
})
export type RecordedPhase = typeof RecordedPhase.Type

export const RecordedRank = Schema.Struct({
  rank: Count,
  host: Schema.String,
  sourceBytes: Count,
  destinationBytes: Count,
  memory: ObservedMemory,
  /** Seconds per step of the job. */
  seconds: Schema.Record(Schema.String, Seconds),
  copy: CopyReport,
  phases: Schema.Array(RecordedPhase)
})
export type RecordedRank = typeof RecordedRank.Type

/** Bytes from one rank to another, or to itself. */
export const RecordedTraffic = Schema.Struct({
  from: Count,
  to: Count,
  bytes: Count,
  path: Schema.String,
  reason: Schema.String
})
export type RecordedTraffic = typeof RecordedTraffic.Type

export const RecordedTensor = Schema.Struct({
  name: Schema.String,
  dtype: Schema.String,
  shape: Schema.Array(Count),
  /** Of all shards together. */
  bytes: Count,
  sources: Schema.Array(Count),
  destinations: Schema.Array(Count),
  /** SHA-256 of the shard where all ranks hold the same, else of all shards' digests by rank; null where not verified. */
  digest: Schema.NullOr(Schema.String)
})
export type RecordedTensor = typeof RecordedTensor.Type

export const RunRecord = Schema.Struct({
  format: Schema.Literal("tensorferry.run"),
  version: Schema.Literal(1),
  /** When the run ended, as 2026-11-28T10:16:00.000Z. */
  created: Schema.String,
  job: Schema.Struct({
    checkpoint: Schema.String,
    /** Layouts or meshes, in the words of the command line. */
    from: Schema.String,
    to: Schema.String,
    ranks: Schema.String,
    /** What became of tensors on the way; empty where nothing did. */
    conversion: Schema.String,
    out: Schema.NullOr(Schema.String),
    verified: Schema.Boolean,
    seconds: Seconds
  }),
  backend: Schema.Struct({ name: Schema.String, reason: Schema.String }),
  /** Versions of programs, drivers and libraries, and what the machine is. */
  facts: Schema.Array(Schema.Struct({ name: Schema.String, value: Schema.String })),
  ranks: Schema.Array(RecordedRank),
  traffic: Schema.Array(RecordedTraffic),
  tensors: Schema.Array(RecordedTensor),
  droppedSpans: Count
})
export type RunRecord = typeof RunRecord.Type

/** Where in the data a value is wrong, and how: the first place. */
const placeOf = (issue: SchemaIssue.Issue, path: ReadonlyArray<PropertyKey> = []): string => {
  if (issue._tag === "Pointer") return placeOf(issue.issue, [...path, ...issue.path])
  if ("issues" in issue && issue.issues.length > 0) return placeOf(issue.issues[0]!, path)
  if ("issue" in issue) return placeOf(issue.issue, path)
  return path
    .map((key, at) => (typeof key === "number" ? `[${key}]` : at === 0 ? String(key) : `.${String(key)}`))
    .join("")
}

const Versioned = Schema.Struct({ format: Schema.Literal("tensorferry.run"), version: Schema.Int })

export const encodeRunRecord = (record: RunRecord): string => `${JSON.stringify(record)}\n`

/** Reads a record; what is wrong with it is named by its field. */
export const decodeRunRecord = (file: string, text: string): Result.Result<RunRecord, ReportError> => {
  const invalid = (field: string, detail: string) =>
    reportError("InvalidRecord", field, {
      file,
      detail: field === "" ? detail : `Its field ${field} is wrong: ${detail}`,
      remedy: "Name a file that reshard --record wrote."
    })
  const parsed = Result.try({
    try: (): unknown => JSON.parse(text),
    catch: (cause) => invalid("", `It is not JSON: ${cause instanceof Error ? cause.message : String(cause)}.`)
  })
  return Result.flatMap(parsed, (value) => {
    const wrong = ({ issue, message }: Schema.SchemaError) => invalid(placeOf(issue), `${message.split("\n")[0]}.`)
    const versioned = Schema.decodeUnknownResult(Versioned)(value)
    if (Result.isFailure(versioned)) return Result.fail(wrong(versioned.failure))
    const { version } = versioned.success
    if (version !== 1) {
      return Result.fail(
        reportError("UnknownVersion", "version", {
          file,
          detail: `It has version ${version}; this program knows version 1.`,
          remedy: "Use the version of tensorferry that wrote it, or a newer one."
        })
      )
    }
    return Result.mapError(Schema.decodeUnknownResult(RunRecord)(value), wrong)
  })
}

export const readRunRecord = (file: string) =>
  Effect.flatMap(readSmallFile(file), (bytes) =>
    Effect.fromResult(decodeRunRecord(file, new TextDecoder().decode(bytes)))
  )
