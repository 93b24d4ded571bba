// SPDX-License-Identifier: Apache-2.0
/**
 * Arranges, within a preparation, that peers send what cannot be reached: two more collectives, which every rank passes as
 * soon as any rank needs them.
 *
 * Invariant: a port is opened only where a peer asked this rank to send; a rank that cannot send or connect is everybody's
 * failure.
 */

import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverError, PeerPath } from "@tensorferry/core/service/CopyDriver"
import type { DriverAgreement } from "@tensorferry/native/driver/DriverAgreement"
import type { DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import { inOrder } from "@tensorferry/native/driver/MessageChecks"
import type { NativePool } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import type { Addon } from "../Addon.ts"
import type { CompiledMoves } from "../compile.ts"
import { decodePathOutcome, encodePathOutcome } from "../Publication.ts"
import { type Chunked, chunksOf } from "./chunks.ts"
import { type Fetcher, makeFetcher } from "./fetch.ts"
import { Endpoint } from "./greeting.ts"
import { type Server, serve } from "./serve.ts"

/** What a peer sends with a program, and how it calls that. */
export interface Fetch {
  readonly program: number
  readonly into: Chunked
}

/** What the driver lends: its threads, its collectives and its way of failing. */
export interface SendingInput {
  readonly addon: Addon
  readonly pool: NativePool
  readonly agreement: DriverAgreement
  readonly errors: DriverErrors
}

export interface Sending {
  /** Answers what peers will send, by rank. `paths` are those of all ranks, `number` names the program to peers. */
  readonly arrange: (
    messages: ReadonlyArray<Message>,
    number: number,
    moves: CompiledMoves,
    paths: ReadonlyArray<ReadonlyArray<PeerPath>>,
    isUsable: () => boolean
  ) => Effect.Effect<ReadonlyMap<number, Fetch>, CopyDriverError, Scope.Scope>
  readonly fetch: Fetcher["fetch"]
}

const decodeEndpoint = Schema.decodeUnknownResult(Schema.fromJsonString(Endpoint))

const asks = (paths: ReadonlyArray<PeerPath>, whom: number | "any"): boolean =>
  paths.some(({ path, peer }) => path === "tcp" && (whom === "any" || peer === whom))

/** Connections and the port, if there is one, end with the scope. */
export const makeSending = Effect.fnUntraced(function* ({
  addon,
  pool,
  agreement,
  errors
}: SendingInput): Effect.fn.Return<Sending, never, Scope.Scope> {
  const parent = yield* Effect.scope
  const fetcher = yield* makeFetcher(addon, pool, errors.rank)
  let server: Server | undefined

  const inWords = (peer?: number) => (detail: string) => errors.fail("TransportFailed", `tcp: ${detail}.`, { peer })

  /** Where this rank sends, for the peers that asked for it. */
  const makeOffer = Effect.fnUntraced(function* (
    messages: ReadonlyArray<Message>,
    number: number,
    askedBy: ReadonlyArray<number>,
    isUsable: () => boolean
  ): Effect.fn.Return<Endpoint | undefined, CopyDriverError, Scope.Scope> {
    if (askedBy.length === 0) return undefined
    server ??= yield* Effect.mapError(Scope.provide(serve(addon, pool), parent), inWords())
    for (const peer of askedBy) {
      const tensors = inOrder(messages, "send")
        .filter((message) => message.peer === peer)
        .flatMap(({ parts }) => parts.map(({ tensor }) => tensor))
        .filter(({ shape }) => !shape.includes(0))
      const chunked = Result.mapError(chunksOf(addon, tensors, "send"), inWords(peer))
      const withdraw = server.offer(number, peer, { ...(yield* Effect.fromResult(chunked)), isUsable })
      yield* Effect.addFinalizer(() => Effect.sync(withdraw))
    }
    return { ...server.endpoint, program: number }
  })

  const connect = Effect.fnUntraced(function* (payloads: ReadonlyArray<Uint8Array>, moves: CompiledMoves) {
    const fetches = new Map<number, Fetch>()
    for (const [peer, tensors] of moves.sentBy) {
      const decoded = decodeEndpoint(new TextDecoder().decode(payloads[peer]!))
      if (Result.isFailure(decoded)) return yield* errors.fail("InvalidProgram", decoded.failure.message, { peer })
      const chunked = Result.mapError(chunksOf(addon, tensors, "recv"), inWords(peer))
      fetches.set(peer, { program: decoded.success.program, into: yield* Effect.fromResult(chunked) })
      yield* Effect.mapError(fetcher.connect(peer, decoded.success), inWords(peer))
    }
    return fetches
  })

  return {
    fetch: fetcher.fetch,
    arrange: Effect.fnUntraced(function* (messages, number, moves, paths, isUsable) {
      if (!paths.some((of) => asks(of, "any"))) return new Map<number, Fetch>()
      const askedBy = [...paths.keys()].filter((peer) => asks(paths[peer]!, errors.rank))
      const offered = yield* Effect.result(makeOffer(messages, number, askedBy, isUsable))
      const endpoint = Result.isSuccess(offered) ? offered.success : undefined
      const offer = new TextEncoder().encode(endpoint === undefined ? "" : JSON.stringify(endpoint))
      const payloads = yield* agreement.gather("tcp", offer)
      const fetches = yield* Effect.result(Effect.flatMap(Effect.fromResult(offered), () => connect(payloads, moves)))
      const nothing: ReadonlyArray<PeerPath> = []
      yield* agreement.agree(
        "connected",
        Result.map(fetches, () => nothing),
        decodePathOutcome,
        encodePathOutcome
      )
      return yield* Effect.fromResult(fetches)
    })
  }
})
