// SPDX-License-Identifier: Apache-2.0
/** What a case of a ring is, and what most of them do. */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { CaseFailure, failed } from "../conformance/Case.ts"
import {
  type RingFailure,
  RingSubject,
  type RingSubjectShape,
  type RingWanted,
  type TestedRing
} from "./RingSubject.ts"
import { ringLayout } from "./ringRows.ts"

/** One case: a name, and an Effect that fails with what is wrong. */
export interface RingCase {
  /** What it shows, as a test is called. */
  readonly name: string
  /** Why the case does not apply; undefined where it does. */
  readonly requires?: (subject: RingSubjectShape) => string | undefined
  /** Fails with what is wrong. */
  readonly program: Effect.Effect<void, CaseFailure, RingSubject | Scope.Scope>
}

/** An operation that should have worked. */
export const works = <A, R>(work: Effect.Effect<A, RingFailure, R>): Effect.Effect<A, CaseFailure, R> =>
  Effect.mapError(work, ({ detail, tag }) => new CaseFailure({ detail: `It failed with ${tag}: ${detail}` }))

/** Makes a case. */
export const ringCase = (
  name: string,
  program: Effect.Effect<void, CaseFailure | RingFailure, RingSubject | Scope.Scope>,
  requires?: RingCase["requires"]
): RingCase => ({
  name,
  program: Effect.scoped(
    Effect.catch(program, (error) => (error instanceof CaseFailure ? Effect.fail(error) : works(Effect.fail(error))))
  ),
  ...(requires === undefined ? {} : { requires })
})

/** Skips the case where the ring draws single rows uniformly and nothing else. */
export const needsWindows: RingCase["requires"] = ({ lacksWindows }) => lacksWindows

/** A ring of the cases' rows. */
export const makeRing = (
  wanted: Omit<RingWanted, "layout">
): Effect.Effect<TestedRing, RingFailure, RingSubject | Scope.Scope> =>
  RingSubject.use((subject) => subject.make({ layout: ringLayout, episodeEnd: "end", ...wanted }))

/** The operation fails with one of these reasons, and says something. */
export const expectRefusal = <A>(
  what: string,
  work: Effect.Effect<A, RingFailure>,
  tags: ReadonlyArray<string>
): Effect.Effect<void, CaseFailure> =>
  Effect.matchEffect(work, {
    onSuccess: () => failed(`${what} succeeded instead of failing with ${tags.join(" or ")}.`),
    onFailure: ({ detail, tag }) =>
      tags.includes(tag) && detail.length > 10
        ? Effect.void
        : failed(`${what} failed with ${tag} (${detail}) instead of ${tags.join(" or ")}.`)
  })
