/**
 * Rank 0's end of a TCP group: listens, admits the other ranks, and runs the hub, of which rank 0 is a member too.
 *
 * Invariants
 * - Whatever arrives on a connection can end that connection only. An admitted rank whose connection ends is gone.
 * - Before the group is complete, a lost member may come again, and a peer that knows the token but disagrees about the
 *   job (size, rank) fails the rendezvous at once. Peers that do not know the token are turned away, and people are told:
 *   by a warning at once, and by the failure if the rendezvous fails. Ending for them would let any stranger end a job.
 * - Closing the scope tells the members, sends what is queued, and leaves no socket, server or timer.
 */
import { createServer, type Server } from "node:net"
import * as Data from "effect/Data"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as FiberSet from "effect/FiberSet"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import type { Rank } from "../../base/Ids.ts"
import type { ProcessGroupError } from "../../service/ProcessGroup.ts"
import { makeCalls } from "./calls.ts"
import { attach, type Connection } from "./connection.ts"
import { type Departure, formatMillis, formatRanks, rendezvousFailed } from "./errors.ts"
import {
  challenge,
  encodeFailure,
  type Frame,
  failureText,
  frameType,
  hello,
  makeArriveReader,
  proof,
  resultEncoder,
  resultOverhead
} from "./frames.ts"
import type { Endpoint } from "./group.ts"
import { equalProofs, freshNonce, proofOf, protocolName, protocolVersion } from "./handshake.ts"
import { type Delivery, makeHub } from "./hub.ts"
import { makeRefusals, plainText } from "./refusals.ts"
import { addressOf, closeGrace, type TcpSettings } from "./settings.ts"
import { makeThrottle, ticking, tickMillisOf } from "./ticker.ts"

/** A peer that is turned away, and what it is told. */
class Refused extends Data.TaggedError("Refused")<{ readonly error: ProcessGroupError; readonly isFatal: boolean }> {}

const unauthenticatedTime = "10 seconds"
const maxConnections = (size: number): number => 2 * size + 64
/** The losses that a failed rendezvous mentions. */
const maxNotes = 8

const listen = (server: Server, settings: TcpSettings): Effect.Effect<number, ProcessGroupError> =>
  Effect.callback((resume) => {
    server.on("error", (error: NodeJS.ErrnoException) =>
      resume(
        Effect.fail(
          rendezvousFailed(
            0,
            [0],
            `Rank 0 cannot listen on ${addressOf(settings)}: ${error.code ?? error.message}.`,
            error.code === "EADDRINUSE"
              ? "Choose another port (TENSORFERRY_PORT) on every rank."
              : "Give an address of this machine (MASTER_ADDR) and a free port (TENSORFERRY_PORT)."
          )
        )
      )
    )
    server.listen({ host: settings.host, port: settings.port }, () => {
      const address = server.address()
      resume(Effect.succeed(address !== null && typeof address === "object" ? address.port : settings.port))
    })
  })

const stop = (server: Server): Effect.Effect<void> =>
  Effect.callback((resume) => {
    server.close(() => resume(Effect.void))
  })

