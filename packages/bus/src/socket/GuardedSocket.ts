// SPDX-License-Identifier: Apache-2.0
/**
 * Connections whose two ends have proved to each other that they hold the same token, without sending it: each answers the
 * other's fresh challenge with a keyed code over both challenges, what the opener says of itself, and its own role, so that
 * no answer can be replayed or reflected. The proof guards joining; what follows is neither encrypted nor authenticated.
 *
 * Invariants
 * - Of a peer that has not proved itself, nothing is read but the frames of the handshake, each within `handshakeBytes`,
 *   one at a time, and for no longer than the guard's handshake time. Such peers have places of their own, and where one more
 *   comes the oldest goes, so strangers keep nobody out.
 * - What a peer does can end its own connection only. A listener leaves no socket and no fiber behind when its scope ends.
 */
import { createHmac, randomBytes, timingSafeEqual } from "node:crypto"
import { createServer, type Server } from "node:net"
import { canonicalJson } from "@tensorferry/core/base/Digest"
import { Natural32 } from "@tensorferry/core/base/Numbers"
import type { Frame } from "@tensorferry/core/group/Frames"
import { Hex32, jsonBody } from "@tensorferry/core/group/Frames"
import { handshakeBytes, handshakeTime, makeLobby } from "@tensorferry/core/group/Unproven"
import * as Data from "effect/Data"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as FiberSet from "effect/FiberSet"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as EffectScope from "effect/Scope"
import { type Address, attach, dial, type FramedSocket, type SocketClosed, type SocketLimits } from "./FramedSocket.ts"

/** Types of the frames of a handshake. Applications use 16 and above. */
const frameType = { hello: 1, challenge: 2, proof: 3, welcome: 4, reject: 6 } as const

/** Places for connections that have not proved themselves. */
const unprovenPlaces = 64

/** How long a peer that is turned away has to read why. */
const rejectGrace = "1 second"

/** What both ends of a connection agree on. */
export interface Guard<Claim> {
  /** Name and version of what is spoken. Part of the proof. */
  readonly protocol: string
  readonly version: number
  /** Without one the codes only prove that both ends have none. */
  readonly token: string | undefined
  /** What the opener says of itself, as its rank; `Schema.Struct({})` where there is nothing to say. Part of the proof. */
  readonly claim: Schema.Codec<Claim, unknown>
  /** Limits once the peer has proved itself. */
  readonly limits: SocketLimits
  /** How long a handshake may take; 10 seconds by default. */
  readonly handshakeTime?: Duration.Input
}

/** A connection that was turned away, at either end. */
export class SocketRefused extends Data.TaggedError("SocketRefused")<{
  /**
   * `Protocol`: the peer speaks something else. `Token`: it does not know the token. `Late`: it did not finish its
   * handshake. `Claim`: it knows the token, and the application wants it not.
   */
  readonly why: "Protocol" | "Token" | "Late" | "Claim"
  readonly detail: string
  /** What the application's refusal carries, as text. */
  readonly data?: string | undefined
  /** What the opener said of itself, where that could be read; proved only where `why` is `Claim`. */
  readonly claim?: unknown
}> {}

const Hello = Schema.Struct({ protocol: Schema.String, version: Natural32, nonce: Hex32, claim: Schema.Unknown })
type Hello = typeof Hello.Type

const hello = jsonBody(Hello)
const challenge = jsonBody(Schema.Struct({ nonce: Hex32 }))
const proof = jsonBody(Schema.Struct({ code: Hex32 }))
const reject = jsonBody(
  Schema.Struct({
    why: Schema.Literals(["Protocol", "Token", "Late", "Claim"]),
    detail: Schema.String,
    data: Schema.optional(Schema.String)
  })
)

const freshNonce = (): string => randomBytes(32).toString("hex")

/** The code of one end. */
const codeOf = (token: string | undefined, role: "opener" | "listener", said: Hello, nonce: string): string =>
  createHmac("sha256", token ?? "")
    .update(canonicalJson({ role, hello: said, nonce }))
    .digest("hex")

/** Compares two codes of equal length in constant time. */
const equalCodes = (left: string, right: string): boolean =>
  left.length === right.length && timingSafeEqual(Buffer.from(left), Buffer.from(right))

const fail = (why: SocketRefused["why"], detail: string, claim?: unknown) =>
  Effect.fail(new SocketRefused({ why, detail, ...(claim === undefined ? {} : { claim }) }))

