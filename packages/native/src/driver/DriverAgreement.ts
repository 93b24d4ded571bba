/**
 * Steps of a preparation that all ranks take together: each tells how it fared, and the first failure told is everybody's.
 */
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Checked, DriverErrors } from "./DriverErrors.ts"
import { encodeOutcome, type Outcome } from "./Outcome.ts"

type Decode<A> = (bytes: Uint8Array) => Result.Result<Outcome<A>, string>

export const makeAgreement = (group: ProcessGroupShape, backend: string, errors: DriverErrors) => {
  const gather = (label: string, payload: Uint8Array): Effect.Effect<ReadonlyArray<Uint8Array>, CopyDriverError> =>
    Effect.mapError(group.allGather(`${backend}/${label}`, payload), (error) => errors.ofGroup(error, "prepare"))

  /** What each rank told, by rank. */
  const read = <A>(payloads: ReadonlyArray<Uint8Array>, decode: Decode<A>): Checked<ReadonlyArray<A>> => {
    const values: Array<A> = []
    for (const [peer, payload] of payloads.entries()) {
      const decoded = decode(payload)
      if (Result.isFailure(decoded)) {
        return Result.fail(errors.fail("InvalidProgram", decoded.failure, { peer, op: "prepare" }))
      }
      if (decoded.success._tag === "Failed") {
        return Result.fail(errors.told(decoded.success.reason))
      }
      values.push(decoded.success.value)
    }
    return Result.succeed(values)
  }

  return {
    gather,
    read,
    /** Tells how this rank fared and gives what the others told; fails with the first failure of any. */
    agree: <A>(label: string, own: Checked<A>, decode: Decode<A>): Effect.Effect<ReadonlyArray<A>, CopyDriverError> => {
      const outcome: Outcome<A> = Result.isFailure(own)
        ? { _tag: "Failed", reason: own.failure.reason }
        : { _tag: "Done", value: own.success }
      return Effect.flatMap(gather(label, encodeOutcome(outcome)), (payloads) =>
        Effect.fromResult(read(payloads, decode))
      )
    }
  }
}

export type Agreement = ReturnType<typeof makeAgreement>
