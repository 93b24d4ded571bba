// SPDX-License-Identifier: Apache-2.0
/**
 * The conformance kit: what every `TensorEngine`, `CopyService` and `CopyDriver` must do, as data and Effects that know no
 * test runner. The same text judges a simulation, threads and processes.
 *
 * A case passes, fails with what was wrong, or is skipped with the reason: the subject lacks a capability, or its author
 * stated a quirk. A quirk without a reason, or for a case that does not exist, is a failure: nothing is skipped silently.
 */

import type { Rank } from "@tensorferry/core/base/Ids"
import { nearestName } from "@tensorferry/core/base/SimilarName"
import { describeThrown } from "@tensorferry/core/base/UnknownCause"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import type {
  CopyCase,
  CopyCaseServices,
  CopyDriverCase,
  CopyDriverCaseServices,
  TensorEngineCase
} from "./conformance/Case.ts"
import { copyStartCases } from "./conformance/copyDriverCases.ts"
import { copyLifecycleCases } from "./conformance/copyLifecycleCases.ts"
import { copyMoveCases } from "./conformance/copyMoveCases.ts"
import { copyProgramCases } from "./conformance/copyProgramCases.ts"
import { copyRefusalCases } from "./conformance/copyRefusalCases.ts"
import { copyRepeatCases, driverRepeatCases } from "./conformance/copyRepeatCases.ts"
import { driverDescriptorCases, engineDescriptorCases, StatedCapabilities } from "./conformance/descriptorCases.ts"
import { engineCastCases } from "./conformance/engineCastCases.ts"
import { engineChangeCases } from "./conformance/engineChangeCases.ts"
import { engineDigestCases } from "./conformance/engineDigestCases.ts"
import { engineFormCases } from "./conformance/engineFormCases.ts"
import { engineMoveCases } from "./conformance/engineMoveCases.ts"
import { engineProductCases } from "./conformance/engineProductCases.ts"
import { engineQuantizeCases } from "./conformance/engineQuantizeCases.ts"
import { engineReduceCases } from "./conformance/engineReduceCases.ts"
import { engineRefusalCases } from "./conformance/engineRefusalCases.ts"

export {
  CaseFailure,
  type CopyCase,
  type CopyDriverCase,
  type Stated,
  type TensorEngineCase
} from "./conformance/Case.ts"
export { StatedCapabilities } from "./conformance/descriptorCases.ts"

/** All cases of a `TensorEngine`: moves, refusals, casts, reductions, block scaling, changes and products. */
export const tensorEngineCases: ReadonlyArray<TensorEngineCase> = [
  ...engineMoveCases,
  ...engineRefusalCases,
  ...engineCastCases,
  ...engineReduceCases,
  ...engineQuantizeCases,
  ...engineFormCases,
  ...engineChangeCases,
  ...engineProductCases,
  ...engineDigestCases,
  ...engineDescriptorCases
]

/** All cases of a `CopyDriver`; each takes two ranks. */
export const copyDriverCases: ReadonlyArray<CopyDriverCase> = [
  ...copyStartCases,
  ...copyProgramCases,
  ...driverRepeatCases,
  ...driverDescriptorCases
]

/** All cases of a `CopyService`: moves, refusals and life cycle. Each states how many ranks it takes. */
export const copyCases: ReadonlyArray<CopyCase> = [
  ...copyMoveCases,
  ...copyRefusalCases,
  ...copyLifecycleCases,
  ...copyRepeatCases
]

/** How a case ended, all its ranks taken together. */
export const CaseResult = Schema.Struct({
  name: Schema.String,
  status: Schema.Literals(["passed", "failed", "skipped"]),
  /** Why it failed or was skipped; empty where it passed. */
  detail: Schema.String
})
export type CaseResult = typeof CaseResult.Type

/** How one rank's part of a case ended. Plain data, so that processes can send it. */
export const RankOutcome = Schema.Struct({
  rank: Schema.Int,
  status: CaseResult.fields.status,
  detail: Schema.String
})
export type RankOutcome = typeof RankOutcome.Type

/** Case name to why the subject is known to differ. Such cases are not run. */
export type Quirks = { readonly [caseName: string]: string }

/**
 * The limits of a case, each well within the next, so that what says most ends it: the group's deadline, whose failure names
 * ranks; that of the case; that of a test around it.
 */
export const defaultGroupDeadline = Duration.seconds(20)
/** How long one case may take before it counts as hanging. */
export const defaultCaseDeadline = Duration.seconds(60)
/** Milliseconds that a test of a case may take. */
export const defaultTestLimit = 90_000

type Verdict = Pick<CaseResult, "status" | "detail">

const passed: Verdict = { status: "passed", detail: "" }

const frames = (defect: unknown): string => {
  const stack = defect instanceof Error ? (defect.stack ?? "") : ""
  const at = stack.search(/^ {4}at /m)
  return at < 0 ? "" : `\n${stack.slice(at)}`
}

/** What failed, without the stack of the kit itself; defects name their place first, and keep their stack below. */
export const describeCause = (cause: Cause.Cause<unknown>): string =>
  cause.reasons
    .map((reason) => {
      if (reason._tag === "Fail") return reason.error instanceof Error ? reason.error.message : String(reason.error)
      if (reason._tag === "Interrupt") return "It was interrupted."
      return `${describeThrown(reason.defect)}${frames(reason.defect)}`
    })
    .join("; ")

/** Runs a case, whose value is the reason to skip it. */
export const judged = <E extends { readonly message: string }, R>(
  program: Effect.Effect<string | undefined, E, R>,
  deadline: Duration.Input
): Effect.Effect<Verdict, never, R> =>
  program.pipe(
    Effect.timeoutOrElse({
      duration: deadline,
      orElse: () => Effect.die("It did not end within its deadline.")
    }),
    Effect.exit,
    Effect.map((exit): Verdict => {
      if (Exit.isFailure(exit)) return { status: "failed", detail: describeCause(exit.cause) }
      return exit.value === undefined ? passed : { status: "skipped", detail: exit.value }
    })
  )

