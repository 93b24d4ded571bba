// SPDX-License-Identifier: Apache-2.0
/**
 * What all ranks of a reshard job get, and what they report to the process that started them. Plain data.
 */

import { Natural } from "@tensorferry/core/base/Numbers"
import { ReasonFields } from "@tensorferry/core/base/Reason"
import { CopyReport } from "@tensorferry/core/service/CopyService"
import { TraceRecord } from "@tensorferry/core/trace/TraceRecord"
import { Cutting } from "@tensorferry/model/Cutting"
import { Conversion } from "@tensorferry/model/conversion"
import { ParallelConfig } from "@tensorferry/model/layout/ParallelConfig"
import { NamedChoice, StoredNames } from "@tensorferry/model/names/NamedSide"
import { Phase } from "@tensorferry/model/Phase"
import * as Schema from "effect/Schema"
import { DeviceChoice } from "../device/DeviceChoice.ts"
import { DeviceShare } from "../device/jobMemory.ts"
import { MeshChoice } from "../model/MeshChoice.ts"
import { Observed } from "./Observed.ts"
import { RankLog } from "./parentChannel.ts"

const common = {
  checkpoint: Schema.String,
  /** How the checkpoint is read, where that was stated. */
  input: Schema.optionalKey(
    Schema.Struct({ indexOnly: Schema.optionalKey(Schema.Boolean), part: Schema.optionalKey(Schema.String) })
  ),
  /** Under which names the files have the model, where these are not its own. */
  stored: Schema.optionalKey(StoredNames),
  backend: Schema.String,
  /** Options of the backend, where they were stated. */
  options: Schema.optionalKey(Schema.Json),
  backendPackages: Schema.Array(Schema.String),
  /** Where backend packages are looked up: a file URL of the caller. */
  packagesFrom: Schema.String,
  /** Devices whose memory holds the tensors; that of the host by default. */
  device: Schema.optionalKey(DeviceChoice),
  /** Most bytes that tensors and buffers of ranks may take together, on one device or, without devices, on one host. */
  memoryLimit: Schema.optionalKey(Natural),
  verify: Schema.Boolean,
  deadlineMillis: Schema.Int,
  /** Ranks note what they do, for a trace or a record of the run. */
  observe: Schema.optionalKey(Schema.Boolean)
}

/** All tensors of a checkpoint between parallel layouts. */
export const JobSpec = Schema.Struct({
  ...common,
  from: ParallelConfig,
  to: ParallelConfig,
  /** "collocated": both layouts begin at rank 0. "disjoint": the destination follows the source. */
  ranks: Schema.Literals(["collocated", "disjoint"]),
  rules: Cutting,
  /** Rules of the source where they are not those of the destination. */
  sourceRules: Schema.optionalKey(Cutting),
  /** What becomes of the tensors on the way; without it they stay as they are. */
  conversion: Schema.optionalKey(Conversion),
  /** How both sides name and join tensors, where one of them is not as the checkpoint. */
  names: Schema.optionalKey(NamedChoice),
  /** The version before, which ranks hold: only what changed since travels. */
  deltaFrom: Schema.optionalKey(Schema.String),
  /** How many elements are traced by what the tensors mean; a sample by default. */
  prove: Schema.optionalKey(Schema.Literals(["sample", "all"])),
  /** Final folder, and the one that is written first; null to keep the result in memory. */
  out: Schema.NullOr(
    Schema.Struct({
      folder: Schema.String,
      temporary: Schema.String,
      /** Most bytes of tensors in one file, where one rank has all of them. */
      maxFileBytes: Schema.optionalKey(Natural),
      /** Carry configuration and tokenizer along. */
      copyMetadata: Schema.optionalKey(Schema.Boolean)
    })
  )
})
export type JobSpec = typeof JobSpec.Type

/** One tensor of a checkpoint between device meshes; the result is proved in memory. */
export const MeshJobSpec = Schema.Struct({ ...common, tensor: Schema.String, mesh: MeshChoice, out: Schema.Null })
export type MeshJobSpec = typeof MeshJobSpec.Type

