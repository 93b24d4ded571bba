// SPDX-License-Identifier: Apache-2.0
/** Looks at a fleet in its store, and leaves everything there as it is. */
import type { KeyValueError, KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import { type FleetError, fleetError } from "../FleetError.ts"
import { progressRoot, readProgress } from "../progress/reportProgress.ts"
import { type FleetLook, fleetRoot, lookOf } from "../service/FleetStore.ts"
import { type FleetView, makeFleetView, type Seen } from "./FleetView.ts"
import { Heartbeats } from "./Heartbeats.ts"

const memoryKey = /^fleet\/([^/]+)\/log\/memory$/

const decoded = (name: string): string => {
  try {
    return decodeURIComponent(name)
  } catch {
    return name
  }
}

/** Names of the fleets that have a history in a store, sorted. */
export const fleetsIn = (store: KeyValueStoreShape): Effect.Effect<ReadonlyArray<string>, KeyValueError> =>
  Effect.map(store.list("fleet/"), (entries) =>
    [...entries.keys()].flatMap((key) => memoryKey.exec(key)?.slice(1, 2).map(decoded) ?? []).sort()
  )

const unknown = (name: string, there: ReadonlyArray<string>): FleetError =>
  fleetError("NotFound", [], {
    detail: name === "" ? "The store has no fleet." : `The store has no fleet ${JSON.stringify(name)}.`,
    remedy:
      there.length === 0
        ? "See whether the members use this store, and whether one runs."
        : `It has ${there
            .slice(0, 8)
            .map((each) => JSON.stringify(each))
            .join(", ")}${there.length > 8 ? " and others" : ""}.`
  })

/** The fleet that is meant where none is named. Fails where there is none, or more than one. */
export const chooseFleet = (
  store: KeyValueStoreShape,
  name: string | undefined
): Effect.Effect<string, KeyValueError | FleetError> =>
  Effect.flatMap(fleetsIn(store), (there) => {
    if (name !== undefined) return there.includes(name) ? Effect.succeed(name) : Effect.fail(unknown(name, there))
    if (there.length === 1) return Effect.succeed(there[0]!)
    if (there.length === 0) return Effect.fail(unknown("", []))
    return Effect.fail(
      fleetError("InvalidOptions", [], {
        detail: `The store has ${there.length} fleets: ${there.slice(0, 8).join(", ")}${there.length > 8 ? " and others" : ""}.`,
        remedy: "Name one of them, as by --fleet."
      })
    )
  })

/** What stands in the store, with all that is known of heartbeats. */
export interface FleetReader {
  /** Looks now. Fails where the store cannot be reached, or has no such fleet any more. */
  readonly look: Effect.Effect<Seen, KeyValueError | FleetError>
}

/** A reader that remembers heartbeats from look to look. */
export const fleetReader = (store: KeyValueStoreShape, name: string): FleetReader => {
  const beats = new Heartbeats()
  return {
    look: Effect.gen(function* () {
      const found = lookOf(fleetRoot(name), yield* store.list(fleetRoot(name)))
      const progress = readProgress(yield* store.list(progressRoot(name)))
      if (found === undefined) return yield* unknown(name, yield* fleetsIn(store))
      const now = (yield* monotonicMillis) / 1000
      beats.look(found.reports, now, yield* Clock.currentTimeMillis)
      return { name, look: found, progress, silent: beats.silent(now) }
    })
  }
}

/** How long one look at a fleet takes at most, for members that beat twice a second; between two looks of it. */
const [patience, pause] = [1200, 100]

/**
 * A fleet as it is now. Looks until every member has given a sign of life, or for 1.2 seconds: whoever has been silent that
 * long is known for it.
 */
export const readFleet = (
  store: KeyValueStoreShape,
  name: string
): Effect.Effect<{ readonly seen: Seen; readonly view: FleetView }, KeyValueError | FleetError> =>
  Effect.gen(function* () {
    const { look } = fleetReader(store, name)
    const first = yield* look
    const begun = yield* monotonicMillis
    const beatOf = ({ look: { reports } }: { readonly look: FleetLook }) =>
      new Map(reports.map(({ member, beat }) => [member.id, beat]))
    const before = beatOf(first)
    let last = first
    const isDue = (seen: Seen): boolean => [...beatOf(seen)].some(([id, beat]) => before.get(id) === beat)
    while (isDue(last) && (yield* monotonicMillis) - begun < patience) {
      yield* Effect.sleep(pause)
      last = yield* look
    }
    return { seen: last, view: makeFleetView(last) }
  })