/** A copy case as one rank runs it; the same on every kind of rank. */
export const runCopyCaseRank = (
  copyCase: CopyCase,
  rank: Rank,
  deadline: Duration.Input = defaultCaseDeadline
): Effect.Effect<RankOutcome, never, CopyCaseServices> =>
  Effect.map(
    judged(
      Effect.gen(function* () {
        const service = yield* CopyService
        const lacking = copyCase.requires?.(service.capabilities, yield* StatedCapabilities)
        if (lacking === undefined) yield* copyCase.program(rank)
        return lacking
      }),
      deadline
    ),
    (verdict) => ({ rank, ...verdict })
  )

/** A driver case as one rank runs it; the same on every kind of rank. */
export const runCopyDriverCaseRank = (
  driverCase: CopyDriverCase,
  rank: Rank,
  deadline: Duration.Input = defaultCaseDeadline
): Effect.Effect<RankOutcome, never, CopyDriverCaseServices> =>
  Effect.map(
    judged(
      Effect.gen(function* () {
        const driver = yield* CopyDriver
        const lacking = driverCase.requires?.(driver.capabilities, yield* StatedCapabilities)
        if (lacking === undefined) yield* driverCase.program(rank)
        return lacking
      }),
      deadline
    ),
    (verdict) => ({ rank, ...verdict })
  )

/** One result from all ranks: failed where any failed, skipped where all agree that it does not apply. */
export const combineOutcomes = (name: string, outcomes: ReadonlyArray<RankOutcome>): CaseResult => {
  const told = (status: CaseResult["status"]) => outcomes.filter((outcome) => outcome.status === status)
  const failures = told("failed")
  if (failures.length > 0) {
    return {
      name,
      status: "failed",
      detail: failures.map(({ rank, detail }) => `rank ${rank}: ${detail}`).join("\n")
    }
  }
  const skips = told("skipped")
  if (skips.length === 0) return { name, ...passed }
  return skips.length === outcomes.length
    ? { name, status: "skipped", detail: skips[0]!.detail }
    : { name, status: "failed", detail: "Ranks disagree whether the case applies: their capabilities differ." }
}

/** One engine case against the engine in the context. */
export const runTensorEngineCase = (
  engineCase: TensorEngineCase,
  deadline: Duration.Input = defaultCaseDeadline
): Effect.Effect<CaseResult, never, TensorEngine> =>
  Effect.map(
    judged(
      Effect.scoped(
        Effect.gen(function* () {
          const engine = yield* TensorEngine
          const lacking = engineCase.requires?.(engine.capabilities, yield* StatedCapabilities)
          if (lacking === undefined) yield* engineCase.program
          return lacking
        })
      ),
      deadline
    ),
    (verdict) => ({ name: engineCase.name, ...verdict })
  )

/** Results for quirks that say nothing: no reason, or no such case. */
export const checkQuirks = (
  cases: ReadonlyArray<{ readonly name: string }>,
  quirks: Quirks
): ReadonlyArray<CaseResult> =>
  Object.entries(quirks).flatMap(([name, reason]): ReadonlyArray<CaseResult> => {
    if (!cases.some((known) => known.name === name)) {
      const near = nearestName(
        name,
        cases.map((known) => known.name)
      )
      const hint = near === undefined ? "" : ` Did you mean "${near}"?`
      return [{ name, status: "failed", detail: `A quirk is stated for "${name}", which is no case.${hint}` }]
    }
    return reason.trim() === "" ? [{ name, status: "failed", detail: "The quirk gives no reason." }] : []
  })

/** A case with a stated quirk is not run; the others are, by `run`. */
export const withQuirks = <Case extends { readonly name: string }, R>(
  oneCase: Case,
  quirks: Quirks,
  run: (oneCase: Case) => Effect.Effect<CaseResult, never, R>
): Effect.Effect<CaseResult, never, R> => {
  const reason = quirks[oneCase.name]
  if (reason === undefined) return run(oneCase)
  return Effect.succeed(
    reason.trim() === ""
      ? { name: oneCase.name, status: "failed" as const, detail: "The quirk gives no reason." }
      : { name: oneCase.name, status: "skipped" as const, detail: `Known quirk: ${reason}` }
  )
}

/** Which cases to run, all by default, and where the subject is known to differ. */
export interface CaseOptions<Case> {
  readonly quirks?: Quirks
  readonly cases?: ReadonlyArray<Case>
}

/** Cases by `run` against one subject, in order, and quirks that name no case. */
export const runCases = <Case extends { readonly name: string }, R, E>(
  layer: Layer.Layer<R, E>,
  run: (oneCase: Case) => Effect.Effect<CaseResult, never, R>,
  cases: ReadonlyArray<Case>,
  quirks: Quirks = {}
): Effect.Effect<ReadonlyArray<CaseResult>, E> => {
  const all = Effect.forEach(cases, (oneCase) => withQuirks(oneCase, quirks, run))
  const wrong = checkQuirks(cases, quirks).filter((result) => !cases.some((known) => known.name === result.name))
  return Effect.map(Effect.provide(all, layer), (results) => [...results, ...wrong])
}

/** All engine cases against one engine, in order. */
export const runTensorEngineCases = <E>(
  layer: Layer.Layer<TensorEngine, E>,
  { cases = tensorEngineCases, quirks }: CaseOptions<TensorEngineCase> = {}
): Effect.Effect<ReadonlyArray<CaseResult>, E> => runCases(layer, runTensorEngineCase, cases, quirks)
