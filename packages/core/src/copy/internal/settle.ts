// SPDX-License-Identifier: Apache-2.0
/** How all ranks settle whether a step of a run went well. */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { CopyError } from "../../service/CopyService.ts"
import { nearerCause } from "../CopyFailures.ts"
import { agreeOnOutcome, type RunCollectives } from "./handshake.ts"
import type { CopyMachine } from "./machine.ts"
import { isOver } from "./runState.ts"

/** What a step gave here, unless it failed anywhere: then the failure that is behind it, the same on every rank. */
export const settle = <A>(
  collectives: RunCollectives,
  machine: CopyMachine,
  label: "copy staging" | "copy prepare" | "copy outcome",
  done: Result.Result<A, CopyError>,
  /** Whether a failure says only that another rank gave up. */
  isEcho: (failure: CopyError) => boolean = () => false
): Effect.Effect<A, CopyError> =>
  Effect.gen(function* () {
    const own = Result.isFailure(done) ? done.failure : undefined
    const settled = yield* Effect.result(agreeOnOutcome(collectives, label, own, own !== undefined && isEcho(own)))
    if (Result.isFailure(settled)) {
      return yield* isOver(machine.state()) ? settled.failure : nearerCause(own, settled.failure)
    }
    if (settled.success !== undefined) return yield* settled.success
    return yield* Effect.fromResult(done)
  })
