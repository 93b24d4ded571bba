// SPDX-License-Identifier: Apache-2.0
/**
 * A store in etcd, through the JSON gateway that every etcd serves, so that no client library is needed.
 *
 * Ephemeral entries belong to a lease that this process keeps alive; when the lease is lost, as after a long stop of the
 * process, a new one is taken and the entries are put again. A watch that breaks is started again.
 */
import http from "node:http"
import https from "node:https"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import {
  checkEntry,
  type Entries,
  type KeyValueError,
  KeyValueStore,
  type KeyValueStoreShape,
  keyValueError
} from "./KeyValueStore.ts"

/** Which etcd keeps the keys, and how long its answers may take. */
export interface EtcdOptions {
  /** As http://127.0.0.1:2379. */
  readonly url: string
  /** Stands before all keys; "tensorferry/" by default. */
  readonly prefix?: string
  /** How long an answer may take; 10 seconds by default. */
  readonly deadline?: Duration.Input
  /** How long ephemeral entries outlive this process; 10 seconds by default. */
  readonly leaseSeconds?: number
}

const Pair = Schema.Struct({ key: Schema.String, value: Schema.optionalKey(Schema.String) })
const Range = Schema.Struct({ kvs: Schema.optionalKey(Schema.Array(Pair)) })
/** Of a transaction that puts a key unless it stands, and then reads it. */
const Created = Schema.Struct({
  responses: Schema.Array(Schema.Struct({ response_range: Schema.optionalKey(Range) })),
  succeeded: Schema.optionalKey(Schema.Boolean)
})
const Lease = Schema.Struct({ ID: Schema.String })
const KeepAlive = Schema.Struct({
  result: Schema.optionalKey(Schema.Struct({ TTL: Schema.optionalKey(Schema.String) }))
})
const Anything = Schema.Unknown

const base64 = (text: string): string => Buffer.from(text).toString("base64")
const fromBase64 = (text: string): string => Buffer.from(text, "base64").toString("utf8")

/** The end of the range of all keys that begin so. */
const rangeEnd = (prefix: string): string => {
  const bytes = Buffer.from(prefix)
  let last = bytes.length - 1
  while (last >= 0 && bytes[last] === 0xff) last--
  // Every key: a range from this to a zero byte has no end.
  if (last < 0) return base64("\0")
  bytes[last] = bytes[last]! + 1
  return bytes.subarray(0, last + 1).toString("base64")
}

