// SPDX-License-Identifier: Apache-2.0
/**
 * Keeps a member's statement of progress in the store: soon after it changed, at most once in `leastMillis`. The entry goes
 * with the process. It stands apart from what members and controllers read, so that nobody is woken by it, and a store that
 * is away holds nothing up.
 */
import { hostname } from "node:os"
import type { Entries, KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { FleetTimes } from "../version/FleetTimes.ts"
import { MemberProgress, ProgressRecord } from "./MemberProgress.ts"

const progressText = Schema.fromJsonString(MemberProgress)

/** Between two statements of one member. */
const leastMillis = 1000

/** What keys of statements begin with. */
export const progressRoot = (name: string): string => `fleet-progress/${encodeURIComponent(name)}/`

/** Statements by id of the member; what does not decode is of another release, and left out. */
export const readProgress = (entries: Entries): ReadonlyMap<string, MemberProgress> => {
  const found = new Map<string, MemberProgress>()
  for (const text of entries.values()) {
    const stated = Schema.decodeUnknownResult(progressText)(text)
    if (Result.isSuccess(stated)) found.set(stated.success.id, stated.success)
  }
  return found
}

/** What a member notes. Each is noted at once, and stated soon. */
export interface ProgressReporter {
  /** It begins to take a version, or begins again. */
  readonly begin: (serial: number, bytes: number) => Effect.Effect<void>
  /** It asks a member for the rest of a stripe of bytes. */
  readonly take: (serial: number, from: string, stripe: number, bytes: number) => Effect.Effect<void>
  /** Bytes of a stripe are here and proven. */
  readonly arrived: (serial: number, stripe: number, bytes: number) => Effect.Effect<void>
  /** All of the version is here and proven. */
  readonly staged: (serial: number) => Effect.Effect<void>
  /** The version is in use. */
  readonly live: (serial: number) => Effect.Effect<void>
}

/** States progress until the scope closes. */
export const reportProgress = Effect.fnUntraced(function* (
  store: KeyValueStoreShape,
  name: string,
  id: string,
  { beat, dead }: FleetTimes
) {
  const record = new ProgressRecord({ id, host: hostname(), process: process.pid, beat, dead })
  const key = `${progressRoot(name)}${id}`
  const due = yield* Queue.sliding<void>(1)
  const state = Effect.gen(function* () {
    yield* Queue.take(due)
    const put = store.put(key, Schema.encodeSync(progressText)(record.stated), { isEphemeral: true })
    // Stated again in the next turn, with whatever has changed until then.
    yield* Effect.catch(put, () => Queue.offer(due, undefined))
    yield* Effect.sleep(leastMillis)
  })
  const note = (change: (at: number) => void): Effect.Effect<void> =>
    Effect.flatMap(Clock.currentTimeMillis, (at) => {
      change(at)
      return Effect.asVoid(Queue.offer(due, undefined))
    })
  yield* Queue.offer(due, undefined)
  yield* Effect.forkScoped(Effect.forever(state))
  yield* Effect.addFinalizer(() => Effect.ignore(store.remove(key)))
  return {
    begin: (serial, bytes) => note((at) => record.begin(serial, bytes, at)),
    take: (serial, from, stripe, bytes) => note(() => record.take(serial, from, stripe, bytes)),
    arrived: (serial, stripe, bytes) => note(() => record.arrived(serial, stripe, bytes)),
    staged: (serial) => note((at) => record.staged(serial, at)),
    live: (serial) => note((at) => record.live(serial, at))
  } satisfies ProgressReporter
})
