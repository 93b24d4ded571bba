// SPDX-License-Identifier: Apache-2.0
/**
 * Bytes from one member to another: the child asks in the store, the parent opens a group of the two, and chunks go through
 * a copy service over it. A failure ends this edge and no other.
 *
 * With each chunk goes the digest that the source took of it. Whoever receives a chunk proves it before anybody gets it from
 * them, so that what is broken on the way is found by the first who receives it.
 */
import { randomUUID } from "node:crypto"
import { awaitEntries, type KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import type { Digest } from "@tensorferry/core/base/Digest"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup, type ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { cpu } from "@tensorferry/core/tensor/Device"
import { type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { FleetError, fleetError } from "../FleetError.ts"
import { digestPieces, piecesOf, type Weights } from "./Pieces.ts"

/** What moves tensors within the group of an edge. */
export type Transport = Layer.Layer<CopyService | TensorEngine, unknown, ProcessGroup>

/** How members reach each other. */
export interface EdgeOptions {
  readonly transport: Transport
  /** Where others reach this process; 127.0.0.1 by default. */
  readonly host?: string
  /** Needed for any other address. */
  readonly token?: string
  /** How long an edge waits for the other end to show progress. */
  readonly deadline: Duration.Duration
}

/** What a child asks its parent for. */
export const EdgeRequest = Schema.Struct({
  /** Id of the member that asks. */
  child: Schema.String,
  content: Schema.String,
  /** A run of bytes among all of the weights, and the size of its chunks. */
  offset: Schema.Int,
  bytes: Schema.Int,
  chunkBytes: Schema.Int,
  /** Number of the first chunk that the child lacks. */
  from: Schema.Int
})
export type EdgeRequest = typeof EdgeRequest.Type

const requestText = Schema.fromJsonString(EdgeRequest)
const Door = Schema.Struct({ host: Schema.String, port: Schema.Int, refusal: Schema.String })
const doorText = Schema.fromJsonString(Door)

const proofBytes = 64

/** Where a chunk lies among all of the weights. */
const chunkAt = ({ offset, bytes, chunkBytes }: EdgeRequest, chunk: number): readonly [start: number, end: number] => [
  offset + chunk * chunkBytes,
  offset + Math.min(bytes, (chunk + 1) * chunkBytes)
]

/** How many chunks a request is about. */
export const chunkCount = ({ bytes, chunkBytes }: EdgeRequest): number => Math.ceil(bytes / chunkBytes)

const failedWith =
  (peer: string, doing: string) =>
  (cause: unknown): FleetError =>
    fleetError("PeerFailed", [], {
      detail: `Member ${peer} ${doing}: ${cause instanceof Error ? cause.message : String(cause)}`,
      remedy: "Another member is asked instead; see whether this one runs.",
      scope: "peer",
      isRetryable: true
    })

/** Both ends of an edge: the services of a group of two. */
const servicesOf = (group: ProcessGroupShape, { transport }: EdgeOptions) =>
  Layer.build(Layer.provide(Layer.fresh(transport), Layer.succeed(ProcessGroup, group)))

const settingsOf = ({ deadline, token }: EdgeOptions) => ({
  size: 2,
  deadline,
  connectDeadline: deadline,
  ...(token === undefined ? {} : { token })
})

/** Memory for the digest of a chunk on its way. */
const proofMemory = Effect.flatMap(TensorEngine, (engine) => engine.allocate("uint8", [proofBytes], cpu))

const proofBytesOf = (tensor: Tensor): Uint8Array => tensorBytes(tensor) ?? new Uint8Array(proofBytes)

/** What a parent needs to know to give chunks of a version. */
export interface Giver {
  readonly weights: Weights
  /** Ends when the chunk is here and proven, with the digest that came with it; undefined where this member takes it itself. */
  readonly awaitChunk: (request: EdgeRequest, chunk: number) => Effect.Effect<Digest | undefined, FleetError>
}

/** Gives one child what it asks for. Ends with the last chunk, or when the child is gone. */
export const give = (
  store: KeyValueStoreShape,
  door: string,
  request: EdgeRequest,
  giver: Giver | undefined,
  options: EdgeOptions
): Effect.Effect<void, FleetError> =>
  Effect.gen(function* () {
    const host = options.host ?? "127.0.0.1"
    const open = (port: number, refusal: string) =>
      store.put(door, Schema.encodeSync(doorText)({ host, port, refusal }), { isEphemeral: true })
    if (giver === undefined) return yield* open(0, "it does not have this version")
    const onListening = (port: number) => Effect.ignore(open(port, ""))
    const group = yield* ProcessGroupTcp.make({ ...settingsOf(options), rank: 0, host, port: 0, onListening })
    yield* Effect.gen(function* () {
      const copy = yield* CopyService
      const proof = yield* proofMemory
      for (let chunk = request.from; chunk < chunkCount(request); chunk++) {
        const known = yield* group.keepAlive(giver.awaitChunk(request, chunk))
        const pieces = piecesOf(giver.weights, ...chunkAt(request, chunk))
        proofBytesOf(proof).set(Buffer.from(known ?? (yield* digestPieces(pieces)), "latin1"))
        for (const [part, piece] of pieces.entries()) yield* copy.submitSend(piece, 1, part)
        yield* copy.submitSend(proof, 1, pieces.length)
        yield* copy.run()
      }
    }).pipe(Effect.provide(yield* servicesOf(group, options)))
  }).pipe(
    Effect.scoped,
    Effect.ensuring(Effect.ignore(store.remove(door))),
    Effect.mapError(failedWith(request.child, "did not take what it asked for"))
  )

/** Fails when a member's report goes, as it does with its process. */
const whenGone = (store: KeyValueStoreShape, root: string, member: string): Effect.Effect<never, unknown> =>
  store.watch(`${root}member/${member}`).pipe(
    Stream.filter((entries) => entries.size === 0),
    Stream.runHead,
    Effect.andThen(Effect.fail("its process is gone"))
  )

/** Takes what is asked for from a parent, chunk by chunk, into `weights`. `onChunk` hears of each that is proven. */
export const take = (
  store: KeyValueStoreShape,
  root: string,
  parent: string,
  request: EdgeRequest,
  weights: Weights,
  onChunk: (chunk: number, digest: Digest) => Effect.Effect<void>,
  options: EdgeOptions
): Effect.Effect<void, FleetError> => {
  const id = randomUUID()
  const [ask, door] = [`${root}ask/${parent}/${id}`, `${root}door/${id}`]
  return Effect.gen(function* () {
    yield* store.put(ask, Schema.encodeSync(requestText)(request), { isEphemeral: true })
    const text = yield* awaitEntries(
      store,
      door,
      (entries) => Effect.succeed(entries.get(door)),
      options.deadline,
      () => "it did not answer"
    )
    const { host, port, refusal } = yield* Schema.decodeUnknownEffect(doorText)(text)
    if (refusal !== "") return yield* failedWith(parent, "gives nothing")(refusal)
    const group = yield* ProcessGroupTcp.make({ ...settingsOf(options), rank: 1, host, port })
    yield* Effect.gen(function* () {
      const copy = yield* CopyService
      const proof = yield* proofMemory
      for (let chunk = request.from; chunk < chunkCount(request); chunk++) {
        const pieces = piecesOf(weights, ...chunkAt(request, chunk))
        for (const [part, piece] of pieces.entries()) yield* copy.submitRecv(piece, 0, part)
        yield* copy.submitRecv(proof, 0, pieces.length)
        yield* copy.run()
        const stated = Buffer.from(proofBytesOf(proof)).toString("latin1")
        const found = yield* group.keepAlive(digestPieces(pieces))
        if (stated !== found) {
          return yield* fleetError("NotProven", [], {
            detail: `Chunk ${chunk} from member ${parent} has digest ${found}, not ${stated}.`,
            remedy: "It is taken from another member; see whether that one's memory or network is at fault.",
            scope: "peer",
            isRetryable: true
          })
        }
        yield* onChunk(chunk, found)
      }
    }).pipe(Effect.provide(yield* servicesOf(group, options)))
  }).pipe(
    Effect.scoped,
    Effect.raceFirst(whenGone(store, root, parent)),
    Effect.ensuring(Effect.ignore(store.remove(ask))),
    Effect.mapError((cause) => (cause instanceof FleetError ? cause : failedWith(parent, "did not give it")(cause)))
  )
}

/** The requests that stand under a member's keys, by id. */
export const requestsOf = (root: string, member: string, entries: ReadonlyMap<string, string>) => {
  const prefix = `${root}ask/${member}/`
  return [...entries].flatMap(([key, text]) => {
    const request = Schema.decodeUnknownResult(requestText)(text)
    const id = key.slice(prefix.length)
    return Result.isSuccess(request) ? [{ id, door: `${root}door/${id}`, request: request.success }] : []
  })
}
