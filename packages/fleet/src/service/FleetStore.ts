// SPDX-License-Identifier: Apache-2.0
/**
 * A fleet's keys in the store. Under `NAME/`: `log/memory` is another text whenever the store has lost its memory,
 * `log/MEMORY/NUMBER` an entry of the history, `member/ID` what a member reports, `ask/ID/...` who wants bytes of a member
 * and `door/...` where it gives them.
 */
import { randomUUID } from "node:crypto"
import type { Entries, KeyValueError, KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { LogEntry } from "../version/FleetLog.ts"
import { MemberReport } from "../version/MemberState.ts"

const entryText = Schema.fromJsonString(LogEntry)
const reportText = Schema.fromJsonString(MemberReport)

/** What stands in the store at one moment. */
export interface FleetLook {
  /** Another one whenever the store has lost its memory. */
  readonly incarnation: string
  /** By number. */
  readonly entries: ReadonlyMap<number, LogEntry>
  /** Of all members, where they were asked for. */
  readonly reports: ReadonlyArray<MemberReport>
}

const keyOf = (root: string, incarnation: string, position: number): string =>
  `${root}log/${incarnation}/${String(position).padStart(12, "0")}`

/** What all keys of a fleet begin with. */
export const fleetRoot = (name: string): string => `fleet/${encodeURIComponent(name)}/`

/** Remembers what texts say: most of what one look finds is what the one before found. */
class Decoder<A> {
  readonly #schema: Schema.Codec<A, string>
  #known = new Map<string, Result.Result<A, unknown>>()
  #seen = new Map<string, Result.Result<A, unknown>>()

  constructor(schema: Schema.Codec<A, string>) {
    this.#schema = schema
  }

  decode(text: string): Result.Result<A, unknown> {
    const known = this.#seen.get(text) ?? this.#known.get(text) ?? Schema.decodeUnknownResult(this.#schema)(text)
    this.#seen.set(text, known)
    return known
  }

  /** Texts that were not seen since the last call are forgotten. */
  turn(): void {
    this.#known = this.#seen
    this.#seen = new Map()
  }
}

const makeDecoders = () => ({ entries: new Decoder(entryText), reports: new Decoder(reportText) })

/** Reads what stands under a fleet's keys; undefined where there is no fleet. */
export const lookOf = (root: string, found: Entries, known = makeDecoders()): FleetLook | undefined => {
  const incarnation = found.get(`${root}log/memory`)
  if (incarnation === undefined) return undefined
  const entries = new Map<number, LogEntry>()
  const reports: Array<MemberReport> = []
  const log = `${root}log/${incarnation}/`
  for (const [key, text] of found) {
    // What does not decode is of another release; a history with a gap is read up to it.
    if (key.startsWith(log)) {
      const entry = known.entries.decode(text)
      if (Result.isSuccess(entry)) entries.set(Number(key.slice(log.length)), entry.success)
    } else if (key.startsWith(`${root}member/`)) {
      const report = known.reports.decode(text)
      if (Result.isSuccess(report)) reports.push(report.success)
    }
  }
  known.entries.turn()
  if (reports.length > 0) known.reports.turn()
  return { incarnation, entries, reports }
}

/** With the wall clock's time, for people, unless one is stated. */
const stamped = <A extends object, E>(
  stated: A,
  put: (stated: A & { readonly at: number }) => Effect.Effect<void, E>
): Effect.Effect<void, E> => Effect.flatMap(Clock.currentTimeMillis, (at) => put({ at, ...stated }))

/** What a fleet does with its store. */
export const makeFleetStore = (store: KeyValueStoreShape, name: string) => {
  const root = fleetRoot(name)
  const known = makeDecoders()
  const look = (prefix: string): Effect.Effect<FleetLook, KeyValueError> =>
    Effect.gen(function* () {
      const found = lookOf(root, yield* store.list(prefix), known)
      if (found !== undefined) return found
      yield* store.create(`${root}log/memory`, randomUUID())
      return lookOf(root, yield* store.list(prefix), known) ?? { incarnation: "", entries: new Map(), reports: [] }
    })
  return {
    /** What all keys of the fleet begin with. */
    root,
    /** The history alone. */
    lookAtLog: look(`${root}log/`),
    /** History and reports, at one moment. */
    lookAtAll: look(root),
    /** Reports go with the process that made them. */
    report: (report: MemberReport): Effect.Effect<void, KeyValueError> =>
      stamped(report, (at) =>
        store.put(`${root}member/${report.member.id}`, Schema.encodeSync(reportText)(at), { isEphemeral: true })
      ),
    /** Puts the entry unless something stands there; whether it did shows in the next look. */
    append: (incarnation: string, position: number, entry: LogEntry): Effect.Effect<void, KeyValueError> =>
      stamped(entry, (at) =>
        Effect.asVoid(store.create(keyOf(root, incarnation, position), Schema.encodeSync(entryText)(at)))
      ),
    /** Removes entries before a number that the history does not need. */
    forget: (look: FleetLook, before: number): Effect.Effect<void, KeyValueError> =>
      Effect.forEach(
        [...look.entries.keys()].filter((position) => position < before),
        (position) => store.remove(keyOf(root, look.incarnation, position)),
        { discard: true }
      )
  }
}

/** A fleet's store. */
export type FleetStore = ReturnType<typeof makeFleetStore>
