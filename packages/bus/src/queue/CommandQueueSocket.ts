// SPDX-License-Identifier: Apache-2.0
/**
 * A command queue behind a Unix socket: clients send commands over a connection, and get the reply to each over it.
 * `docs/agent-socket.md` writes down what is spoken.
 *
 * A command that waits is a place in a queue of this process, and its semaphore is a name that only this module knows:
 * the agent completes it as any other, and the reply goes to the connection that it came by.
 *
 * Invariants
 * - Only processes of this user are listened to, as the kernel says of the connection. The socket can be opened by this
 *   user only, in a folder in which nobody else can replace it.
 * - A connection has a bounded number of commands under way; more are not read. What it does ends no other connection.
 * - Batches that were registered over a connection are cleaned up when it ends.
 */
import { randomUUID } from "node:crypto"
import { chmodSync, lstatSync, unlinkSync } from "node:fs"
import { connect, createServer, type Server, type Socket } from "node:net"
import { dirname } from "node:path"
import { handshakeBytes, handshakeTime } from "@tensorferry/core/group/Unproven"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as FiberSet from "effect/FiberSet"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Semaphore from "effect/Semaphore"
import { type Addon, loadAddon } from "../Addon.ts"
import { agentBody, agentFrame, agentProtocol, agentProtocolVersion, readFromClient } from "../command/AgentTalk.ts"
import { CleanupBatch, type Message } from "../command/Command.ts"
import { decodeCommand } from "../command/CommandCodec.ts"
import { decodeReply, type Reply, replyKey } from "../command/Reply.ts"
import { attach, type FramedSocket, SocketClosed } from "../socket/FramedSocket.ts"
import { AgentState, type AgentStateShape } from "../state/AgentState.ts"
import type { Value } from "../wire/Value.ts"
import { CommandQueue, type CommandQueueError, commandQueueError, longestCommand } from "./CommandQueue.ts"
import * as CommandQueueMemory from "./CommandQueueMemory.ts"

/** Where the agent listens. */
export interface SocketQueueOptions {
  /** The socket. It is removed with the scope; one that a dead agent left is taken over. */
  readonly path: string
  /** Of the agent, as clients are told. */
  readonly rank: number
  /** Most connections at a time; 256 by default. */
  readonly mostConnections?: number
}

/** Commands of one connection that may be under way. */
const mostCommands = 64
/** Longest path of a Unix socket on Linux. */
const longestPath = 107
/** Bytes that a client may leave unread. */
const mostUnread = 16 * 2 ** 20
const frameBytes = longestCommand + 1024

const remedy = "Use a folder that only this user can write, as one below /run/user, and a short name."

const refuse = (tag: "Busy" | "Untrusted" | "SystemFailure" | "NotServed", file: string, detail: string) =>
  commandQueueError(tag, { op: "listen", file, detail, remedy: tag === "Busy" ? "Stop the other agent." : remedy })

/** Refuses a folder in which another user could put another socket in this one's place. */
const checkFolder = (path: string): Effect.Effect<void, CommandQueueError> =>
  Effect.suspend(() => {
    if (Buffer.byteLength(path) > longestPath)
      return Effect.fail(refuse("Untrusted", path, `The path has more than ${longestPath} bytes.`))
    const folder = dirname(path)
    const facts = Result.getOrUndefined(Result.try(() => lstatSync(folder)))
    if (facts === undefined || !facts.isDirectory())
      return Effect.fail(refuse("NotServed", path, `${folder} is no folder.`))
    const isOurs = facts.uid === process.geteuid?.() || facts.uid === 0
    const isClosed = (facts.mode & 0o022) === 0 || (facts.mode & 0o1000) !== 0
    return isOurs && isClosed ? Effect.void : Effect.fail(refuse("Untrusted", path, `Other users can write ${folder}.`))
  })

/** Whether an agent answers at this path. One that is too busy to answer is there all the same. */
const isServed = (path: string): Effect.Effect<boolean> =>
  Effect.callback((resume) => {
    const probe = connect({ path })
    const tell = (served: boolean) => {
      probe.destroy()
      resume(Effect.succeed(served))
    }
    probe.once("connect", () => tell(true))
    probe.once("error", ({ code }: NodeJS.ErrnoException) => tell(code !== "ECONNREFUSED" && code !== "ENOENT"))
    return Effect.sync(() => probe.destroy())
  })

