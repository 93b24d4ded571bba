// SPDX-License-Identifier: Apache-2.0
/** Writes what a run of `reshard` was asked to leave behind: its trace, its record. */
import { access, constants, stat } from "node:fs/promises"
import * as path from "node:path"
import { formatMeshLayout } from "@tensorferry/core/layout/MeshText"
import { traceDocument } from "@tensorferry/core/trace/TraceDocument"
import type { TraceRecord } from "@tensorferry/core/trace/TraceRecord"
import { systemCall } from "@tensorferry/model/checkpoint/FileAccess"
import { modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import { type AnyJobSpec, isMeshJob, type RankReport } from "../job/JobSpec.ts"
import { writeWhole } from "../model/writeWhole.ts"
import { sideText } from "../text/sideText.ts"
import { makeRunRecord, tracesOf } from "./makeRunRecord.ts"
import { encodeRunRecord, type RunRecord } from "./RunRecord.ts"
import { runFacts } from "./runFacts.ts"

export interface RunFiles {
  readonly trace: string | undefined
  readonly record: string | undefined
}

/** Refuses a name where no file can be written, before the run and not after it. */
export const checkTarget = (file: string) =>
  Effect.gen(function* () {
    const found = yield* Effect.option(Effect.tryPromise(() => stat(file)))
    if (found._tag === "Some" && !found.value.isFile()) {
      return yield* modelError("OutputExists", { file, detail: "It is not a file.", remedy: "Name a new file." })
    }
    const target = found._tag === "Some" ? file : path.dirname(file)
    yield* systemCall("WriteFailed", file, "write the file", () => access(target, constants.W_OK))
  })

const jobOf = (spec: AnyJobSpec, conversion: string, seconds: number): RunRecord["job"] => ({
  checkpoint: spec.checkpoint,
  from: isMeshJob(spec) ? formatMeshLayout(spec.mesh.from) : sideText(spec.from, spec.names?.from.convention),
  to: isMeshJob(spec) ? formatMeshLayout(spec.mesh.to) : sideText(spec.to, spec.names?.to.convention),
  ranks: isMeshJob(spec) ? `tensor ${spec.tensor}` : spec.ranks,
  conversion,
  out: spec.out?.folder ?? null,
  verified: spec.verify,
  seconds
})

export interface FinishedRun {
  readonly spec: AnyJobSpec
  readonly conversion: string
  readonly seconds: number
  readonly reports: ReadonlyArray<RankReport>
  /** Of the process that started the ranks, where one did. */
  readonly command?: TraceRecord
}

export const writeRunFiles = (
  { trace, record }: RunFiles,
  { spec, conversion, seconds, reports, command }: FinishedRun
) =>
  Effect.gen(function* () {
    if (trace !== undefined) {
      const traces = [...tracesOf(reports), ...(command === undefined ? [] : [command])]
      yield* writeWhole(trace, "the trace", `${JSON.stringify(traceDocument(traces))}\n`)
    }
    if (record === undefined) return
    const facts = yield* runFacts(spec.backend)
    const job = jobOf(spec, conversion, seconds)
    yield* writeWhole(
      record,
      "the record",
      encodeRunRecord(makeRunRecord({ job, facts, reports, created: new Date() }))
    )
  })
