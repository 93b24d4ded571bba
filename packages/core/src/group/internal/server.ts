// SPDX-License-Identifier: Apache-2.0
/**
 * Rank 0's end of a TCP group: listens, admits the other ranks, and runs the hub, of which rank 0 is a member too.
 *
 * Invariants
 * - Whatever arrives on a connection can end that connection only. An admitted rank whose connection ends is gone.
 * - Before the group is complete, a lost member may come again, and a peer that knows the token but disagrees about the
 *   job (size, rank) fails the rendezvous at once. Peers that do not know the token are turned away, and people learn of
 *   it by a warning at once, and by the failure if the rendezvous fails. Ending for them would let any stranger end a job.
 * - Closing the scope says so to the members, sends what is queued, and leaves no socket, server or timer.
 */
import { createServer, type Server } from "node:net"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as FiberSet from "effect/FiberSet"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import type { Rank } from "../../base/Ids.ts"
import type { ProcessGroupError } from "../../service/ProcessGroup.ts"
import { makeThrottle, orAfterRunningTime, ticking, tickMillisOf } from "../../service/RunningTime.ts"
import { inSeconds, sayWaiting, untilWords } from "../../service/sayWaiting.ts"
import type { Frame } from "../Frames.ts"
import { makeLobby } from "../Unproven.ts"
import { admit, Refused, type Standing } from "./admission.ts"
import { makeCalls } from "./calls.ts"
import { attach, type Connection } from "./connection.ts"
import { type Departure, formatMillis, formatRanks, rendezvousFailed } from "./errors.ts"
import { decodePost, failureText, frameType, makeArriveReader, resultOverhead } from "./frames.ts"
import type { Endpoint } from "./group.ts"
import { type CollectiveHub, makeHub } from "./hub.ts"
import { makeInbox } from "./inbox.ts"
import { makeMembers } from "./members.ts"
import { makeRefusals, plainText } from "./refusals.ts"
import { addressOf, closeGrace, type TcpSettings } from "./settings.ts"

/** Connections that have not proved themselves: all ranks may come at once, and strangers with them. */
const placesFor = (size: number): number => size + 64
/** Longest frames that a member may leave unread and still ask for more. */
const mostUnread = 4
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

/** Logs who waits for whom in collectives. */
const makeReminder = (hub: CollectiveHub): Effect.Effect<(now: number) => void> =>
  Effect.map(Effect.context<never>(), (context) => (now) => {
    for (const text of hub.remind(now)) Effect.runForkWith(context)(Effect.logInfo(text))
  })

/** Logs who has not joined. */
const sayMissing = <A, E>(joined: Effect.Effect<A, E>, settings: TcpSettings, missing: () => ReadonlyArray<Rank>) =>
  sayWaiting(
    joined,
    (millis) =>
      `Rank 0 has waited ${inSeconds(millis)} on ${addressOf(settings)} for ${formatRanks(missing())} to join${untilWords(settings.connectDeadline, millis)}.`
  )

