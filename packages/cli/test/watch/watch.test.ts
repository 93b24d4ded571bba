// SPDX-License-Identifier: Apache-2.0
/** `tensorferry watch` as a user starts it: one look, a page until a signal, and what it refuses. */
import { get } from "node:http"
import { afterEach, assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { beat, putFleet, served, servedStore } from "../fleet/madeUp.ts"
import { assertNothingRuns, endAll, eventually, signal, start } from "../support/command.ts"
import { runHere } from "../support/here.ts"

afterEach(endAll)

/** The status of an answer. */
const statusOf = (url: string, headers: Readonly<Record<string, string>>): Promise<number> =>
  new Promise((resolve, reject) => {
    const request = get(url, { headers, agent: false }, (response) => {
      resolve(response.statusCode!)
      request.destroy()
    })
    request.on("error", reject)
  })

const withFleet = <A>(body: (address: string) => Promise<A>) =>
  Effect.gen(function* () {
    const { port, store } = yield* servedStore()
    const fleet = served(3)
    yield* putFleet(store, fleet)
    yield* beat(store, fleet.name, () => fleet.reports)
    return yield* Effect.promise(() => body(`127.0.0.1:${port}`))
  }).pipe(Effect.scoped)

describe("tensorferry watch", () => {
  it.live("--once prints members and history, or a document", () =>
    withFleet(async (store) => {
      const text = await runHere(["watch", "--once", "--store", store])
      assert.deepStrictEqual([text.code, text.stderr], [0, ""])
      assert.match(text.stdout, /^Fleet prod: version 2[\s\S]*rank {2}role[\s\S]*version {2}label/u)
      const { stdout } = await runHere(["watch", "--once", "--json", "--store", store])
      assert.deepInclude(JSON.parse(stdout), { ok: true, name: "prod", flow: null })
    })
  )

  it.live("serves the page and metrics until a signal, each with its own token", () =>
    withFleet(async (store) => {
      const running = start(["watch", "--json", "--metrics-port", "0", "--store", store], {
        env: { TENSORFERRY_METRICS_TOKEN: "for-prometheus" }
      })
      let printed = ""
      running.child.stdout!.on("data", (chunk) => {
        printed += String(chunk)
      })
      await eventually("the address", 30_000, () => (printed.endsWith("\n") ? true : undefined))
      const { fleet, metrics, ok, url } = JSON.parse(printed)
      assert.deepStrictEqual([ok, fleet], [true, "prod"])
      const { hash, origin } = new URL(url)
      const token = new URLSearchParams(hash.slice(1)).get("token")!
      assert.match(token, /^[\w-]{32}$/)
      const bearer = (secret: string) => ({ Authorization: `Bearer ${secret}` })
      assert.strictEqual(await statusOf(`${origin}/`, {}), 200)
      assert.strictEqual(await statusOf(`${origin}/events`, {}), 401)
      assert.strictEqual(await statusOf(`${origin}/events`, bearer(token)), 200)
      assert.strictEqual(await statusOf(`${origin}/metrics`, bearer(token)), 401)
      assert.strictEqual(await statusOf(`${origin}/metrics`, bearer("for-prometheus")), 200)
      assert.strictEqual(await statusOf(metrics, {}), 200)
      assert.isTrue(signal(running.pid, "SIGTERM"))
      const ended = await running.ended
      assert.strictEqual(ended.code, 130)
      await assertNothingRuns(running)
    })
  )

  it.live("refuses forms that exclude each other, and a port that is taken", () =>
    withFleet(async (store) => {
      const refused = async (...args: ReadonlyArray<string>) => {
        const { code, stderr } = await runHere(["watch", ...args, "--store", store])
        return [code, stderr.trim()] as const
      }
      assert.deepStrictEqual(await refused("--once", "--terminal"), [
        2,
        "InvalidUsage: --once prints one view and ends. Leave --terminal out."
      ])
      assert.match((await refused("--terminal"))[1], /Standard output is no terminal/)
      const [code, text] = await refused("--port", store.split(":")[1]!)
      assert.strictEqual(code, 2)
      assert.match(text, /Port \d+ of 127\.0\.0\.1 cannot be served: .*EADDRINUSE/)
    })
  )
})
