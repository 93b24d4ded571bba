// SPDX-License-Identifier: Apache-2.0
/**
 * Judges one backend by the conformance kit: reads what is known to fail, runs the cases, prints and writes the report. The
 * only part of the command that imports the kit.
 */
import { access } from "node:fs/promises"
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { requireAvailable } from "@tensorferry/core/backend/BackendLayer"
import { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import { decodeBackendOptions } from "@tensorferry/core/backend/OptionsLayer"
import { probeBackend } from "@tensorferry/core/backend/Probe"
import { modelError } from "@tensorferry/model/ModelError"
import { ConformanceReport, checkQuirks, countCases } from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { backendRegistry } from "../job/backends.ts"
import { writeWhole } from "../model/writeWhole.ts"
import { readYamlFile } from "../model/YamlFile.ts"
import { printAround } from "../output/CliFailure.ts"
import { logsBeside } from "../output/quiet.ts"
import { checkTarget } from "../report/runFiles.ts"
import { makeCaseBar } from "./caseBar.ts"
import { readBackendOptions } from "./optionsFlag.ts"
import { reportFacts } from "./reportFacts.ts"
import { describeReport } from "./reportText.ts"
import { everyCase, runConformance } from "./runConformance.ts"

/** What the command's flags say. */
export interface JudgeRequest {
  readonly name: string
  readonly ranks: number
  readonly filter: Option.Option<string>
  readonly options: Option.Option<string>
  readonly quirks: Option.Option<string>
  readonly hooks: Option.Option<string>
  readonly caseSeconds: number
  readonly report: Option.Option<string>
  readonly note: string
  readonly backendPackages: ReadonlyArray<string>
  readonly quiet: boolean
  readonly json: boolean
}

const Quirks = Schema.Record(Schema.String, Schema.String)

const quirksRemedy = 'Write a map from case to reason, as {"moves one byte": "it moves words"}.'

/** Entries that say nothing would be skipped without a word, so none of them is accepted. */
const readQuirks = (file: Option.Option<string>, descriptor: BackendDescriptor) =>
  Option.match(file, {
    onNone: () => Effect.succeed({}),
    onSome: (name) =>
      Effect.gen(function* () {
        const invalid = (detail: string, remedy = quirksRemedy) =>
          modelError("InvalidUsage", { file: name, detail, remedy })
        const quirks = yield* readYamlFile(name, Quirks, invalid)
        const wrong = checkQuirks(everyCase(descriptor), quirks)
        if (wrong.length === 0) return quirks
        return yield* invalid(
          wrong.map((one) => (quirks[one.name]!.trim() === "" ? `"${one.name}": ${one.detail}` : one.detail)).join(" ")
        )
      })
  })

/** The module is imported by the processes that judge; that it is there is known before. */
const findHooks = (file: Option.Option<string>) =>
  Option.match(file, {
    onNone: () => Effect.succeed(null),
    onSome: (name) =>
      Effect.tryPromise({
        try: () => access(name),
        catch: () =>
          modelError("InvalidUsage", {
            file: name,
            detail: "It cannot be read.",
            remedy: "Name a module that exports replayTesting, of the type that descriptors have."
          })
      }).pipe(Effect.as(pathToFileURL(path.resolve(name)).href))
  })

const encodeReport = Schema.encodeSync(Schema.toCodecJson(ConformanceReport))

const writeReport = (file: string, report: ConformanceReport) =>
  writeWhole(path.resolve(file), "the report", `${JSON.stringify(encodeReport(report), null, 2)}\n`)

/** Exit code 1 where a case fails. */
export const judge = (given: JudgeRequest) =>
  Effect.gen(function* () {
    if (Option.isSome(given.report)) yield* checkTarget(path.resolve(given.report.value))
    const from = pathToFileURL(path.join(process.cwd(), "package.json")).href
    const written = yield* readBackendOptions(given.options)
    const { descriptor, probe } = yield* Effect.provide(
      Effect.gen(function* () {
        const found = yield* requireAvailable(yield* (yield* BackendRegistry).byName(given.name))
        yield* decodeBackendOptions(found.options, found.name, written, "Correct --options.")
        return { descriptor: found, probe: yield* probeBackend(found) }
      }),
      backendRegistry(given.backendPackages, from)
    )
    const stated = yield* readQuirks(given.quirks, descriptor)
    const filter = Option.getOrUndefined(given.filter)
    const bar = makeCaseBar(given)
    const services = yield* Effect.ensuring(
      runConformance({
        descriptor,
        backendPackages: given.backendPackages,
        packagesFrom: from,
        options: written,
        hooks: yield* findHooks(given.hooks),
        ranks: given.ranks,
        filter,
        quirks: { ...descriptor.quirks, ...stated },
        caseMillis: Math.round(given.caseSeconds * 1000),
        onProgress: bar.update
      }).pipe(Effect.provide(logsBeside(bar))),
      bar.clear
    )
    const all = services.flatMap(({ cases }) => cases)
    if (all.length === 0) {
      return yield* modelError("InvalidUsage", {
        backend: given.name,
        detail:
          filter === undefined
            ? "It offers no service that the kit can test."
            : `No case has "${filter}" in its service or name.`,
        remedy: filter === undefined ? "Test another backend." : "Leave --filter out to see all names."
      })
    }
    const report: ConformanceReport = {
      format: "tensorferry-conformance-1",
      ...(yield* reportFacts(descriptor, given.backendPackages, from)),
      note: given.note,
      probe:
        probe._tag === "Available"
          ? { detail: probe.detail, versions: probe.versions }
          : { detail: probe.cause, versions: {} },
      options: written,
      ranks: given.ranks,
      isFiltered: filter !== undefined,
      services
    }
    const { failed } = countCases(all)
    const write = Option.isSome(given.report) ? writeReport(given.report.value, report) : Effect.void
    yield* printAround(given.json, write, {
      document: { ok: failed === 0, report: encodeReport(report) },
      text: describeReport(report)
    })
    if (failed === 0) return
    yield* Effect.sync(() => {
      process.exitCode = 1
    })
  })