export const serve = Effect.fnUntraced(function* (
  settings: TcpSettings,
  onListening: (port: number) => Effect.Effect<void>
): Effect.fn.Return<Endpoint, ProcessGroupError, EffectScope.Scope> {
  const { size, deadline } = settings
  const deadlineMillis = Duration.toMillis(deadline)
  const tickMillis = tickMillisOf(deadlineMillis)
  const grace = closeGrace(settings)
  const hub = makeHub({ deadlineMillis, maxTotalBytes: settings.maxFrameBytes - resultOverhead(size) })
  const calls = makeCalls()
  const inbox = makeInbox()
  const connections = new Set<Connection>()
  const lobby = makeLobby<Connection>(placesFor(size), (oldest) => oldest.destroy("others wait to prove themselves"))
  const members = makeMembers(calls, inbox)
  const { dispatch } = members
  const formed = yield* Deferred.make<void, ProcessGroupError>()
  const notes: Array<string> = []
  const refusals = makeRefusals()
  let isClosing = false
  let now = 0

  const note = (text: string): void => {
    notes.push(text)
    if (notes.length > maxNotes) notes.shift()
  }

  const complete = (): void => {
    members.announce()
    Deferred.doneUnsafe(formed, Effect.void)
  }

  /** The rendezvous fails only after the peer has got the reason: its failure ends all connections. */
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
        : " Anyone can connect, so rank 0 continues to wait; end the job if that was one of its ranks."
      return Effect.logWarning(`Rank 0 refused a connection from ${address}: ${detail} ${error.reason.remedy}${waits}`)
    })

  const lose = (rank: Rank, { kind, detail }: Departure): void => {
    dispatch(hub.leave(rank, { kind, detail }))
    members.lose(rank, { kind, detail })
  }

  /** Passes a member's frames to the hub until its connection ends. */
  const attend = (connection: Connection, rank: Rank): void => {
    let departure: Departure | undefined
    const readArrival = makeArriveReader(rank, size)
    const violation = (detail: string) => connection.destroy(`it broke the protocol, ${detail}`)
    const receive = ({ type, body }: Frame): void => {
      if (type === frameType.arrive) {
        const arrival = readArrival(body)
        if (Result.isFailure(arrival)) violation(arrival.failure)
        else if (connection.bytesQueued() > mostUnread * settings.maxFrameBytes) violation("it reads no results")
        else dispatch(hub.arrive({ rank, ...arrival.success }, now))
      } else if (type === frameType.post) {
        const sent = Result.getOrUndefined(readArrival(body))
        const read = sent?.payload instanceof Uint8Array ? decodePost(sent.payload) : undefined
        if (sent === undefined || read === undefined) violation("malformed post")
        else members.post(rank, sent.circle, read.to, read.payload.slice())
      } else if (type === frameType.progress) hub.progress(rank, now)
      else if (type === frameType.goodbye) departure = { kind: "left", detail: "it closed its group" }
      else violation(`unexpected frame of type ${type}`)
    }
    const closed = (detail: string): void => {
      const { kind, detail: why } = departure ?? { kind: "lost", detail }
      members.remove(rank)
      if (Deferred.isDoneUnsafe(formed)) lose(rank, { kind, detail: why })
      else note(`Rank ${rank} joined and was lost again: ${why}.`)
    }
    connection.listen({ receive, closed })
  }

  const standing: Standing = {
    size,
    isMember: (rank) => members.connections.has(rank),
    isFormed: () => Deferred.isDoneUnsafe(formed),
    join: (rank, connection) => {
      members.join(rank, connection)
      lobby.leave(connection)
      if (members.connections.size === size - 1) complete()
    }
  }

  const attendAll = (connection: Connection) =>
    admit(connection, settings, standing).pipe(
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
    if (isClosing) {
      socket.on("error", () => undefined)
      socket.destroy()
      return
    }
    const connection = attach(socket)
    connections.add(connection)
    lobby.enter(connection)
    socket.once("close", () => {
      connections.delete(connection)
      lobby.leave(connection)
    })
    run(attendAll(connection))
  })
  yield* Effect.addFinalizer(() =>
    Effect.gen(function* () {
      isClosing = true
      dispatch(hub.leave(0, { kind: "left", detail: "it closed its group" }))
      yield* members.part(grace)
      for (const connection of connections) connection.destroy("rank 0 closed its group")
    })
  )
  const port = yield* listen(server, settings)
  yield* onListening(port)

  const missing = () =>
    Array.from({ length: size - 1 }, (_, at) => at + 1).filter((rank) => !members.connections.has(rank))

  const remind = yield* makeReminder(hub)
  let ticks = 0
  const bytesSeen = new Map<Rank, number>()
  yield* Effect.forkScoped(
    ticking(tickMillis, (time) => {
      now = time
      // A member in the middle of a long payload is getting on.
      for (const [rank, connection] of members.connections) {
        const bytes = connection.bytesRead()
        if (bytes !== bytesSeen.get(rank)) hub.progress(rank, now)
        bytesSeen.set(rank, bytes)
      }
      dispatch(hub.expire(now))
      remind(now)
      if (++ticks % 5 === 0) members.beat(hub.waiting())
    })
  )

  if (size === 1) complete()
  yield* Deferred.await(formed).pipe(
    (joined) => sayMissing(joined, { ...settings, port }, missing),
    (joined) =>
      orAfterRunningTime(joined, {
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
      Effect.forEach(
        [...members.connections.values()],
        (connection) => refuse(connection, new Refused({ error, isFatal: true })),
        {
          concurrency: "unbounded",
          discard: true
        }
      )
    )
  )

  const mayBeat = makeThrottle(deadlineMillis / 10)
  return {
    rank: 0,
    size,
    deadline,
    exchange: (circle, label, payload) =>
      calls.make(label, (call) => dispatch(hub.arrive({ rank: 0, call, circle, label, payload }, now))),
    reportProgress: Effect.sync(() => {
      hub.progress(0, now)
      // Beats too, because rank 0 may be in work that keeps its timers from running.
      if (mayBeat()) members.beat(hub.waiting())
    }),
    post: (circle, to, payload) => members.post(0, circle, to, new Uint8Array(payload)),
    listen: inbox.listen
  }
})