/** Makes room for a socket where a dead agent left one; everything else at the path is refused. */
const makeRoom = Effect.fnUntraced(function* (path: string) {
  const facts = Result.getOrUndefined(Result.try(() => lstatSync(path)))
  if (facts === undefined) return
  if (!facts.isSocket() || facts.uid !== process.geteuid?.())
    return yield* refuse("Untrusted", path, `${path} is there, and is no socket of this user.`)
  if (yield* isServed(path)) return yield* refuse("Busy", path, `Another agent serves ${path}.`)
  Result.try(() => unlinkSync(path))
})

const listenAt = (server: Server, path: string): Effect.Effect<void, CommandQueueError> =>
  Effect.callback((resume) => {
    const failed = (error: NodeJS.ErrnoException) => {
      const tag = error.code === "EADDRINUSE" ? "Busy" : "SystemFailure"
      resume(Effect.fail(refuse(tag, path, `${path} cannot be listened at: ${error.code ?? error.message}.`)))
    }
    server.once("error", failed)
    server.listen({ path }, () => {
      server.off("error", failed)
      // Until here the credentials alone keep others out.
      const closed = Result.try(() => chmodSync(path, 0o600))
      if (Result.isFailure(closed)) failed({ name: "chmod", message: String(closed.failure) })
      else resume(Effect.void)
    })
  })

/** The system's number of a socket, which Node gives only here. */
const descriptorOf = (socket: Socket): number =>
  (socket as unknown as { readonly _handle?: { readonly fd?: number } | null })._handle?.fd ?? -1

/** What names of completions begin with here. No semaphore's does. */
const ownName = "socket "

/** What waits for a command to end. */
interface Waiting {
  readonly tell: (reply: Reply) => void
}

/** One connection: what it may do, and what is cleaned up after it. */
const makeConnection = (
  socket: FramedSocket,
  waiting: Map<string, Waiting>,
  owners: Map<string, FramedSocket>,
  enqueue: (message: Message) => Effect.Effect<void, CommandQueueError>,
  state: AgentStateShape,
  rank: number
) => {
  const send = (type: number, body: { readonly [field: string]: Value }) => socket.send(type, agentBody(body))
  const turnAway = (detail: string, what: string) => {
    send(agentFrame.refused, { detail, remedy: what })
    return Effect.andThen(socket.close("1 second"), Effect.fail(new SocketClosed({ detail })))
  }
  const places = Semaphore.makeUnsafe(mostCommands)
  const own = new Set<string>()

  const next = Effect.flatMap(socket.next, ({ type, body }) => {
    const read = readFromClient(type, body)
    return Result.isSuccess(read)
      ? Effect.succeed(read.success)
      : turnAway(`A frame cannot be read: ${read.failure}`, "Use a client of this agent's version.")
  })

  const greet = Effect.gen(function* () {
    const hello = yield* next
    if (hello.type !== "hello" || hello.protocol !== agentProtocol || hello.version !== agentProtocolVersion) {
      const spoken = hello.type === "hello" ? `${hello.protocol.slice(0, 80)} version ${hello.version}` : "no hello"
      return yield* turnAway(
        `The client speaks ${spoken}, the agent ${agentProtocol} version ${agentProtocolVersion}.`,
        "Use a client and an agent of the same version."
      )
    }
    socket.setLimits({ frameBytes, queuedBytes: mostUnread })
    send(agentFrame.welcome, { version: agentProtocolVersion, rank, pid: process.pid })
  }).pipe(
    Effect.timeoutOrElse({
      duration: handshakeTime,
      orElse: () => Effect.fail(new SocketClosed({ detail: "it did not say hello in time" }))
    })
  )

  /** What of the connection is to go with it. */
  const note = (message: Message): void => {
    if (message._tag === "RegisterTensors" || message._tag === "RegisterModel") owners.set(message.batchId, socket)
    else if (message._tag === "CleanupBatch") owners.delete(message.batchId)
  }

  const command = Effect.fnUntraced(function* (id: number, bytes: Uint8Array) {
    const decoded = decodeCommand(bytes)
    if (Result.isFailure(decoded)) {
      const { detail, remedy: what } = decoded.failure.reason
      const reply = { type: "Error", version: 1, tag: "InvalidCommand", message: decoded.failure.message }
      return send(agentFrame.reply, { id, reply: { ...reply, fields: { op: "decode", detail, remedy: what } } })
    }
    yield* places.take(1)
    const name = `${ownName}${randomUUID()}`
    own.add(name)
    waiting.set(name, {
      tell: (reply) => {
        own.delete(name)
        waiting.delete(name)
        Effect.runSync(places.release(1))
        send(agentFrame.reply, { id, reply: reply as unknown as Value })
      }
    })
    const message = { ...decoded.success, semaphoreName: name } as Message
    note(message)
    yield* enqueue(message)
  })

  const serve = Effect.gen(function* () {
    yield* greet
    for (;;) {
      const said = yield* next
      if (said.type === "command") yield* command(said.id, said.command)
      else if (said.type === "read") {
        const value = yield* Effect.orElseSucceed(state.get(said.name), () => undefined)
        send(agentFrame.value, { id: said.id, value: value ?? null })
      } else return yield* turnAway("The client says hello twice.", "Use a client of this agent's version.")
    }
  })

  const cleanUp = Effect.gen(function* () {
    for (const name of own) waiting.delete(name)
    const left = [...owners].flatMap(([batch, owner]) => (owner === socket ? [batch] : []))
    for (const batchId of left) {
      owners.delete(batchId)
      yield* Effect.ignore(enqueue(new CleanupBatch({ batchId })))
    }
  })

  return Effect.ensuring(serve, cleanUp)
}

