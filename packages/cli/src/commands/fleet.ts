// SPDX-License-Identifier: Apache-2.0
/** `tensorferry fleet`: members of a fleet, its history, and one version's life. */
import { KeyValueStore } from "@tensorferry/bus"
import { fleetError } from "@tensorferry/fleet/FleetError"
import { explainVersion } from "@tensorferry/fleet/view/explainVersion"
import { chooseFleet, readFleet } from "@tensorferry/fleet/view/readFleet"
import * as Clock from "effect/Clock"
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { explainText } from "../fleet/explainText.ts"
import { headText, historyText, membersText } from "../fleet/fleetText.ts"
import { withFailures } from "../output/CliFailure.ts"
import { quiet } from "../output/quiet.ts"
import { printEither } from "../text/terminal.ts"
import { json } from "./shared.ts"
import { fleetFlags, storeLayer } from "./storeFlags.ts"

interface FleetFlags {
  readonly store: string
  readonly fleet: Option.Option<string>
  readonly json: boolean
}

/** The fleet that the flags name, as it is now. */
const look = (flags: FleetFlags) =>
  Effect.gen(function* () {
    const layer = yield* storeLayer(flags.store)
    return yield* Effect.gen(function* () {
      const store = yield* KeyValueStore
      return yield* readFleet(store, yield* chooseFleet(store, Option.getOrUndefined(flags.fleet)))
    }).pipe(Effect.provide(layer))
  })

const status = Command.make("status", { ...fleetFlags, quiet, json }, (flags) =>
  withFailures(
    flags,
    Effect.gen(function* () {
      const { view } = yield* look(flags)
      const now = yield* Clock.currentTimeMillis
      const { updates: _, ...shown } = view
      yield* printEither(
        flags.json,
        () => ({ ok: true, ...shown, open: view.updates.find(({ outcome }) => outcome === "open") ?? null }),
        () => `${headText(view, now)}\n\n${membersText(view)}`
      )
    })
  )
).pipe(
  Command.withDescription(
    "Show the members: where they run, what they serve and do, and when they last gave a sign of life"
  )
)

const history = Command.make("history", { ...fleetFlags, quiet, json }, (flags) =>
  withFailures(
    flags,
    Effect.gen(function* () {
      const { view } = yield* look(flags)
      yield* printEither(
        flags.json,
        () => ({ ok: true, name: view.name, current: view.current, updates: view.updates }),
        () => (view.updates.length === 0 ? `Fleet ${view.name} has had no update.` : historyText(view.updates))
      )
    })
  )
).pipe(
  Command.withDescription(
    "Show the last updates: how they ended, how long they took, who was slow, and why some were given up"
  )
)

const notKept = (serial: number, known: ReadonlyArray<number>) =>
  fleetError("NotFound", [], {
    detail: `The history has no version ${serial}.`,
    remedy:
      known.length === 0
        ? "It has none at all; publish one first."
        : `It has ${known.slice(0, 8).join(", ")}${known.length > 8 ? " and older ones" : ""}; it keeps the last 32 that ended.`
  })

const explain = Command.make(
  "explain",
  {
    version: Argument.Int("VERSION").pipe(
      Argument.withSchema(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER }))),
      Argument.withDescription("Number of the version, as history lists it")
    ),
    ...fleetFlags,
    quiet,
    json
  },
  (flags) =>
    withFailures(
      flags,
      Effect.gen(function* () {
        const { seen, view } = yield* look(flags)
        const found = explainVersion(seen, flags.version)
        if (found === undefined) {
          return yield* notKept(
            flags.version,
            view.updates.map(({ serial }) => serial)
          )
        }
        yield* printEither(
          flags.json,
          () => ({ ok: true, name: view.name, ...found }),
          () => explainText(found)
        )
      })
    )
).pipe(
  Command.withDescription(
    "Tell one version's life step by step: who was slow, who kept it from being committed, what to do"
  )
)

export const fleet = Command.make("fleet").pipe(
  Command.withExamples([
    { command: "tensorferry fleet status", description: "Members of the only fleet of a store on this machine" },
    {
      command: "tensorferry fleet history --store http://127.0.0.1:2379 --fleet prod",
      description: "Updates of one of several fleets in an etcd"
    },
    { command: "tensorferry fleet explain 41 --store 10.0.0.5:29650", description: "Why version 41 took so long" },
    { command: "tensorferry fleet status --json", description: "The same for tools" }
  ]),
  Command.withSubcommands([status, history, explain])
)
