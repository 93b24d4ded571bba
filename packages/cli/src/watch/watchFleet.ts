// SPDX-License-Identifier: Apache-2.0
/**
 * Looks at a fleet again and again, and keeps what was seen last. A store that is away is asked again; until it is back, what
 * is known of the fleet stays, with why it is old.
 */
import type { KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import { type FleetView, makeFleetView } from "@tensorferry/fleet/view/FleetView"
import { fleetMetrics } from "@tensorferry/fleet/view/fleetMetrics"
import { fleetReader } from "@tensorferry/fleet/view/readFleet"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { inOneLine } from "../text/terminal.ts"
import { type PageView, pageViewOf } from "./pageView.ts"
import { Rates } from "./Rates.ts"

/** Milliseconds between two looks. Where a look takes long, as long as three of them. */
const leastPause = 500
/** After a look that failed. */
const failedPause = 1000

/** Counts updates that ended, each once: the history forgets old ones, a counter must not. */
class Ended {
  readonly counts = { committed: 0, aborted: 0 }
  #newest = 0

  look({ updates }: FleetView): void {
    for (const { serial, outcome } of [...updates].reverse()) {
      if (outcome === "open" || serial <= this.#newest) continue
      this.counts[outcome] += 1
      this.#newest = serial
    }
  }
}

/** What was seen last. */
export interface WatchedFleet {
  readonly view: () => FleetView
  readonly page: () => PageView
  /** In the form of Prometheus. */
  readonly metrics: () => string
}

/**
 * Watches until the scope closes; `onLook` runs after every look. Fails where the first one does: without a store there is
 * nothing to show.
 */
export const watchFleet = Effect.fnUntraced(function* (
  store: KeyValueStoreShape,
  name: string,
  onLook: Effect.Effect<void>
) {
  const reader = fleetReader(store, name)
  const [rates, ended] = [new Rates(), new Ended()]
  let lookMillis = 0
  let trouble = ""
  const look = Effect.gen(function* () {
    const begun = yield* monotonicMillis
    const view = makeFleetView(yield* reader.look)
    const now = yield* monotonicMillis
    lookMillis = now - begun
    rates.look(view.flow, now / 1000)
    ended.look(view)
    return view
  })
  let view = yield* look
  let page = pageViewOf(view, rates.now, trouble)
  const again = Effect.gen(function* () {
    yield* Effect.sleep(trouble === "" ? Math.max(leastPause, 3 * lookMillis) : failedPause)
    const found = yield* Effect.result(look)
    if (Result.isSuccess(found)) view = found.success
    trouble = Result.isSuccess(found) ? "" : inOneLine(found.failure.message)
    page = pageViewOf(view, trouble === "" ? rates.now : new Map(), trouble)
    yield* onLook
  })
  yield* Effect.forkScoped(Effect.forever(again))
  return {
    view: () => view,
    page: () => page,
    metrics: () =>
      fleetMetrics(name, view, { isStoreUp: trouble === "", lookSeconds: lookMillis / 1000, ended: ended.counts })
  } satisfies WatchedFleet
})