/** Completions of socket clients go back by their connections; everything else is that of the state. */
const stateFor = (inner: AgentStateShape, waiting: Map<string, Waiting>): AgentStateShape => ({
  ...inner,
  complete: (name, entries) => {
    if (!name.startsWith(ownName)) return inner.complete(name, entries)
    const client = waiting.get(name)
    const key = replyKey(name)
    const bytes = entries.find(([entry]) => entry === key)?.[1]
    const reply = bytes === undefined ? undefined : decodeReply(bytes)
    return Effect.andThen(
      inner.put(entries.filter(([entry]) => entry !== key)),
      Effect.sync(() => {
        // A client that has left waits for nothing.
        if (reply !== undefined) client?.tell(reply)
      })
    )
  }
})

const admit = (addon: Addon, socket: Socket): { readonly why?: string } => {
  const descriptor = descriptorOf(socket)
  if (descriptor < 0) return { why: "It ended before it could be told whose it is." }
  const peer = addon.peerOf(descriptor)
  if (peer.code !== "Ok") return { why: peer.detail }
  return peer.value.isOwnUser ? {} : { why: `Process ${peer.value.pid} is another user's.` }
}

/** Listens at the path until the scope ends. Fails with "Busy" where an agent serves it, with "Untrusted" for its folder. */
export const make = Effect.fnUntraced(function* (options: SocketQueueOptions) {
  const { path, rank, mostConnections = 256 } = options
  const inner = yield* AgentState
  const addon = yield* loadAddon
  const queue = yield* CommandQueueMemory.make()
  yield* checkFolder(path)
  yield* makeRoom(path)
  const waiting = new Map<string, Waiting>()
  const owners = new Map<string, FramedSocket>()
  const open = new Set<FramedSocket>()
  const run = yield* FiberSet.makeRuntime()
  const enqueue = (message: Message) => queue.enqueue([message])
  const server = createServer()
  server.on("connection", (accepted) => {
    const { why } = admit(addon, accepted)
    const socket = attach(accepted, { frameBytes: handshakeBytes })
    const refusal = why ?? (open.size < mostConnections ? undefined : "There are too many connections.")
    if (refusal !== undefined) {
      socket.destroy(refusal)
      run(Effect.logWarning(`A connection to ${path} is refused: ${refusal}`))
      return
    }
    open.add(socket)
    accepted.once("close", () => open.delete(socket))
    run(Effect.ignore(makeConnection(socket, waiting, owners, enqueue, inner, rank)))
  })
  const stop = Effect.gen(function* () {
    // Replies of commands that the agent's end has ended are still on their way.
    yield* Effect.forEach(open, (socket) => socket.close("1 second"), { concurrency: "unbounded", discard: true })
    // Removes the socket from the folder too.
    yield* Effect.callback<void>((resume) => void server.close(() => resume(Effect.void)))
  })
  yield* Effect.acquireRelease(listenAt(server, path), () => stop)
  return { queue, state: stateFor(inner, waiting) }
})

/** The queue of an agent, and its state with the replies of that queue. */
export const layerSocket = (options: SocketQueueOptions) =>
  Layer.effectContext(
    Effect.map(make(options), ({ queue, state }) => Context.add(Context.make(CommandQueue, queue), AgentState, state))
  )
