// SPDX-License-Identifier: Apache-2.0
/**
 * What a run of the kit found out about a backend, as a document: who was judged, on what machine, with which libraries,
 * and how every case ended. Written by whoever runs the kit, read by whoever compares backends.
 */
import * as Schema from "effect/Schema"
import { CaseResult } from "./Conformance.ts"

/** Services of the kit, in the order in which they are judged and shown. */
export const judgedServices = ["tensorEngine", "copyService", "copyDriver", "replayTransfer"] as const

/** How all cases of one service ended. */
export const ServiceResults = Schema.Struct({
  service: Schema.Literals(judgedServices),
  /** False where the backend does not offer the service; then there are no cases. */
  isOffered: Schema.Boolean,
  cases: Schema.Array(
    Schema.Struct({
      ...CaseResult.fields,
      /** Processes that took part. */
      ranks: Schema.Int
    })
  )
})
export type ServiceResults = typeof ServiceResults.Type

const Versions = Schema.Record(Schema.String, Schema.String)

/** What became of every case of a backend, as JSON that `tensorferry backends` shows. */
export const ConformanceReport = Schema.Struct({
  format: Schema.Literal("tensorferry-conformance-1"),
  backend: Schema.NonEmptyString,
  /** What the person who ran it has to say, such as that the devices are simulated. */
  note: Schema.String,
  package: Schema.Struct({ name: Schema.String, version: Schema.String }),
  core: Schema.Struct({ version: Schema.String, apiVersion: Schema.Int }),
  machine: Schema.Struct({
    platform: Schema.String,
    architecture: Schema.String,
    kernel: Schema.String,
    processor: Schema.String,
    node: Schema.String
  }),
  /** What the backend's probe says of devices and libraries. */
  probe: Schema.Struct({ detail: Schema.String, versions: Versions }),
  deviceFamilies: Schema.Array(Schema.String),
  /** As the descriptor states them, by service. */
  capabilities: Schema.Record(Schema.String, Schema.Json),
  options: Schema.Json,
  ranks: Schema.Int,
  /** True where cases were left out on purpose; such a report proves nothing about them. */
  isFiltered: Schema.Boolean,
  services: Schema.Array(ServiceResults)
})
export type ConformanceReport = typeof ConformanceReport.Type

/** Cases by how they ended. */
export const countCases = (
  cases: ReadonlyArray<Pick<CaseResult, "status">>
): { readonly [Status in CaseResult["status"]]: number } => {
  const count = (status: CaseResult["status"]) => cases.filter((one) => one.status === status).length
  return { passed: count("passed"), failed: count("failed"), skipped: count("skipped") }
}
