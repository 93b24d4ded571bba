// SPDX-License-Identifier: Apache-2.0
/**
 * The store that an agent serves, as other agents use it. A lost connection is opened again at the next use; what this
 * process had put as ephemeral is then put again.
 */
import { inSeconds, sayWaiting, untilWords } from "@tensorferry/core/service/sayWaiting"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as Schedule from "effect/Schedule"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import { type ServerOptions, serveStore } from "./KeyValueServer.ts"
import {
  checkEntry,
  type Entries,
  type KeyValueError,
  KeyValueStore,
  type KeyValueStoreShape,
  keyValueError
} from "./KeyValueStore.ts"
import { type ConnectOptions, openConnection, type StoreConnection } from "./StoreConnection.ts"

/** Where the served store is, and how long to look for it. */
export interface TcpStoreOptions extends ConnectOptions {
  /** How long to look for the store when it is first used; 60 seconds by default, since agents start in any order. */
  readonly connectMillis?: number
}

const stepMillis = 100

const refused = (op: string, { detail }: { readonly detail: string }): KeyValueError =>
  keyValueError("TooLarge", { op, detail, remedy: "Clean up batches that are done." })

/** Connects to a served store. Fails with Unreachable where none answers in time, with Refused for a wrong token. */
export const make = Effect.fnUntraced(function* (options: TcpStoreOptions) {
  const own = new Map<string, string>()
  const turn = yield* Semaphore.make(1)
  let current: StoreConnection | undefined
  let lastId = 0
  const nextId = () => ++lastId
  yield* Effect.addFinalizer(() => Effect.sync(() => current?.close()))

  const putOn = (connection: StoreConnection, key: string, value: string, isEphemeral: boolean) =>
    Effect.flatMap(connection.request({ type: "put", id: nextId(), key, value, isEphemeral }), (answer) =>
      answer.type === "refused" ? Effect.fail(refused("put", answer)) : Effect.void
    )
  const open = (patience: number) =>
    Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const attempts = Effect.retry(openConnection(options), {
          while: ({ reason }) => reason._tag === "Unreachable",
          schedule: Schedule.spaced(stepMillis),
          times: Math.ceil(patience / stepMillis)
        })
        const connection = yield* restore(
          sayWaiting(
            attempts,
            (millis) =>
              `Waited ${inSeconds(millis)} for the store at ${options.host}:${options.port}${untilWords(patience, millis)}.`
          )
        )
        current = connection
        yield* restore(Effect.forEach(own, ([key, value]) => putOn(connection, key, value, true), { discard: true }))
        return connection
      })
    )
  let isFirst = true
  const connected: Effect.Effect<StoreConnection, KeyValueError> = Semaphore.withPermits(
    turn,
    1
  )(
    Effect.suspend(() => {
      if (current?.isOpen() === true) return Effect.succeed(current)
      // A store that was there once has agents that wait; do not keep them longer than a restart takes.
      const patience = isFirst ? (options.connectMillis ?? 60_000) : 5_000
      isFirst = false
      return open(patience)
    })
  )

  const watch = (prefix: string): Stream.Stream<Entries, KeyValueError> => {
    const once = Stream.callback<Entries, KeyValueError>((queue) =>
      Effect.gen(function* () {
        const connection = yield* connected
        const id = nextId()
        yield* Effect.acquireRelease(
          Effect.sync(() => {
            const stop = connection.listen(id, (answer) => {
              if (!("type" in answer)) Queue.failCauseUnsafe(queue, Cause.fail(answer))
              else if (answer.type === "entries") Queue.offerUnsafe(queue, new Map(answer.entries))
              else if (answer.type === "refused") Queue.failCauseUnsafe(queue, Cause.fail(refused("watch", answer)))
            })
            connection.send({ type: "watch", id, prefix })
            return stop
          }),
          (stop) =>
            Effect.sync(() => {
              stop()
              connection.send({ type: "unwatch", id })
            })
        )
      })
    )
    return Stream.retry(
      once,
      Schedule.while(Schedule.spaced(stepMillis), ({ input }) => (input as KeyValueError).reason._tag === "Unreachable")
    )
  }

  /** All requests may be made twice: one that met a connection on its way out is. */
  const twice = <A>(request: Effect.Effect<A, KeyValueError>) =>
    Effect.retry(request, { while: ({ reason }) => reason._tag === "Unreachable", times: 1 })

  const request = (message: () => Parameters<StoreConnection["request"]>[0]) =>
    twice(Effect.flatMap(connected, (connection) => connection.request(message())))

  yield* connected
  return {
    put: (key, value, putOptions = {}) =>
      Effect.gen(function* () {
        const isEphemeral = putOptions.isEphemeral === true
        yield* checkEntry(key, value)
        yield* twice(Effect.flatMap(connected, (connection) => putOn(connection, key, value, isEphemeral)))
        if (isEphemeral) own.set(key, value)
        else own.delete(key)
      }),
    create: (key, value) =>
      Effect.gen(function* () {
        yield* checkEntry(key, value)
        // Asked twice, it answers what the first request put.
        const answer = yield* request(() => ({ type: "create", id: nextId(), key, value }))
        if (answer.type === "done" && answer.value !== null) return answer.value
        return yield* refused("create", answer.type === "refused" ? answer : { detail: "The store gave no answer." })
      }),
    get: (key) =>
      Effect.gen(function* () {
        const answer = yield* request(() => ({ type: "get", id: nextId(), key }))
        return answer.type === "done" ? (answer.value ?? undefined) : undefined
      }),
    remove: (key) =>
      Effect.gen(function* () {
        own.delete(key)
        yield* request(() => ({ type: "remove", id: nextId(), key }))
      }),
    list: (prefix) =>
      Effect.gen(function* () {
        const answer = yield* request(() => ({ type: "list", id: nextId(), prefix }))
        return new Map(answer.type === "entries" ? answer.entries : [])
      }),
    watch
  } satisfies KeyValueStoreShape
})

/** The store that `make` connects to. */
export const layerTcp = (options: TcpStoreOptions): Layer.Layer<KeyValueStore, KeyValueError> =>
  Layer.effect(KeyValueStore, make(options))

/** Serves the store and uses it: for the first agent of a job. */
export const layerServed = (options: ServerOptions = {}): Layer.Layer<KeyValueStore, KeyValueError> =>
  Layer.effect(
    KeyValueStore,
    Effect.gen(function* () {
      const port = yield* serveStore(options)
      const { token } = options
      return yield* make({ host: options.host ?? "127.0.0.1", port, ...(token === undefined ? {} : { token }) })
    })
  )
