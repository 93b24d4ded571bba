// SPDX-License-Identifier: Apache-2.0
/**
 * The end of a TCP group at every rank but 0: one connection to rank 0's hub.
 *
 * Invariants
 * - A member that waits hears from the hub several times per deadline. One that hears nothing gives the hub up for good:
 *   the connection is broken, so that the hub learns it too and no rank goes on as if nothing had happened.
 * - After the connection ended, every call fails at once and names rank 0.
 */
import { connect } from "node:net"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import type * as EffectScope from "effect/Scope"
import type { Rank } from "../../base/Ids.ts"
import type { ProcessGroupError } from "../../service/ProcessGroup.ts"
import { makeThrottle, ticking, tickMillisOf, withinRunningTime } from "../../service/RunningTime.ts"
import { inSeconds, sayWaiting, untilWords } from "../../service/sayWaiting.ts"
import type { Frame } from "../Frames.ts"
import { makeCalls } from "./calls.ts"
import { attach, type Connection, ConnectionClosed } from "./connection.ts"
import { type Departure, deadlineExceeded, formatMillis, hubGaveUp, peerGone, rendezvousFailed } from "./errors.ts"
import {
  challenge,
  decodeFailure,
  decodeResult,
  encodeArrive,
  encodePost,
  failureText,
  frameType,
  goneBody,
  hello,
  makeArriveReader,
  proof
} from "./frames.ts"
import type { Endpoint } from "./group.ts"
import { equalProofs, freshNonce, proofOf, protocolName, protocolVersion } from "./handshake.ts"
import { makeInbox } from "./inbox.ts"
import { addressOf, closeGrace, type TcpSettings } from "./settings.ts"

/** One attempt to reach the hub. The connection is the caller's to destroy. */
const dial = ({ host, port }: TcpSettings): Effect.Effect<Connection, ConnectionClosed> =>
  Effect.callback((resume) => {
    const socket = connect({ host, port })
    const onError = (error: NodeJS.ErrnoException) =>
      resume(Effect.fail(new ConnectionClosed({ detail: error.code ?? error.message })))
    socket.on("error", onError)
    socket.once("connect", () => {
      socket.off("error", onError)
      resume(Effect.succeed(attach(socket)))
    })
    return Effect.sync(() => socket.destroy())
  })

const shakeHands = Effect.fnUntraced(function* (
  settings: TcpSettings,
  connection: Connection,
  onAdmitted: () => void
): Effect.fn.Return<void, ConnectionClosed | ProcessGroupError> {
  const { rank, size, token } = settings
  const failed = (detail: string, remedy: string) => rendezvousFailed(rank, [0], detail, remedy)
  const expect = <T>(type: number, decode: (body: Uint8Array) => Result.Result<T, string>) =>
    Effect.flatMap(connection.next, (frame: Frame): Effect.Effect<T, ProcessGroupError> => {
      if (frame.type === frameType.goodbye) {
        return Effect.fail(failed("Rank 0 left before the group was formed.", "Look at the output of rank 0."))
      }
      const isReject = frame.type === frameType.reject
      const decoded = isReject
        ? Result.flatMap(failureText.decode(frame.body), Result.fail)
        : frame.type === type
          ? decode(frame.body)
          : Result.fail(`unexpected frame of type ${frame.type}`)
      if (Result.isSuccess(decoded)) return Effect.succeed(decoded.success)
      return Effect.fail(
        typeof decoded.failure === "string"
          ? failed(
              `The process that listens on ${addressOf(settings)} sent no valid handshake: ${decoded.failure}.`,
              "Check MASTER_ADDR and TENSORFERRY_PORT, and run the same release on every rank."
            )
          : decoded.failure
      )
    })

  const claim = { protocol: protocolName, version: protocolVersion, size, rank, nonce: freshNonce() }
  connection.send(frameType.hello, hello.encode(claim))
  const { nonce } = yield* expect(frameType.challenge, challenge.decode)
  connection.send(frameType.proof, proof.encode({ code: proofOf(token, "member", claim, nonce) }))
  const { code } = yield* expect(frameType.welcome, proof.decode)
  if (!equalProofs(code, proofOf(token, "hub", claim, nonce))) {
    return yield* failed(
      `The process that listens on ${addressOf(settings)} does not know the token.`,
      "Set the same TENSORFERRY_TOKEN on every rank, and check MASTER_ADDR and TENSORFERRY_PORT."
    )
  }
  connection.setLimit(settings.maxFrameBytes)
  onAdmitted()
  yield* expect(frameType.ready, () => Result.succeed(undefined))
})

/** Tries until rank 0 has admitted this rank and the group is complete. */
const rendezvous = (settings: TcpSettings): Effect.Effect<Connection, ProcessGroupError> =>
  Effect.suspend(() => {
    let last = "no answer"
    const admitted = () => {
      last = "it was admitted, but not all others were; the output of rank 0 says which"
    }
    const attempt = Effect.uninterruptibleMask((restore) =>
      Effect.flatMap(restore(dial(settings)), (connection) =>
        restore(shakeHands(settings, connection, admitted)).pipe(
          Effect.onError(() => Effect.sync(() => connection.destroy("the handshake failed"))),
          Effect.as(connection)
        )
      )
    )
    const backoff = Schedule.min([Schedule.exponential("10 millis", 1.5), Schedule.spaced("500 millis")])
    return attempt.pipe(
      Effect.tapErrorTag("ConnectionClosed", ({ detail }) =>
        Effect.sync(() => {
          last = detail
        })
      ),
      Effect.retry({ while: (error) => error._tag === "ConnectionClosed", schedule: Schedule.jittered(backoff) }),
      (attempts) => withinRunningTime(attempts, settings.connectDeadline),
      (attempts) =>
        sayWaiting(
          attempts,
          (millis) =>
            `Rank ${settings.rank} has waited ${inSeconds(millis)} to join rank 0 on ${addressOf(settings)} (${last})${untilWords(settings.connectDeadline, millis)}.`
        ),
      Effect.flatMap(Effect.fromOption),
      Effect.mapError((error) =>
        error._tag === "ProcessGroupError"
          ? error
          : rendezvousFailed(
              settings.rank,
              [0],
              `Rank ${settings.rank} could not form a group with rank 0 on ${addressOf(settings)} within ${formatMillis(Duration.toMillis(settings.connectDeadline))}: ${last}.`,
              "Start every rank, rank 0 too, with the same MASTER_ADDR and TENSORFERRY_PORT."
            )
      )
    )
  })

