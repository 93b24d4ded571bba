// SPDX-License-Identifier: Apache-2.0
/**
 * Runs the conformance kit on one backend, every case in processes of its own: one for engines and replay backends, as many
 * as a case has ranks for what moves bytes between them.
 *
 * Invariant: every case of every offered service has a result. One that takes its process with it has failed, and the cases
 * behind it run in new processes.
 */
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import {
  type CaseResult,
  checkQuirks,
  combineOutcomes,
  copyCases,
  copyDriverCases,
  judgedServices,
  type Quirks,
  type RankOutcome,
  replayConformanceCases,
  type ServiceResults,
  tensorEngineCases
} from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { ConformanceNews, ConformanceWork } from "./conformanceWork.ts"
import { badEnds, programFile, runRanks } from "./rankProcesses.ts"

type Service = (typeof judgedServices)[number]
type JudgedCase = CaseResult & { readonly ranks: number }

export interface ConformanceRequest
  extends Pick<ConformanceWork, "backendPackages" | "packagesFrom" | "options" | "hooks"> {
  readonly descriptor: BackendDescriptor
  /** Cases of more ranks are skipped. */
  readonly ranks: number
  /** Only cases whose service or name has this in it. */
  readonly filter: string | undefined
  readonly quirks: Quirks
  readonly caseMillis: number
  /** Told before the first case, and after each. */
  readonly onProgress: (done: number, total: number, name: string) => Effect.Effect<void>
}

const casesOf: { readonly [S in Service]: ReadonlyArray<{ readonly name: string; readonly size?: number }> } = {
  tensorEngine: tensorEngineCases,
  copyService: copyCases,
  copyDriver: copyDriverCases,
  replayTransfer: replayConformanceCases
}

const isOffered = (descriptor: BackendDescriptor, service: Service): boolean =>
  service === "copyService" || service === "copyDriver"
    ? descriptor.copyDriver !== undefined
    : descriptor[service] !== undefined

/** Of all services that the backend offers, whatever a run leaves out. */
export const everyCase = (descriptor: BackendDescriptor): ReadonlyArray<{ readonly name: string }> =>
  judgedServices.filter((service) => isOffered(descriptor, service)).flatMap((service) => casesOf[service])

interface PlannedCase {
  readonly service: Service
  readonly name: string
  readonly ranks: number
  /** Set where it is not run. */
  readonly result: JudgedCase | undefined
}

const plan = ({ descriptor, ranks, filter, quirks }: ConformanceRequest): ReadonlyArray<PlannedCase> => {
  const wanted = filter?.toLowerCase()
  return judgedServices
    .filter((service) => isOffered(descriptor, service))
    .flatMap((service) =>
      casesOf[service]
        .filter(({ name }) => wanted === undefined || `${service} ${name}`.toLowerCase().includes(wanted))
        .map(({ name, size = 1 }): PlannedCase => {
          const skipped = (detail: string): JudgedCase => ({ name, ranks: size, status: "skipped", detail })
          const quirk = quirks[name]
          const result =
            quirk !== undefined && quirk.trim() !== ""
              ? skipped(`Known quirk: ${quirk}`)
              : size > ranks
                ? skipped(`it needs ${size} ranks, and --ranks is ${ranks}`)
                : undefined
          return { service, name, ranks: size, result }
        })
    )
}

/** After so many starts in a row without any outcome, the rest is not tried. */
const mostVainStarts = 2

const encodeWork = Schema.encodeSync(ConformanceWork)
const decodeNews = Schema.decodeUnknownOption(ConformanceNews)

export const runConformance = Effect.fn("runConformance")(function* (
  request: ConformanceRequest
): Effect.fn.Return<ReadonlyArray<ServiceResults>> {
  const { descriptor, caseMillis, onProgress } = request
  const planned = plan(request)
  const results = new Map<PlannedCase, JudgedCase>()
  for (const one of planned) if (one.result !== undefined) results.set(one, one.result)
  const settle = (one: PlannedCase, result: CaseResult) =>
    Effect.suspend(() => {
      if (results.has(one)) return Effect.void
      results.set(one, { ...result, ranks: one.ranks })
      return onProgress(results.size, planned.length, one.name)
    })
  yield* onProgress(results.size, planned.length, "starting")

  /** All cases of one kind and size; again from behind a case that ended its processes. */
  const judge = Effect.fnUntraced(function* (
    kind: ConformanceWork["kind"],
    size: number,
    all: ReadonlyArray<PlannedCase>
  ) {
    let left = all
    let vain = 0
    while (left.length > 0) {
      const outcomes = new Map<string, Array<RankOutcome>>()
      const ends = yield* runRanks({
        file: programFile("conformanceMain"),
        size,
        work: encodeWork({
          backend: descriptor.name,
          backendPackages: request.backendPackages,
          packagesFrom: request.packagesFrom,
          options: request.options,
          kind,
          hooks: request.hooks,
          cases: left.map(({ name }) => name),
          caseMillis
        }),
        deadlineMillis: Math.min(10_000, caseMillis),
        // A case that hangs is ended by its own deadline; then the ranks wait for each other.
        quietMillis: 2 * caseMillis + 20_000,
        onNews: (_, news) =>
          Effect.suspend(() => {
            const told = decodeNews(news)
            if (Option.isNone(told)) return Effect.void
            const { name, outcome } = told.value
            const known = [...(outcomes.get(name) ?? []), outcome]
            outcomes.set(name, known)
            const one = left.find((each) => each.name === name)
            return known.length < size || one === undefined ? Effect.void : settle(one, combineOutcomes(name, known))
          })
      })
      const before = left.length
      left = left.filter((one) => !results.has(one))
      const [culprit, ...rest] = left
      if (culprit === undefined) return
      const detail = badEnds(ends)
        .map(({ text }) => text)
        .join("\n")
      const lost = (name: string): CaseResult => ({
        name,
        status: "failed",
        detail: detail || "The process reported no outcome."
      })
      yield* settle(culprit, lost(culprit.name))
      vain = left.length === before ? vain + 1 : 0
      left = rest
      if (vain < mostVainStarts) continue
      for (const one of rest) yield* settle(one, lost(one.name))
      return
    }
  })

  const open = planned.filter(({ result }) => result === undefined)
  const sizes = [...new Set(open.map(({ ranks }) => ranks))].sort((a, b) => a - b)
  yield* judge(
    "tensorEngine",
    1,
    open.filter(({ service }) => service === "tensorEngine")
  )
  for (const size of sizes) {
    const moving = open.filter(({ service, ranks }) => ranks === size && service.startsWith("copy"))
    yield* judge("copy", size, moving)
  }
  yield* judge(
    "replayTransfer",
    1,
    open.filter(({ service }) => service === "replayTransfer")
  )

  const wrongQuirks = checkQuirks(everyCase(descriptor), request.quirks)
  return judgedServices.map((service): ServiceResults => {
    const own = planned.filter((one) => one.service === service)
    const isFirst = service === planned[0]?.service
    const cases = own.map((one) => results.get(one)!)
    // A quirk that is stated wrongly belongs to no case; it is reported once.
    const stated = isFirst ? wrongQuirks.map((wrong) => ({ ...wrong, ranks: 0 })) : []
    return { service, isOffered: isOffered(descriptor, service), cases: [...cases, ...stated] }
  })
})
