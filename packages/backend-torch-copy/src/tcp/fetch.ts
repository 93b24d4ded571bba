// SPDX-License-Identifier: Apache-2.0
/**
 * The receiver's end: connections to senders whose memory cannot be reached, one per peer, made again after a fault.
 *
 * Invariant: an interrupted or failed transfer drops its connection, because nobody knows any more where in the stream it
 * stands; it has stopped touching memory before it ends.
 */

import type { NativePool } from "@tensorferry/native/NativeJob"
import { runJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import type { Addon } from "../Addon.ts"
import { pinsOf } from "../checks.ts"
import { pinAll } from "../PinCount.ts"
import type { Chunked } from "./chunks.ts"
import { type Endpoint, encodeHello, encodeRequest, equalBytes, halfBytes, yes } from "./greeting.ts"
import { dial, type StreamSocket } from "./StreamSocket.ts"

type Address = Pick<Endpoint, "port" | "secret">

export interface Fetcher {
  /** Makes the connection to a peer if there is none. Fails in words. */
  readonly connect: (peer: number, endpoint: Address) => Effect.Effect<void, string>
  /** Fetches what the peer offers with the program; `moved` hears of every chunk. */
  readonly fetch: (
    peer: number,
    program: number,
    into: Chunked,
    moved: (byteLength: number) => void
  ) => Effect.Effect<void, string>
}

interface Connection {
  readonly stream: StreamSocket
  readonly scope: Scope.Closeable
}

/** Connections end with the scope. */
export const makeFetcher = Effect.fnUntraced(function* (
  addon: Addon,
  pool: NativePool,
  rank: number
): Effect.fn.Return<Fetcher, never, Scope.Scope> {
  const parent = yield* Effect.scope
  const endpoints = new Map<number, Address>()
  const connections = new Map<number, Connection>()

  const drop = (peer: number) =>
    Effect.suspend(() => {
      const connection = connections.get(peer)
      connections.delete(peer)
      return connection === undefined ? Effect.void : Scope.close(connection.scope, Exit.void)
    })

  const greet = Effect.fnUntraced(function* (endpoint: Address): Effect.fn.Return<StreamSocket, string, Scope.Scope> {
    const secret = Buffer.from(endpoint.secret, "hex")
    const stream = yield* dial(endpoint.port)
    yield* stream.write(encodeHello(secret, rank))
    const answer = new Uint8Array(halfBytes)
    yield* stream.read(answer)
    if (!equalBytes(answer, secret.subarray(halfBytes)))
      return yield* Effect.fail("the process that listens there is not the peer")
    return stream
  })

  const connectionTo = Effect.fnUntraced(function* (peer: number): Effect.fn.Return<StreamSocket, string> {
    const known = connections.get(peer)
    if (known !== undefined) return known.stream
    const endpoint = endpoints.get(peer)
    if (endpoint === undefined) return yield* Effect.fail("the peer reported no port")
    const scope = yield* Scope.fork(parent)
    const stream = yield* Scope.provide(greet(endpoint), scope).pipe(
      Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
    )
    connections.set(peer, { stream, scope })
    return stream
  })

  const scatter = (table: BigUint64Array, into: Chunked): Effect.Effect<void, string> =>
    Effect.suspend(() => {
      const unpin = pinAll(pinsOf(into.tensors))
      const job = runJob<undefined>(addon, (done) => addon.startMoves(pool, table, false, done), unpin)
      return Effect.mapError(job, (failure) => failure.detail)
    })

  return {
    connect: (peer, endpoint) =>
      Effect.suspend(() => {
        const known = endpoints.get(peer)
        endpoints.set(peer, endpoint)
        const isMoved = known !== undefined && known.secret !== endpoint.secret
        return Effect.asVoid(Effect.andThen(isMoved ? drop(peer) : Effect.void, connectionTo(peer)))
      }),
    fetch: (peer, program, into, moved) =>
      Effect.gen(function* () {
        const stream = yield* connectionTo(peer)
        yield* stream.write(encodeRequest(program))
        const answer = new Uint8Array(1)
        yield* stream.read(answer)
        if (answer[0] !== yes) return yield* Effect.fail("the peer answered something else")
        for (const { byteLength, table } of into.chunks) {
          yield* stream.read(into.staging.subarray(0, byteLength))
          yield* scatter(table, into)
          moved(byteLength)
        }
      }).pipe(Effect.onExit((exit) => (Exit.isSuccess(exit) ? Effect.void : drop(peer))))
  }
})