export const join = Effect.fnUntraced(function* (
  settings: TcpSettings
): Effect.fn.Return<Endpoint, ProcessGroupError, EffectScope.Scope> {
  const { rank, size, deadline } = settings
  const deadlineMillis = Duration.toMillis(deadline)
  const calls = makeCalls()
  const inbox = makeInbox()
  const readPost = makeArriveReader(rank, size)
  /** What every call fails with from now on. */
  let gone: ((label: string) => ProcessGroupError) | undefined
  let hubLeft = false
  let farewell: ProcessGroupError | undefined
  let now = 0
  let heardAt = 0

  const end = (who: Rank, departure: Departure): void => {
    const cause = farewell
    gone ??= (label) => (cause === undefined ? peerGone([[who, departure]], label) : hubGaveUp(cause, label))(rank)
    calls.failAll(gone)
    // Without rank 0, nobody can be reached.
    for (let other = 0; other < size; other++) if (other !== rank) inbox.lose(other)
  }

  const connection = yield* Effect.acquireRelease(
    rendezvous(settings),
    (connection) =>
      Effect.suspend(() => {
        connection.send(frameType.goodbye)
        return connection.close(closeGrace(settings))
      }),
    { interruptible: true }
  )

  const receive = ({ type, body }: Frame): void => {
    const violation = (detail: string) => connection.destroy(`it broke the protocol, ${detail}`)
    if (type === frameType.result) {
      const result = decodeResult(body)
      if (Result.isFailure(result)) violation(result.failure)
      else calls.settle(result.success.call, Result.succeed(result.success.payloads))
    } else if (type === frameType.failure) {
      const failure = decodeFailure(body)
      if (Result.isFailure(failure)) violation(failure.failure)
      else calls.settle(failure.success.call, Result.fail(failure.success.error))
    } else if (type === frameType.goodbye) {
      hubLeft = true
      if (body.length > 0) farewell = Result.getOrUndefined(failureText.decode(body))
    } else if (type === frameType.post) {
      const sent = readPost(body)
      if (Result.isFailure(sent)) violation(sent.failure)
      else if (sent.success.payload instanceof Uint8Array) {
        inbox.put(sent.success.circle, sent.success.call, sent.success.payload.slice())
      }
    } else if (type === frameType.gone) {
      const lost = goneBody.decode(body)
      if (Result.isFailure(lost)) violation(lost.failure)
      else inbox.lose(lost.success.rank)
    } else if (type !== frameType.beat) violation(`unexpected frame of type ${type}`)
  }
  connection.listen({
    receive,
    closed: (detail) => end(0, hubLeft ? { kind: "left", detail: "it closed its group" } : { kind: "lost", detail })
  })

  const giveUp = (): void => {
    const missing = [{ rank: 0, waitsIn: undefined }]
    const silent = {
      kind: "lost",
      detail: `it sent nothing for ${formatMillis(deadlineMillis)}`
    } as const
    gone = (label) => peerGone([[0, silent]], label)(rank)
    calls.failAll((label) => deadlineExceeded(missing, [0, rank], label, deadlineMillis)(rank))
    connection.destroy("rank 0 sent nothing before the deadline")
  }
  let bytesHeard = 0
  yield* Effect.forkScoped(
    ticking(tickMillisOf(deadlineMillis), (time) => {
      now = time
      const bytes = connection.bytesRead()
      if (bytes !== bytesHeard || calls.isEmpty()) heardAt = now
      bytesHeard = bytes
      if (gone === undefined && now - heardAt >= deadlineMillis) giveUp()
    })
  )
  yield* Effect.addFinalizer(() => Effect.sync(() => end(rank, { kind: "left", detail: "it closed its group" })))

  const mayReport = makeThrottle(deadlineMillis / 10)
  return {
    rank,
    size,
    deadline,
    exchange: (circle, label, payload) =>
      Effect.suspend(() => {
        if (gone !== undefined) return Effect.fail(gone(label))
        if (calls.isEmpty()) heardAt = now
        return calls.make(label, (call) => {
          const whole = encodeArrive({ call, circle, label, payload })
          const bytes = whole.reduce((sum, part) => sum + part.byteLength, 0)
          const refusal = `A message of ${bytes} bytes exceeds the limit of ${settings.maxFrameBytes}.`
          const parts =
            bytes > settings.maxFrameBytes ? encodeArrive({ call, circle, label, payload: { refusal } }) : whole
          connection.send(frameType.arrive, ...parts)
        })
      }),
    reportProgress: Effect.sync(() => {
      if (mayReport()) connection.send(frameType.progress)
    }),
    post: (circle, to, payload) =>
      connection.send(
        frameType.post,
        ...encodeArrive({ call: rank, circle, label: "", payload: encodePost(to, payload) })
      ),
    listen: inbox.listen
  }
})
