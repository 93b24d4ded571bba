// SPDX-License-Identifier: Apache-2.0
/** Where the store of a bus or a fleet is, and how commands that only look at one reach it. */
import { KeyValueStoreEtcd, KeyValueStoreTcp } from "@tensorferry/bus"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import * as Config from "effect/Config"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"

/** Where an agent serves its store unless told otherwise. */
export const defaultStore = "127.0.0.1:29650"

/** How long a command that only looks waits for a store, in milliseconds. */
const patience = 3000

const usage = (detail: string, remedy: string): ModelError => modelError("InvalidUsage", { detail, remedy })

/** An etcd, or the address of whoever serves a store. */
export type StorePlace =
  | { readonly _tag: "Etcd"; readonly url: string }
  | { readonly _tag: "Served"; readonly host: string; readonly port: number }

/** Reads `HOST:PORT`, or the URL of an etcd. */
export const storePlace = (address: string): Effect.Effect<StorePlace, ModelError> => {
  if (/^https?:\/\//.test(address)) return Effect.succeed({ _tag: "Etcd", url: address })
  const match = /^(.+):(\d{1,5})$/.exec(address)
  const port = Number(match?.[2])
  if (match === null || port > 65_535) {
    return Effect.fail(usage(`"${address}" is not the address of a store.`, "Write HOST:PORT, or the URL of an etcd."))
  }
  return Effect.succeed({ _tag: "Served", host: match[1]!.replace(/^\[(.*)\]$/, "$1"), port })
}

/** A secret of the environment; undefined where it is empty. */
export const secret = (name: string): Effect.Effect<string | undefined> =>
  Effect.map(
    Effect.orElseSucceed(Config.option(Config.Redacted(name)), () => Option.none()),
    (found) => Option.getOrUndefined(Option.map(found, Redacted.value)) || undefined
  )

/** Flags by which a fleet is found. */
export const fleetFlags = {
  store: Flag.String("store").pipe(
    Flag.withDescription(
      `Where members meet: HOST:PORT of the process that serves the store, or the URL of an etcd (default ${defaultStore}); TENSORFERRY_TOKEN is its secret`
    ),
    Flag.withDefault(defaultStore)
  ),
  fleet: Flag.String("fleet").pipe(
    Flag.withDescription("Name of the fleet; where the store has only one, that one"),
    Flag.optional
  )
}

/** The store at an address, for looking. */
export const storeLayer = Effect.fnUntraced(function* (address: string) {
  const place = yield* storePlace(address)
  if (place._tag === "Etcd") return KeyValueStoreEtcd.layerEtcd({ url: place.url, deadline: patience })
  const token = yield* secret("TENSORFERRY_TOKEN")
  const { host, port } = place
  return KeyValueStoreTcp.layerTcp({ host, port, connectMillis: patience, ...(token === undefined ? {} : { token }) })
})
