// SPDX-License-Identifier: Apache-2.0
/**
 * The sender's end: answers peers that cannot reach this process's memory. Listens on loopback only.
 *
 * Invariants: bytes go only to who knows the secret, and only of programs that are published for that rank; memory is
 * pinned while it is read; a storage that is freed ends the connection, never the process.
 */
import { createServer, type Socket } from "node:net"
import type { NativePool } from "@tensorferry/native/NativeJob"
import { runJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import type * as EffectScope from "effect/Scope"
import type { Addon } from "../Addon.ts"
import { pinsOf } from "../checks.ts"
import { pinAll } from "../PinCount.ts"
import type { Chunked } from "./chunks.ts"
import { type Endpoint, equalBytes, halfBytes, helloBytes, makeSecret, requestBytes, yes } from "./greeting.ts"
import { adopt } from "./StreamSocket.ts"

/** What one peer may fetch with one program. */
export interface Offer extends Chunked {
  /** False once a storage was freed or the program dropped. */
  readonly isUsable: () => boolean
}

export interface Server {
  readonly endpoint: Omit<Endpoint, "program">
  /** Returns how to take the offer back. */
  readonly offer: (program: number, peer: number, offer: Offer) => () => void
}

/** Ends with the scope. Fails in words where no port can be opened. */
export const serve = Effect.fnUntraced(function* (
  addon: Addon,
  pool: NativePool
): Effect.fn.Return<Server, string, EffectScope.Scope> {
  const secret = makeSecret()
  const offers = new Map<string, Offer>()
  const sockets = yield* Queue.unbounded<Socket>()

  /** Copies a chunk into its staging. Nothing awaits between the test and the pin. */
  const gather = (offer: Offer, table: BigUint64Array): Effect.Effect<void, string> =>
    Effect.suspend(() => {
      if (!offer.isUsable()) return Effect.fail("the memory was freed")
      const unpin = pinAll(pinsOf(offer.tensors))
      const job = runJob<undefined>(addon, (done) => addon.startMoves(pool, table, false, done), unpin)
      return Effect.mapError(job, (failure) => failure.detail)
    })

  const converse = (socket: Socket) =>
    Effect.gen(function* () {
      const stream = yield* adopt(socket)
      const hello = Buffer.alloc(helloBytes)
      yield* stream.read(hello)
      if (!equalBytes(hello.subarray(0, halfBytes), secret.subarray(0, halfBytes))) return
      yield* stream.write(secret.subarray(halfBytes))
      const peer = hello.readUInt32LE(halfBytes)
      const request = Buffer.alloc(requestBytes)
      while (true) {
        yield* stream.read(request)
        const offer = offers.get(`${request.readBigUInt64LE()} ${peer}`)
        if (offer === undefined) return
        yield* stream.write(Uint8Array.of(yes))
        for (const { byteLength, table } of offer.chunks) {
          yield* gather(offer, table)
          yield* stream.write(offer.staging.subarray(0, byteLength))
        }
      }
    }).pipe(Effect.scoped, Effect.ignore)

  const server = yield* Effect.acquireRelease(
    Effect.sync(() => createServer((socket) => void Queue.offerUnsafe(sockets, socket))),
    (opened) => Effect.sync(() => void opened.close())
  )
  yield* Effect.forkScoped(
    Effect.forever(Effect.flatMap(Queue.take(sockets), (socket) => Effect.forkChild(converse(socket))))
  )
  const port = yield* Effect.callback<number, string>((resume) => {
    server.on("error", (error) => resume(Effect.fail(`cannot listen on 127.0.0.1: ${error.message}`)))
    server.listen({ host: "127.0.0.1", port: 0 }, () => {
      const address = server.address()
      resume(Effect.succeed(typeof address === "object" && address !== null ? address.port : 0))
    })
  })

  return {
    endpoint: { port, secret: secret.toString("hex") },
    offer: (program, peer, offer) => {
      offers.set(`${program} ${peer}`, offer)
      return () => void offers.delete(`${program} ${peer}`)
    }
  }
})