/** The body of the next frame, which has this type; a rejection of the peer is a failure in its own words. */
const expect = <T>(socket: FramedSocket, type: number, decode: (body: Uint8Array) => Result.Result<T, string>) =>
  Effect.flatMap(socket.next, (frame: Frame): Effect.Effect<T, SocketRefused> => {
    if (frame.type === frameType.reject) {
      const rejected = reject.decode(frame.body)
      if (Result.isSuccess(rejected)) return Effect.fail(new SocketRefused(rejected.success))
    }
    const decoded = frame.type === type ? decode(frame.body) : Result.fail(`a frame of type ${frame.type}`)
    return Result.isSuccess(decoded)
      ? Effect.succeed(decoded.success)
      : fail("Protocol", `It sent no valid handshake: ${decoded.failure}.`)
  })

/** The opener's half. Ends when the listener has proved itself and welcomed this end. */
const introduce = Effect.fnUntraced(function* <Claim>(socket: FramedSocket, guard: Guard<Claim>, claim: Claim) {
  const encoded = Schema.encodeResult(guard.claim)(claim)
  if (Result.isFailure(encoded)) return yield* fail("Claim", "This end's own claim is not of its schema.")
  const said = { protocol: guard.protocol, version: guard.version, nonce: freshNonce(), claim: encoded.success }
  socket.send(frameType.hello, hello.encode(said))
  const { nonce } = yield* expect(socket, frameType.challenge, challenge.decode)
  socket.send(frameType.proof, proof.encode({ code: codeOf(guard.token, "opener", said, nonce) }))
  const { code } = yield* expect(socket, frameType.welcome, proof.decode)
  if (!equalCodes(code, codeOf(guard.token, "listener", said, nonce))) {
    return yield* fail("Token", "It does not know the token.")
  }
  socket.setLimits(guard.limits)
})

/** Connects once, and proves both ends to each other. The connection is the caller's to close. */
export const open = <Claim>(
  address: Address,
  guard: Guard<Claim>,
  claim: Claim
): Effect.Effect<FramedSocket, SocketClosed | SocketRefused> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.flatMap(restore(dial(address, { frameBytes: handshakeBytes })), (socket) =>
      restore(introduce(socket, guard, claim)).pipe(
        Effect.timeoutOrElse({
          duration: guard.handshakeTime ?? handshakeTime,
          orElse: () => fail("Late", "It did not finish its handshake in time.")
        }),
        Effect.onError(() => Effect.sync(() => socket.destroy("the handshake failed"))),
        Effect.as(socket)
      )
    )
  )

/** Why the application does not want a peer that knows the token. */
export interface Unwanted {
  readonly detail: string
  /** For the application's other end. */
  readonly data?: string
}

/** How to listen, whom to let in, and what to do with them. */
export interface Listener<Claim> {
  /** The port may be 0 for any free one. */
  readonly address: Address
  readonly guard: Guard<Claim>
  /** Proved connections at a time; further ones are closed. 1024 by default. */
  readonly mostConnections?: number
  /** Asked of every peer that knows the token, before it is welcomed. All are wanted by default. */
  readonly admit?: (claim: Claim, peer: string) => Effect.Effect<void, Unwanted>
  /** Takes over a proved connection, in the same turn in which the peer was welcomed. */
  readonly attend: (socket: FramedSocket, claim: Claim) => void
  /** Hears of every connection that was turned away, before the peer does. */
  readonly refused?: (refusal: SocketRefused, peer: string) => Effect.Effect<void>
  /** Runs after a refused peer got its answer. */
  readonly refusedAndTold?: (refusal: SocketRefused, peer: string) => Effect.Effect<void>
}

/** The port cannot be listened on. */
export class ListenFailed extends Data.TaggedError("ListenFailed")<{
  readonly code: string
  readonly detail: string
}> {}