/** Calls of one etcd until the scope ends. */
const makeCalls = Effect.fnUntraced(function* (url: string, deadline: Duration.Input) {
  const remedy = `See whether an etcd of version 3.4 or newer answers at ${url}.`
  const unreachable = (op: string, detail: string) =>
    keyValueError("Unreachable", { op, detail, remedy, isRetryable: true })
  const notAnswered = (op: string) => (cause: unknown) =>
    unreachable(op, `etcd cannot be reached: ${cause instanceof Error ? cause.message : String(cause)}.`)
  const refused = (op: string, status: number, text: string): KeyValueError => {
    const detail = `etcd answered ${status}: ${text.slice(0, 200)}.`
    if (/too large/.test(text)) return keyValueError("TooLarge", { op, detail, remedy: "Put less under one key." })
    return status >= 500 ? unreachable(op, detail) : keyValueError("Refused", { op, detail, remedy })
  }

  const open = (op: string, body: unknown): Effect.Effect<Response, KeyValueError> =>
    Effect.flatMap(
      Effect.tryPromise({
        try: (signal) => fetch(`${url}/v3/${op}`, { method: "POST", body: JSON.stringify(body), signal }),
        catch: notAnswered(op)
      }),
      (response) =>
        response.ok
          ? Effect.succeed(response)
          : Effect.flatMap(
              Effect.orElseSucceed(
                Effect.tryPromise(() => response.text()),
                () => ""
              ),
              (text) => Effect.fail(refused(op, response.status, text))
            )
    )

  const isSecure = url.startsWith("https:")
  const agent = yield* Effect.acquireRelease(
    Effect.sync(() => (isSecure ? new https.Agent({ keepAlive: true }) : new http.Agent({ keepAlive: true }))),
    (made) => Effect.sync(() => made.destroy())
  )
  /** The text of an answer. Short calls come many times a second, and `fetch` takes several times as long for them. */
  const ask = (op: string, body: unknown): Effect.Effect<string, KeyValueError> =>
    Effect.flatMap(
      Effect.tryPromise({
        try: (signal) =>
          new Promise<{ readonly status: number; readonly text: string }>((resolve, reject) => {
            const payload = JSON.stringify(body)
            const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(payload) }
            const { request } = isSecure ? https : http
            const asked = request(`${url}/v3/${op}`, { method: "POST", agent, signal, headers }, (response) => {
              let text = ""
              response.setEncoding("utf8")
              response.on("data", (part: string) => {
                text += part
              })
              response.on("end", () => resolve({ status: response.statusCode ?? 0, text }))
              response.on("error", reject)
            })
            asked.on("error", reject)
            asked.end(payload)
          }),
        catch: notAnswered(op)
      }),
      ({ status, text }) => (status === 200 ? Effect.succeed(text) : Effect.fail(refused(op, status, text)))
    )

  const call = <A>(schema: Schema.Codec<A, unknown>, op: string, body: unknown): Effect.Effect<A, KeyValueError> =>
    Effect.gen(function* () {
      const text = yield* ask(op, body)
      const json = yield* Effect.try({
        try: () => JSON.parse(text) as unknown,
        catch: () => unreachable(op, "The answer of etcd was cut short.")
      })
      const decoded = Schema.decodeUnknownResult(schema)(json)
      if (Result.isSuccess(decoded)) return decoded.success
      return yield* keyValueError("Refused", { op, detail: "The answer is not one of etcd.", remedy })
    }).pipe(
      Effect.timeoutOrElse({
        duration: deadline,
        orElse: () =>
          Effect.fail(
            keyValueError("DeadlineExceeded", {
              op,
              detail: `etcd did not answer within ${Duration.format(Duration.fromInputUnsafe(deadline))}.`,
              remedy,
              isRetryable: true
            })
          )
      })
    )
  return { call, open, unreachable }
})

