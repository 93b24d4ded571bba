// SPDX-License-Identifier: Apache-2.0
/**
 * Who may join a TCP group: the handshake of one connection, up to the rank that has joined or the reason why it has not.
 *
 * Invariant: a peer learns nothing of the group, and changes nothing of it, before it has proved that it knows the token.
 */
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Rank } from "../../base/Ids.ts"
import type { ProcessGroupError } from "../../service/ProcessGroup.ts"
import type { Frame } from "../Frames.ts"
import { handshakeTime } from "../Unproven.ts"
import type { Connection } from "./connection.ts"
import { rendezvousFailed } from "./errors.ts"
import { challenge, frameType, hello, proof } from "./frames.ts"
import { equalProofs, freshNonce, proofOf, protocolName, protocolVersion } from "./handshake.ts"
import type { TcpSettings } from "./settings.ts"

/** A peer that is turned away, and the reason that it gets. */
export class Refused extends Data.TaggedError("Refused")<{
  readonly error: ProcessGroupError
  readonly isFatal: boolean
}> {}

const refused = (about: ReadonlyArray<Rank>, isFatal: boolean, detail: string, remedy: string): Refused =>
  new Refused({ error: rendezvousFailed(0, about, detail, remedy), isFatal })

/** What an authenticated peer is judged by, and joins. */
export interface Standing {
  readonly size: number
  readonly isMember: (rank: Rank) => boolean
  readonly isFormed: () => boolean
  /** Called at once after the judgement: no second peer is judged in between. */
  readonly join: (rank: Rank, connection: Connection) => void
}

/** Why a peer that knows the token cannot join all the same. It is of this job, so the rendezvous fails with it. */
const misfit = (claim: { readonly rank: Rank; readonly size: number }, standing: Standing): Refused | undefined => {
  const { rank } = claim
  const { size } = standing
  if (claim.size !== size || rank === 0 || rank >= size) {
    return refused(
      [rank],
      true,
      `Rank ${rank} of ${claim.size} tried to join a group of ${size}.`,
      "Start every rank with the same WORLD_SIZE and a RANK below it."
    )
  }
  if (standing.isMember(rank)) {
    return refused(
      [rank],
      true,
      `Two processes claim rank ${rank}.`,
      "Give every process a RANK of its own, and every job a port of its own (TENSORFERRY_PORT)."
    )
  }
  return standing.isFormed()
    ? refused([rank], true, `The group is formed, rank ${rank} cannot join any more.`, "Start the job again.")
    : undefined
}

const expect = <T>(connection: Connection, type: number, decode: (body: Uint8Array) => Result.Result<T, string>) =>
  Effect.flatMap(connection.next, (frame: Frame) => {
    const decoded = frame.type === type ? decode(frame.body) : Result.fail(`unexpected frame of type ${frame.type}`)
    return Result.isSuccess(decoded)
      ? Effect.succeed(decoded.success)
      : Effect.fail(
          refused(
            [],
            false,
            `A peer sent no valid handshake: ${decoded.failure}.`,
            "Run the same release on every rank."
          )
        )
  })

/** Ends with the rank that has joined. */
const welcome = Effect.fnUntraced(function* (
  connection: Connection,
  { token, maxFrameBytes }: TcpSettings,
  standing: Standing
) {
  const claim = yield* expect(connection, frameType.hello, hello.decode)
  const { rank } = claim
  if (claim.protocol !== protocolName || claim.version !== protocolVersion) {
    return yield* refused(
      [rank],
      false,
      `Rank ${rank} speaks ${claim.protocol.slice(0, 80)} version ${claim.version}, rank 0 ${protocolName} version ${protocolVersion}.`,
      "Run the same release on every rank."
    )
  }
  const nonce = freshNonce()
  connection.send(frameType.challenge, challenge.encode({ nonce }))
  const { code } = yield* expect(connection, frameType.proof, proof.decode)
  if (!equalProofs(code, proofOf(token, "member", claim, nonce))) {
    return yield* refused(
      [rank],
      false,
      `The tokens of rank ${rank} and rank 0 differ.`,
      "Set the same TENSORFERRY_TOKEN on every rank."
    )
  }
  const fault = misfit(claim, standing)
  if (fault !== undefined) return yield* fault
  connection.setLimit(maxFrameBytes)
  connection.send(frameType.welcome, proof.encode({ code: proofOf(token, "hub", claim, nonce) }))
  standing.join(rank, connection)
  return rank
})

/** Admits a peer, or fails with what it is refused for; a peer that does not finish its handshake is refused too. */
export const admit = (connection: Connection, settings: TcpSettings, standing: Standing) =>
  Effect.timeoutOrElse(welcome(connection, settings, standing), {
    duration: handshakeTime,
    orElse: () =>
      Effect.fail(refused([], false, "A peer did not finish its handshake.", "Run the same release on every rank."))
  })
