// SPDX-License-Identifier: Apache-2.0
/** `tensorferry watch`: a fleet as a live page, as text in a terminal, or as series for Prometheus. */
import { randomBytes } from "node:crypto"
import { KeyValueStore } from "@tensorferry/bus"
import { chooseFleet, readFleet } from "@tensorferry/fleet/view/readFleet"
import * as Clock from "effect/Clock"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { watchText } from "../fleet/fleetText.ts"
import { withFailures } from "../output/CliFailure.ts"
import { quiet } from "../output/quiet.ts"
import { print, printEither, printText, redraw, terminalWidth } from "../text/terminal.ts"
import { serveMetrics, serveWatch } from "../watch/serveWatch.ts"
import { type WatchedFleet, watchFleet } from "../watch/watchFleet.ts"
import { usage } from "./meshFlags.ts"
import { json } from "./shared.ts"
import { fleetFlags, secret, storeLayer } from "./storeFlags.ts"

const Port = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 65_535 }))

const flags = {
  ...fleetFlags,
  port: Flag.Int("port").pipe(
    Flag.withSchema(Port),
    Flag.withDescription("Port of 127.0.0.1 for the page; 0 takes any free one"),
    Flag.withDefault(0)
  ),
  metricsPort: Flag.Int("metrics-port").pipe(
    Flag.withSchema(Port),
    Flag.withDescription(
      "Serve /metrics for Prometheus at this port of 127.0.0.1 too, to everybody there; /metrics of the page's port takes TENSORFERRY_METRICS_TOKEN as bearer"
    ),
    Flag.optional
  ),
  terminal: Flag.Boolean("terminal").pipe(
    Flag.withDescription("Show the fleet in this terminal instead of a page, and draw it again as it changes"),
    Flag.withDefault(false)
  ),
  once: Flag.Boolean("once").pipe(
    Flag.withDescription("Print what a terminal would show now, and end"),
    Flag.withDefault(false)
  ),
  quiet,
  json
}

/** Where no terminal says how wide it is. */
const usualWidth = 80

/** Draws what was seen last. */
const draw = (watched: WatchedFleet) =>
  Effect.flatMap(Clock.currentTimeMillis, (now) => {
    const columns = terminalWidth() ?? usualWidth
    const { trouble } = watched.page().head
    const text = watchText(watched.view(), now, columns)
    return redraw(trouble === "" ? text : `${text}\n\n${trouble}`, columns)
  })

const once = (flagsGiven: { readonly json: boolean; readonly fleet: Option.Option<string> }) =>
  Effect.gen(function* () {
    const store = yield* KeyValueStore
    const { view } = yield* readFleet(store, yield* chooseFleet(store, Option.getOrUndefined(flagsGiven.fleet)))
    const now = yield* Clock.currentTimeMillis
    yield* printEither(
      flagsGiven.json,
      () => ({ ok: true, ...view }),
      () => watchText(view, now, terminalWidth() ?? usualWidth)
    )
  })

export const watch = Command.make("watch", flags, (given) =>
  withFailures(
    given,
    Effect.gen(function* () {
      if (given.once && given.terminal) return yield* usage("--once prints one view and ends.", "Leave --terminal out.")
      if (given.terminal && given.json)
        return yield* usage("A terminal shows no document.", "Leave --terminal or --json out.")
      if (given.terminal && process.stdout.isTTY !== true) {
        return yield* usage("Standard output is no terminal.", "Take --once, or leave --terminal out for the page.")
      }
      const layer = yield* storeLayer(given.store)
      if (given.once) return yield* Effect.provide(once(given), layer)
      const served = Effect.gen(function* () {
        const store = yield* KeyValueStore
        const name = yield* chooseFleet(store, Option.getOrUndefined(given.fleet))
        let onLook: Effect.Effect<void> = Effect.void
        const watched = yield* watchFleet(
          store,
          name,
          Effect.suspend(() => onLook)
        )
        const metricsAt = Option.isNone(given.metricsPort)
          ? undefined
          : `http://127.0.0.1:${yield* serveMetrics(given.metricsPort.value, watched.metrics)}/metrics`
        if (given.terminal) {
          onLook = draw(watched)
          yield* draw(watched)
          return yield* Effect.never
        }
        const token = randomBytes(24).toString("base64url")
        const page = yield* serveWatch({
          port: given.port,
          token,
          metricsToken: yield* secret("TENSORFERRY_METRICS_TOKEN"),
          first: watched.page(),
          metrics: watched.metrics
        })
        onLook = Effect.suspend(() => page.show(watched.page()))
        const url = `http://127.0.0.1:${page.port}/#token=${token}`
        // One line, so that whoever starts it reads until its end.
        yield* given.json
          ? print(
              JSON.stringify({ ok: true, fleet: name, url, ...(metricsAt === undefined ? {} : { metrics: metricsAt }) })
            )
          : printText(
              [
                `Fleet ${name} is shown at ${url}`,
                ...(metricsAt === undefined ? [] : [`Metrics are at ${metricsAt}`]),
                "Stop it with Ctrl-C or SIGTERM."
              ].join("\n")
            )
        return yield* Effect.never
      })
      return yield* Effect.provide(Effect.scoped(served), layer)
    })
  )
).pipe(
  Command.withExamples([
    { command: "tensorferry watch", description: "A page about the only fleet of a store on this machine" },
    {
      command: "tensorferry watch --store http://127.0.0.1:2379 --fleet prod --port 8080",
      description: "About one of several fleets in an etcd, at a port that stays"
    },
    {
      command: "tensorferry watch --metrics-port 9464",
      description: "The page, and series for a Prometheus of this machine"
    },
    { command: "tensorferry watch --terminal", description: "In this terminal, as over ssh" },
    { command: "tensorferry watch --once", description: "One look, as for a log" }
  ])
)