export const serve = Effect.fnUntraced(function* (
  settings: TcpSettings,
  onListening: (port: number) => Effect.Effect<void>
): Effect.fn.Return<Endpoint, ProcessGroupError, EffectScope.Scope> {
  const { size, token, deadline } = settings
  const deadlineMillis = Duration.toMillis(deadline)
  const tickMillis = tickMillisOf(deadlineMillis)
  const grace = closeGrace(settings)
  const hub = makeHub({ deadlineMillis, maxTotalBytes: settings.maxFrameBytes - resultOverhead(size) })
  const calls = makeCalls()
  const connections = new Set<Connection>()
  const members = new Map<Rank, Connection>()
  const formed = yield* Deferred.make<void, ProcessGroupError>()
  const notes: Array<string> = []
  const refusals = makeRefusals()
  let isClosing = false
  let now = 0
  /** Why rank 0 leaves, most likely: members that did not wait at the time learn it from the goodbye. */
  let firstFailure: ProcessGroupError | undefined

  const note = (text: string): void => {
    notes.push(text)
    if (notes.length > maxNotes) notes.shift()
  }

  const dispatch = (deliveries: ReadonlyArray<Delivery>): void => {
    let shared: ReadonlyArray<Uint8Array> | undefined
    let encode = resultEncoder([])
    for (const { rank, call, result } of deliveries) {
      if (Result.isSuccess(result)) {
        const member = members.get(rank)
        if (member === undefined) continue
        if (shared !== result.success) encode = resultEncoder(result.success)
        shared = result.success
        member.send(frameType.result, ...encode(call))
      } else {
        firstFailure ??= result.failure
        members.get(rank)?.send(frameType.failure, ...encodeFailure(call, result.failure))
      }
    }
    // Rank 0 comes last: its fiber goes on at once, and may end the group before the others were told.
    for (const { rank, call, result } of deliveries) {
      if (rank !== 0) continue
      // Copies: what rank 0 does with its result must not change bytes that are still on their way to others.
      calls.settle(
        call,
        Result.map(result, (payloads) => payloads.map((payload) => new Uint8Array(payload)))
      )
    }
  }

  /** Tells waiting members that the hub lives. Those that do not read get no more. */
  const beat = (): void => {
    for (const rank of hub.waiting()) {
      const connection = members.get(rank)
      if (connection !== undefined && connection.bytesQueued() === 0) connection.send(frameType.beat)
    }
  }

  const refusal = (about: ReadonlyArray<Rank>, isFatal: boolean, detail: string, remedy: string) =>
    Effect.fail(new Refused({ error: rendezvousFailed(0, about, detail, remedy), isFatal }))

  const expect = <T>(connection: Connection, type: number, decode: (body: Uint8Array) => Result.Result<T, string>) =>
    Effect.flatMap(connection.next, (frame: Frame) => {
      const decoded = frame.type === type ? decode(frame.body) : Result.fail(`unexpected frame of type ${frame.type}`)
      return Result.isSuccess(decoded)
        ? Effect.succeed(decoded.success)
        : refusal(
            [],
            false,
            `A peer sent no valid handshake: ${decoded.failure}.`,
            "Run the same release on every rank."
          )
    })

  /** Ends with the rank that has joined. */
  const admit = Effect.fnUntraced(function* (connection: Connection) {
    const claim = yield* expect(connection, frameType.hello, hello.decode)
    const { rank } = claim
    if (claim.protocol !== protocolName || claim.version !== protocolVersion) {
      return yield* refusal(
        [rank],
        false,
        `Rank ${rank} speaks ${claim.protocol} version ${claim.version}, rank 0 ${protocolName} version ${protocolVersion}.`,
        "Run the same release on every rank."
      )
    }
    const nonce = freshNonce()
    connection.send(frameType.challenge, challenge.encode({ nonce }))
    const { code } = yield* expect(connection, frameType.proof, proof.decode)
    if (!equalProofs(code, proofOf(token, "member", claim, nonce))) {
      return yield* refusal(
        [rank],
        false,
        `The tokens of rank ${rank} and rank 0 differ.`,
        "Set the same TENSORFERRY_TOKEN on every rank."
      )
    }
    if (claim.size !== size || rank === 0 || rank >= size) {
      return yield* refusal(
        [rank],
        true,
        `Rank ${rank} of ${claim.size} tried to join a group of ${size}.`,
        "Start every rank with the same WORLD_SIZE and a RANK below it."
      )
    }
    if (members.has(rank)) {
      return yield* refusal(
        [rank],
        true,
        `Two processes claim rank ${rank}.`,
        "Give every process a RANK of its own, and every job a port of its own (TENSORFERRY_PORT)."
      )
    }
    if (Deferred.isDoneUnsafe(formed)) {
      return yield* refusal(
        [rank],
        true,
        `The group is formed, rank ${rank} cannot join any more.`,
        "Start the job again."
      )
    }
    connection.setLimit(settings.maxFrameBytes)
    connection.send(frameType.welcome, proof.encode({ code: proofOf(token, "hub", claim, nonce) }))
    members.set(rank, connection)
    if (members.size === size - 1) complete()
    return rank
  })

  const complete = (): void => {
    for (const connection of members.values()) connection.send(frameType.ready)
    Deferred.doneUnsafe(formed, Effect.void)
  }

  /** The rendezvous fails only after the peer was told: its failure ends all connections. */
  const refuse = (connection: Connection, { error, isFatal }: Refused) =>
    Effect.gen(function* () {
      connection.send(frameType.reject, failureText.encode(error))
      yield* connection.close(grace)
      if (isFatal) yield* Deferred.fail(formed, error)
    })

  /** Whoever waits for the others learns at once that one of them may have been turned away. */
  const warn = (address: string, { error, isFatal }: Refused): Effect.Effect<void> =>
    Effect.suspend(() => {
      const detail = plainText(error.reason.detail)
      if (isFatal || !refusals.add(address, detail)) return Effect.void
      const waits = Deferred.isDoneUnsafe(formed)
        ? ""
        : " Anyone can connect, so rank 0 waits on; end the job if that was one of its ranks."
      return Effect.logWarning(`Rank 0 refused a connection from ${address}: ${detail} ${error.reason.remedy}${waits}`)
    })

  /** Passes a member's frames to the hub until its connection ends. */
  const attend = (connection: Connection, rank: Rank): void => {
    let departure: Departure | undefined
    const readArrival = makeArriveReader(rank, size)
    const violation = (detail: string) => connection.destroy(`it broke the protocol, ${detail}`)
    const receive = ({ type, body }: Frame): void => {
      if (type === frameType.arrive) {
        const arrival = readArrival(body)
        if (Result.isFailure(arrival)) violation(arrival.failure)
        else dispatch(hub.arrive({ rank, ...arrival.success }, now))
      } else if (type === frameType.progress) hub.progress(rank, now)
      else if (type === frameType.goodbye) departure = { kind: "left", detail: "it closed its group" }
      else violation(`unexpected frame of type ${type}`)
    }
    const closed = (detail: string): void => {
      const { kind, detail: why } = departure ?? { kind: "lost", detail }
      members.delete(rank)
      if (Deferred.isDoneUnsafe(formed)) dispatch(hub.leave(rank, { kind, detail: why }))
      else note(`Rank ${rank} joined and was lost again: ${why}.`)
    }
    connection.listen({ receive, closed })
  }

  const attendAll = (connection: Connection) =>
    admit(connection).pipe(
      Effect.timeoutOrElse({
        duration: unauthenticatedTime,
        orElse: () => refusal([], false, "A peer did not finish its handshake.", "Run the same release on every rank.")
      }),
      Effect.map((rank) => attend(connection, rank)),
      Effect.catchTags({
        Refused: (refused) => Effect.andThen(warn(connection.peer, refused), refuse(connection, refused)),
        ConnectionClosed: () => Effect.void
      })
    )

  const server = yield* Effect.acquireRelease(
    Effect.sync(() => createServer()),
    stop
  )
  const run = yield* FiberSet.makeRuntime()
  server.on("connection", (socket) => {
    if (isClosing || connections.size >= maxConnections(size)) {
      socket.on("error", () => undefined)
      socket.destroy()
      return
    }
    const connection = attach(socket)
    connections.add(connection)
    socket.once("close", () => connections.delete(connection))
    run(attendAll(connection))
  })
  yield* Effect.addFinalizer(() =>
    Effect.gen(function* () {
      isClosing = true
      const farewell = firstFailure === undefined ? [] : [failureText.encode(firstFailure)]
      dispatch(hub.leave(0, { kind: "left", detail: "it closed its group" }))
      for (const connection of members.values()) connection.send(frameType.goodbye, ...farewell)
      yield* Effect.forEach([...members.values()], (connection) => connection.close(grace), {
        concurrency: "unbounded",
        discard: true
      })
      for (const connection of connections) connection.destroy("rank 0 closed its group")
    })
  )
  yield* Effect.flatMap(listen(server, settings), onListening)

  let ticks = 0
  const bytesSeen = new Map<Rank, number>()
  yield* Effect.forkScoped(
    ticking(tickMillis, (time) => {
      now = time
      // A member in the middle of a long payload is getting on.
      for (const [rank, connection] of members) {
        const bytes = connection.bytesRead()
        if (bytes !== bytesSeen.get(rank)) hub.progress(rank, now)
        bytesSeen.set(rank, bytes)
      }
      dispatch(hub.expire(now))
      if (++ticks % 5 === 0) beat()
    })
  )

  if (size === 1) complete()
  const missing = () => Array.from({ length: size - 1 }, (_, at) => at + 1).filter((rank) => !members.has(rank))
  yield* Deferred.await(formed).pipe(
    Effect.timeoutOrElse({
      duration: settings.connectDeadline,
      orElse: () =>
        Effect.fail(
          rendezvousFailed(
            0,
            missing(),
            `Of a group of ${size}, ${formatRanks(missing())} did not join within ${formatMillis(Duration.toMillis(settings.connectDeadline))}.${notes.map((text) => ` ${text}`).join("")}${refusals.text()}`,
            "Start every rank, with the same MASTER_ADDR, TENSORFERRY_PORT and TENSORFERRY_TOKEN."
          )
        )
    }),
    Effect.tapError((error) =>
      Effect.forEach([...members.values()], (connection) => refuse(connection, new Refused({ error, isFatal: true })), {
        concurrency: "unbounded",
        discard: true
      })
    )
  )

  const mayBeat = makeThrottle(deadlineMillis / 10)
  return {
    rank: 0,
    size,
    deadline,
    exchange: (ranks, label, payload) =>
      calls.make(label, (call) => dispatch(hub.arrive({ rank: 0, call, members: ranks, label, payload }, now))),
    reportProgress: Effect.sync(() => {
      hub.progress(0, now)
      // Beats too, because rank 0 may be in work that keeps its timers from running.
      if (mayBeat()) beat()
    })
  }
})