/** A client of one etcd. It fails with KeyValueError where etcd does not answer in time. */
export const make = Effect.fnUntraced(function* (options: EtcdOptions) {
  const root = options.prefix ?? "tensorferry/"
  const leaseSeconds = options.leaseSeconds ?? 10
  const { call, open, unreachable } = yield* makeCalls(
    options.url.replace(/\/+$/, ""),
    options.deadline ?? "10 seconds"
  )

  const own = new Map<string, string>()
  const turn = yield* Semaphore.make(1)
  let lease: string | undefined
  const putUnder = (id: string | undefined, key: string, value: string) =>
    call(Anything, "kv/put", {
      key: base64(root + key),
      value: base64(value),
      ...(id === undefined ? {} : { lease: id })
    })
  /** The lease that is alive; a new one carries all ephemeral entries over. */
  const aliveLease: Effect.Effect<string, KeyValueError> = Semaphore.withPermits(
    turn,
    1
  )(
    Effect.suspend(() =>
      lease !== undefined
        ? Effect.succeed(lease)
        : Effect.gen(function* () {
            const { ID } = yield* call(Lease, "lease/grant", { TTL: leaseSeconds })
            lease = ID
            yield* Effect.forEach(own, ([key, value]) => putUnder(ID, key, value), { discard: true })
            return ID
          })
    )
  )
  const keepAlive = Effect.gen(function* () {
    if (lease === undefined) {
      if (own.size > 0) yield* aliveLease
      return
    }
    const { result } = yield* call(KeepAlive, "lease/keepalive", { ID: lease })
    // Without time left it has expired, and its entries are gone.
    if (result?.TTL === undefined || Number(result.TTL) <= 0) {
      lease = undefined
      if (own.size > 0) yield* aliveLease
    }
  })
  yield* Effect.addFinalizer(() =>
    Effect.suspend(() =>
      lease === undefined ? Effect.void : Effect.ignore(call(Anything, "lease/revoke", { ID: lease }))
    )
  )
  yield* Effect.forkScoped(
    Effect.ignore(keepAlive).pipe(Effect.repeat(Schedule.spaced(Duration.seconds(leaseSeconds / 3))))
  )

  const list = (prefix: string): Effect.Effect<Entries, KeyValueError> =>
    Effect.map(
      call(Range, "kv/range", { key: base64(root + prefix), range_end: rangeEnd(root + prefix) }),
      ({ kvs = [] }) =>
        new Map(kvs.map(({ key, value = "" }) => [fromBase64(key).slice(root.length), fromBase64(value)] as const))
    )

  const watch = (prefix: string): Stream.Stream<Entries, KeyValueError> => {
    const request = { create_request: { key: base64(root + prefix), range_end: rangeEnd(root + prefix) } }
    // Every part of the answer, the first included, says that something may have changed since the last look.
    const once = Stream.unwrap(
      Effect.map(open("watch", request), (response) =>
        Stream.fromReadableStream({
          evaluate: () => response.body as unknown as ReadableStream<Uint8Array>,
          onError: () => unreachable("watch", "The watch was cut off.")
        }).pipe(
          // What comes while one look is taken needs one more look, however much it is.
          Stream.buffer({ capacity: 1, strategy: "sliding" }),
          Stream.concat(Stream.fail(unreachable("watch", "etcd ended the watch.")))
        )
      )
    ).pipe(Stream.mapEffect(() => list(prefix)))
    return Stream.retry(
      once,
      Schedule.while(Schedule.spaced("200 millis"), ({ input }) => (input as KeyValueError).reason._tag !== "Refused")
    )
  }

  // A wrong address is better reported now than at the first pair.
  yield* list("\0")
  return {
    put: (key, value, putOptions = {}) =>
      Effect.gen(function* () {
        yield* checkEntry(key, value)
        if (putOptions.isEphemeral !== true) {
          own.delete(key)
          yield* putUnder(undefined, key, value)
          return
        }
        const id = yield* aliveLease
        yield* putUnder(id, key, value)
        own.set(key, value)
      }),
    create: (key, value) =>
      Effect.gen(function* () {
        yield* checkEntry(key, value)
        const at = base64(root + key)
        const { responses, succeeded = false } = yield* call(Created, "kv/txn", {
          compare: [{ key: at, target: "CREATE", create_revision: "0", result: "EQUAL" }],
          success: [{ request_put: { key: at, value: base64(value) } }],
          failure: [{ request_range: { key: at } }]
        })
        if (succeeded) return value
        return fromBase64(responses[0]?.response_range?.kvs?.[0]?.value ?? "")
      }),
    get: (key) =>
      Effect.map(call(Range, "kv/range", { key: base64(root + key) }), ({ kvs = [] }) =>
        kvs[0] === undefined ? undefined : fromBase64(kvs[0].value ?? "")
      ),
    remove: (key) =>
      Effect.suspend(() => {
        own.delete(key)
        return Effect.asVoid(call(Anything, "kv/deleterange", { key: base64(root + key) }))
      }),
    list,
    watch
  } satisfies KeyValueStoreShape
})

/** A store kept by etcd, over its JSON gateway. Ephemeral entries outlive their writer by `leaseSeconds`. */
export const layerEtcd = (options: EtcdOptions): Layer.Layer<KeyValueStore, KeyValueError> =>
  Layer.effect(KeyValueStore, make(options))