export const AnyJobSpec = Schema.Union([JobSpec, MeshJobSpec])
export type AnyJobSpec = typeof AnyJobSpec.Type

export const isMeshJob = (spec: AnyJobSpec): spec is MeshJobSpec => "mesh" in spec

export const RankReport = Schema.Struct({
  rank: Schema.Int,
  sourceBytes: Schema.Int,
  destinationBytes: Schema.Int,
  /** Seconds per step. */
  seconds: Schema.Record(Schema.String, Schema.Finite),
  /** Of all waves together. */
  copy: CopyReport,
  /** Runs of the copy service, and bytes of the buffers that what is cast waits in. */
  waves: Schema.Int,
  bufferBytes: Schema.Int,
  backendReason: Schema.String,
  tensorsVerified: Schema.Int,
  bytesVerified: Schema.Int,
  /** Tensors and elements that were traced by the structure of the model; none without a family. */
  tensorsTraced: Schema.Int,
  elementsTraced: Schema.Int,
  planDigest: Schema.String,
  /** Of what all ranks' plans are made from: rosters, or meshes and tensors. */
  rosterDigest: Schema.String,
  peakMemory: Schema.Int,
  /** Where tensors lay on a device: what the rank was to take of it, and what was free before. */
  device: Schema.optionalKey(DeviceShare),
  /** Where the job is observed. */
  observed: Schema.optionalKey(Observed),
  trace: Schema.optionalKey(TraceRecord)
})
export type RankReport = typeof RankReport.Type

/** A failure in a form that can travel. */
export const RankFailure = Schema.Struct({
  tag: Schema.String,
  reason: Schema.String,
  message: Schema.String,
  fields: Schema.NullOr(ReasonFields),
  ranks: Schema.Array(Schema.Int)
})
export type RankFailure = typeof RankFailure.Type

export const ToRank = Schema.TaggedUnion({
  Job: { spec: AnyJobSpec, rank: Schema.Int, size: Schema.Int, port: Schema.Int }
})
export const FromRank = Schema.TaggedUnion({
  Started: {},
  Listening: { port: Schema.Int },
  /** The ranks have met. */
  Joined: {},
  /** What the rank logs, for people. */
  Log: RankLog,
  Progress: { phase: Phase, done: Schema.Finite, total: Schema.Finite },
  Finished: { report: RankReport },
  Failed: { failure: RankFailure }
})
export type FromRank = typeof FromRank.Type

const describe = (
  error: unknown
): {
  readonly tag: string
  readonly reason?: ReasonFields & { _tag: string }
  readonly message: string
} => {
  if (typeof error !== "object" || error === null) return { tag: "Defect", message: String(error) }
  const { _tag, reason, message } = error as { _tag?: unknown; reason?: unknown; message?: unknown }
  const isReason =
    typeof reason === "object" && reason !== null && typeof (reason as { _tag?: unknown })._tag === "string"
  return {
    tag: typeof _tag === "string" ? _tag : "Defect",
    ...(isReason ? { reason: reason as ReasonFields & { _tag: string } } : {}),
    message: typeof message === "string" ? message : String(error)
  }
}

/** Any failure as data; what has no reason of our kind is called a defect. */
export const toFailure = (error: unknown): RankFailure => {
  const { tag, reason, message } = describe(error)
  const ranks = (error as { readonly ranks?: unknown } | null)?.ranks
  if (reason === undefined) {
    const kind = (error as { readonly kind?: unknown } | null)?.kind
    return {
      tag,
      reason: typeof kind === "string" ? kind : tag,
      message,
      fields: null,
      ranks: Array.isArray(ranks) ? ranks : []
    }
  }
  const { _tag, ...fields } = reason
  return { tag, reason: _tag, message, fields, ranks: Array.isArray(ranks) ? ranks : [] }
}
