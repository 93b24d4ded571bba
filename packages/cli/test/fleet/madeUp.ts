// SPDX-License-Identifier: Apache-2.0
/** A fleet in a served store whose members are made up: they beat, and do nothing else. */

import { serveStore } from "@tensorferry/bus/store/KeyValueServer"
import type { KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import { make } from "@tensorferry/bus/store/KeyValueStoreTcp"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type { MemberProgress } from "../../../fleet/src/progress/MemberProgress.ts"
import { progressRoot } from "../../../fleet/src/progress/reportProgress.ts"
import { makeFleetStore } from "../../../fleet/src/service/FleetStore.ts"
import type { MemberReport } from "../../../fleet/src/version/MemberState.ts"
import type { Seen } from "../../../fleet/src/view/FleetView.ts"

/** Puts everything of a look into a store. */
export const putFleet = (store: KeyValueStoreShape, { name, look, progress }: Seen) =>
  Effect.gen(function* () {
    const fleet = makeFleetStore(store, name)
    const { incarnation } = yield* fleet.lookAtLog
    for (const [position, entry] of look.entries) yield* fleet.append(incarnation, position, entry)
    for (const report of look.reports) yield* fleet.report(report)
    for (const stated of progress.values()) yield* putProgress(store, name, stated)
  })

export const putProgress = (store: KeyValueStoreShape, name: string, stated: MemberProgress) =>
  store.put(`${progressRoot(name)}${stated.id}`, JSON.stringify(stated), { isEphemeral: true })

/** Reports again, ten times a second, until the scope closes. */
export const beat = (store: KeyValueStoreShape, name: string, reports: () => ReadonlyArray<MemberReport>) => {
  const fleet = makeFleetStore(store, name)
  let turn = 1
  const again = Effect.suspend(() => {
    turn += 1
    return Effect.forEach(reports(), (report) => fleet.report({ ...report, beat: turn }), { discard: true })
  })
  return Effect.forkScoped(Effect.repeat(Effect.ignore(again), Schedule.spaced(100)))
}

/** A store on a port of its own, and a client of it. */
export const servedStore = (options: { readonly token?: string } = {}) =>
  Effect.gen(function* () {
    const port = yield* serveStore(options)
    return { port, store: yield* make({ host: "127.0.0.1", port, ...options }) }
  })
