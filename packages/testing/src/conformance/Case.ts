// SPDX-License-Identifier: Apache-2.0
/**
 * What a conformance case is: a name, what it needs, and an Effect that fails where the contract is broken. Cases know no
 * test runner; whoever runs them turns the outcome into a result.
 */

import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { CopyDriver, CopyDriverCapabilities, CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { CopyError, CopyService } from "@tensorferry/core/service/CopyService"
import type { ProcessGroup, ProcessGroupError } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngine, TensorEngineCapabilities, TensorError } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as EffectScope from "effect/Scope"

/** The contract is broken: what was done, what came, what should have come. */
export class CaseFailure extends Schema.TaggedError<CaseFailure>()("CaseFailure", { detail: Schema.String }) {
  override get message(): string {
    return this.detail
  }
}

/** How a case may fail: by its own judgement, or by an operation that should have worked. */
export type CaseError = CaseFailure | TensorError | CopyError | CopyDriverError | ProcessGroupError

/** What a descriptor states about its services. */
export type Stated = Pick<BackendDescriptor["capabilities"], "copyDriver" | "tensorEngine">

/** Why a case does not apply to something with these capabilities, and these stated; undefined where it does. */
export type Requirement<Capabilities> = (capabilities: Capabilities, stated: Stated) => string | undefined

/** One thing that every engine must do, or refuse. */
export interface TensorEngineCase {
  /** Unique among all cases. */
  readonly name: string
  /** Capabilities without which the case is skipped. */
  readonly requires?: Requirement<TensorEngineCapabilities>
  /** Fails where the contract is broken. */
  readonly program: Effect.Effect<void, CaseError, TensorEngine | EffectScope.Scope>
}

interface RankCase<Services> {
  readonly name: string
  /** Ranks that take part; each runs `program` with its own rank. */
  readonly size: number
  readonly requires?: Requirement<CopyDriverCapabilities>
  readonly program: (rank: Rank) => Effect.Effect<void, CaseError, Services>
}

/** Services that a rank of a copy case has. */
export type CopyCaseServices = CopyService | TensorEngine | ProcessGroup | EffectScope.Scope

/** One thing that every copy service must do, or refuse. */
export interface CopyCase extends RankCase<CopyCaseServices> {}

/** Services that a rank of a driver case has. */
export type CopyDriverCaseServices = CopyDriver | TensorEngine | ProcessGroup | EffectScope.Scope

/** One thing that every copy driver must do without the service above it. */
export interface CopyDriverCase extends RankCase<CopyDriverCaseServices> {}

/** Fails the case with this sentence. */
export const failed = (detail: string): Effect.Effect<never, CaseFailure> => Effect.fail(new CaseFailure({ detail }))

/** Fails the case unless something is right; `detail` says what was wrong, and is called only then. */
export const check = (isRight: boolean, detail: () => string): Effect.Effect<void, CaseFailure> =>
  isRight ? Effect.void : Effect.suspend(() => failed(detail()))

/** Fails the case unless the values are the same; `what` names them in the sentence. */
export const checkEqual = <A extends string | number | boolean | undefined>(
  what: string,
  actual: A,
  expected: A
): Effect.Effect<void, CaseFailure> =>
  check(actual === expected, () => `${what} is ${String(actual)} instead of ${String(expected)}.`)

/** An error of a service, as far as cases look at it. */
interface Reasoned {
  readonly _tag: string
  readonly message: string
  readonly reason: { readonly _tag: string }
}

/** Runs what must fail, with one of these reasons; gives the error. */
export const expectFailure = <A, E extends Reasoned, R>(
  what: string,
  effect: Effect.Effect<A, E, R>,
  reasons: ReadonlyArray<E["reason"]["_tag"]>
): Effect.Effect<E, CaseFailure, R> =>
  Effect.matchEffect(effect, {
    onSuccess: () => failed(`${what} succeeded; it must fail with ${reasons.join(" or ")}.`),
    onFailure: (error) =>
      Effect.as(
        check(
          reasons.includes(error.reason._tag),
          () => `${what} failed with ${error.message} It must fail with ${reasons.join(" or ")}.`
        ),
        error
      )
  })
