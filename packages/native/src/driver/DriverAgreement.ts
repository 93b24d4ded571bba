// SPDX-License-Identifier: Apache-2.0
/**
 * Steps of a preparation that all ranks take together.
 *
 * Invariant: every rank reports how it fared, whatever failed before, and the first failure in the order of ranks is the
 * failure of all. So no rank waits for one that has given up.
 */
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Checked, DriverErrors } from "./DriverErrors.ts"
import { decodeDone, encodeOutcome, type Outcome } from "./Outcome.ts"

/** Reads what one rank reported. A failure is in words: the bytes are damaged. */
export type DecodeOutcome<A> = (bytes: Uint8Array) => Result.Result<Outcome<A>, string>

/** The collectives of one driver. Each is called by every rank, in the same order. */
export interface DriverAgreement {
  /** What every rank gives under a label, by rank. */
  readonly gather: (label: string, payload: Uint8Array) => Effect.Effect<ReadonlyArray<Uint8Array>, CopyDriverError>
  /** The values among payloads of all ranks, or the first failure among them. */
  readonly read: <A>(payloads: ReadonlyArray<Uint8Array>, decode: DecodeOutcome<A>) => Checked<ReadonlyArray<A>>
  /** Reports how this rank fared, and gives what all ranks reported. `encode` is JSON unless given. */
  readonly agree: <A>(
    label: string,
    own: Checked<A>,
    decode: DecodeOutcome<A>,
    encode?: (outcome: Outcome<A>) => Uint8Array
  ) => Effect.Effect<ReadonlyArray<A>, CopyDriverError>
  /** Reports only whether this rank's step went well, and gives the step's own value where it did so on all ranks. */
  readonly settle: <A>(label: string, own: Checked<A>) => Effect.Effect<A, CopyDriverError>
  /**
   * What rank 0 makes, on all ranks; where it fails, rank 0 ends with its own failure and the others with `absence`.
   * Other ranks do not run `make`.
   */
  readonly fromRoot: (
    label: string,
    make: () => Checked<Uint8Array>,
    absence: { readonly detail: string; readonly op: string; readonly byteLength?: number }
  ) => Effect.Effect<Uint8Array, CopyDriverError>
}

/** The agreement of a group's ranks; `op` is the operation that its failures name. */
export const makeDriverAgreement = (group: ProcessGroupShape, errors: DriverErrors, op?: string): DriverAgreement => {
  const nameOf = (label: string) => `${errors.backend}/${label}`

  const gather: DriverAgreement["gather"] = (label, payload) =>
    Effect.mapError(group.allGather(nameOf(label), payload), (error) => errors.ofGroup(error, op))

  const read: DriverAgreement["read"] = (payloads, decode) => {
    const values = []
    for (const [peer, payload] of payloads.entries()) {
      const decoded = decode(payload)
      if (Result.isFailure(decoded)) return Result.fail(errors.fail("InvalidProgram", decoded.failure, { peer, op }))
      if (decoded.success._tag === "Failed") return Result.fail(errors.reported(decoded.success.reason))
      values.push(decoded.success.value)
    }
    return Result.succeed(values)
  }

  const agree: DriverAgreement["agree"] = (label, own, decode, encode = encodeOutcome) =>
    Effect.flatMap(
      gather(
        label,
        encode(
          Result.isFailure(own) ? { _tag: "Failed", reason: own.failure.reason } : { _tag: "Done", value: own.success }
        )
      ),
      (payloads) => Effect.fromResult(read(payloads, decode))
    )

  return {
    gather,
    read,
    agree,
    settle: (label, own) => {
      const ended = Result.map(own, () => null)
      return Effect.andThen(agree(label, ended, decodeDone), Effect.fromResult(own))
    },
    fromRoot: (label, make, { detail, op: during, byteLength }) =>
      Effect.gen(function* () {
        const made = group.rank === 0 ? make() : undefined
        const own = made !== undefined && Result.isSuccess(made) ? made.success : new Uint8Array(0)
        const shared = yield* Effect.mapError(group.broadcast(nameOf(label), 0, own), (error) =>
          errors.ofGroup(error, during)
        )
        if (byteLength === undefined ? shared.length > 0 : shared.length === byteLength) return shared
        return yield* made !== undefined && Result.isFailure(made)
          ? made.failure
          : errors.fail("TransportFailed", detail, { peer: 0, op: during, scope: "service" })
      })
  }
}
