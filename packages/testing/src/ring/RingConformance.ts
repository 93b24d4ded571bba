// SPDX-License-Identifier: Apache-2.0
/**
 * What every replay ring must do, on the host or on a device, as data and Effects that know no test runner.
 */
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { type CaseResult, defaultCaseDeadline, judged } from "../Conformance.ts"
import { RingSubject } from "./RingSubject.ts"
import { ringBatchCases } from "./ringBatchCases.ts"
import type { RingCase } from "./ringCase.ts"
import { ringDrawCases } from "./ringDrawCases.ts"
import { ringOrderCases } from "./ringOrderCases.ts"

export type { RingCase }

/** All cases of a ring. */
export const ringConformanceCases: ReadonlyArray<RingCase> = [...ringBatchCases, ...ringDrawCases, ...ringOrderCases]

/** One case against the subject in the context. */
export const runRingCase = (
  ringCase: RingCase,
  deadline: Duration.Input = defaultCaseDeadline
): Effect.Effect<CaseResult, never, RingSubject> =>
  Effect.map(
    judged(
      Effect.scoped(
        Effect.gen(function* () {
          const lacking = ringCase.requires?.(yield* RingSubject)
          if (lacking === undefined) yield* ringCase.program
          return lacking
        })
      ),
      deadline
    ),
    (verdict) => ({ name: ringCase.name, ...verdict })
  )