/** The listener's half: who the peer is, once it has proved itself and is wanted. */
const examine = Effect.fnUntraced(function* <Claim>(socket: FramedSocket, listener: Listener<Claim>) {
  const { guard } = listener
  const said = yield* expect(socket, frameType.hello, hello.decode)
  if (said.protocol !== guard.protocol || said.version !== guard.version) {
    const [theirs, own] = [said, guard].map(({ protocol, version }) => `${protocol.slice(0, 80)} version ${version}`)
    return yield* fail("Protocol", `It speaks ${theirs}, this end ${own}.`, said.claim)
  }
  const claim = Schema.decodeUnknownResult(guard.claim)(said.claim)
  if (Result.isFailure(claim)) return yield* fail("Protocol", "It sent no valid handshake: a malformed claim.")
  const nonce = freshNonce()
  socket.send(frameType.challenge, challenge.encode({ nonce }))
  const { code } = yield* expect(socket, frameType.proof, proof.decode)
  if (!equalCodes(code, codeOf(guard.token, "opener", said, nonce))) {
    return yield* fail("Token", "It has another token.", said.claim)
  }
  if (listener.admit !== undefined) {
    yield* Effect.mapError(
      listener.admit(claim.success, socket.peer),
      ({ detail, data }) => new SocketRefused({ why: "Claim", detail, data, claim: said.claim })
    )
  }
  return { claim: claim.success, code: codeOf(guard.token, "listener", said, nonce) }
})

/** `promote` answers whether there is a place for one more proved connection, and gives it. */
const converse = <Claim>(
  socket: FramedSocket,
  listener: Listener<Claim>,
  promote: () => boolean
): Effect.Effect<void> =>
  examine(socket, listener).pipe(
    Effect.timeoutOrElse({
      duration: listener.guard.handshakeTime ?? handshakeTime,
      orElse: () => fail("Late", "It did not finish its handshake in time.")
    }),
    Effect.flatMap(({ claim, code }) =>
      Effect.sync(() => {
        if (!promote()) return socket.destroy("there are too many connections")
        socket.setLimits(listener.guard.limits)
        socket.send(frameType.welcome, proof.encode({ code }))
        listener.attend(socket, claim)
      })
    ),
    Effect.catchTags({
      SocketRefused: (refusal) =>
        Effect.gen(function* () {
          const { why, detail, data } = refusal
          if (listener.refused !== undefined) yield* listener.refused(refusal, socket.peer)
          socket.send(frameType.reject, reject.encode({ why, detail, ...(data === undefined ? {} : { data }) }))
          yield* socket.close(rejectGrace)
          if (listener.refusedAndTold !== undefined) yield* listener.refusedAndTold(refusal, socket.peer)
        }),
      SocketClosed: () => Effect.void
    }),
    Effect.onError(() => Effect.sync(() => socket.destroy("its connection could not be taken over")))
  )

const listenOn = (server: Server, { host, port }: Address): Effect.Effect<number, ListenFailed> =>
  Effect.callback((resume) => {
    server.on("error", (error: NodeJS.ErrnoException) =>
      resume(Effect.fail(new ListenFailed({ code: error.code ?? "unknown", detail: error.message })))
    )
    server.listen({ host, port }, () => {
      const address = server.address()
      resume(Effect.succeed(address !== null && typeof address === "object" ? address.port : port))
    })
  })

/** Listens until the scope ends, which destroys every connection; answers the port. */
export const listen = <Claim>(listener: Listener<Claim>): Effect.Effect<number, ListenFailed, EffectScope.Scope> =>
  Effect.gen(function* () {
    const most = listener.mostConnections ?? 1024
    const open = new Set<FramedSocket>()
    const proved = new Set<FramedSocket>()
    const lobby = makeLobby<FramedSocket>(unprovenPlaces, (oldest) => oldest.destroy("others wait to prove themselves"))
    let isClosing = false
    const server = yield* Effect.acquireRelease(
      Effect.sync(() => createServer()),
      (made) =>
        Effect.callback<void>((resume) => {
          made.close(() => resume(Effect.void))
        })
    )
    const run = yield* FiberSet.makeRuntime()
    server.on("connection", (accepted) => {
      if (isClosing) {
        accepted.on("error", () => undefined)
        accepted.destroy()
        return
      }
      const socket = attach(accepted, { frameBytes: handshakeBytes })
      open.add(socket)
      lobby.enter(socket)
      accepted.once("close", () => {
        open.delete(socket)
        proved.delete(socket)
        lobby.leave(socket)
      })
      const promote = (): boolean => {
        if (!socket.isOpen() || proved.size >= most) return false
        lobby.leave(socket)
        proved.add(socket)
        return true
      }
      run(converse(socket, listener, promote))
    })
    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        isClosing = true
        for (const socket of open) socket.destroy("the listener was closed")
      })
    )
    return yield* listenOn(server, listener.address)
  })
