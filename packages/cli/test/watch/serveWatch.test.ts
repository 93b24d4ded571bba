// SPDX-License-Identifier: Apache-2.0
/** The server of the page: whom it answers, what it says, and what a page that does not read costs. */
import { spawnSync } from "node:child_process"
import { createHash } from "node:crypto"
import { get, type IncomingMessage } from "node:http"
import { connect } from "node:net"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { keyValueError } from "@tensorferry/bus/store/KeyValueStore"
import { metricsType } from "@tensorferry/fleet/view/fleetMetrics"
import { pythonWith, withPython } from "@tensorferry/testing/machine/python"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Schedule from "effect/Schedule"
import { provesToken, strangerFault } from "../../src/watch/guard.ts"
import { type PageChange, type PageView, pageViewOf } from "../../src/watch/pageView.ts"
import { serveMetrics, serveWatch } from "../../src/watch/serveWatch.ts"
import { watchFleet } from "../../src/watch/watchFleet.ts"
import { append, beat, madeUpMember, madeUpVersion, putFleet, served, servedStore, took } from "../fleet/madeUp.ts"

const empty = pageViewOf(
  { name: "prod", generation: 0, position: 0, current: null, members: [], removals: [], updates: [], flow: null },
  new Map(),
  ""
)
const secrets = { token: "page-secret", metricsToken: "metrics-secret" }
const options = { port: 0, ...secrets, first: empty, metrics: () => "a_metric 1\n" }

interface Answer {
  readonly status: number
  readonly headers: IncomingMessage["headers"]
  readonly body: string
}

/** With headers as they are, also a Host of one's own. */
const ask = (port: number, path: string, headers: Readonly<Record<string, string>> = {}, method = "GET") =>
  Effect.promise(
    () =>
      new Promise<Answer>((resolve, reject) => {
        const request = get({ host: "127.0.0.1", port, path, headers, method, agent: false }, (response) => {
          let body = ""
          response.on("data", (chunk) => {
            body += String(chunk)
          })
          response.on("end", () => resolve({ status: response.statusCode!, headers: response.headers, body }))
        })
        request.on("error", reject)
      })
  )

const bearer = (token: string) => ({ Authorization: `Bearer ${token}` })

interface PageEvent {
  readonly whole?: PageView
  readonly change?: PageChange
}

/** A page that is open, and ends with the scope. */
const openStream = (port: number) =>
  Effect.map(
    Effect.acquireRelease(
      Effect.sync(() => {
        const found: Array<PageEvent> = []
        const looks = new Set<() => void>()
        const stream = { found, looks, bytes: 0, status: 0 }
        let text = ""
        const request = get(
          { host: "127.0.0.1", port, path: "/events", headers: bearer(secrets.token), agent: false },
          (response) => {
            stream.status = response.statusCode!
            response.on("data", (chunk: Buffer) => {
              stream.bytes += chunk.length
              text += String(chunk)
              const parts = text.split("\n\n")
              text = parts.pop()!
              for (const part of parts) if (part.startsWith("data: ")) found.push(JSON.parse(part.slice(6)))
              for (const look of looks) look()
            })
            for (const look of looks) look()
            response.on("error", () => undefined)
          }
        )
        request.on("error", () => undefined)
        return { stream, request }
      }),
      ({ request }) => Effect.sync(() => request.destroy())
    ),
    ({ stream }) => ({
      stream,
      /** Ends when what was received satisfies this. */
      until: (isEnough: (found: ReadonlyArray<PageEvent>, status: number) => boolean) =>
        Effect.callback<ReadonlyArray<PageEvent>>((resume) => {
          const look = () => {
            if (isEnough(stream.found, stream.status)) resume(Effect.succeed(stream.found))
          }
          stream.looks.add(look)
          look()
          return Effect.sync(() => stream.looks.delete(look))
        }).pipe(
          Effect.timeoutOrElse({
            duration: "20 seconds",
            orElse: () => Effect.die(`It did not come: ${JSON.stringify(stream.found).slice(0, 2000)}`)
          })
        )
    })
  )

const has = (count: number) => (found: ReadonlyArray<PageEvent>) => found.length >= count

describe("the server of the page", () => {
  it.live("answers nothing of the fleet without the token, and no token in a path", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { port } = yield* serveWatch(options)
        const none = [{}, bearer("wrong"), bearer(""), bearer(secrets.metricsToken), { Authorization: secrets.token }]
        for (const headers of none) {
          const { status, headers: got, body } = yield* ask(port, `/events?token=${secrets.token}`, headers)
          assert.strictEqual(status, 401)
          assert.include(String(got["www-authenticate"]), "Bearer")
          assert.notInclude(body, "prod")
        }
        for (const headers of [{}, bearer("wrong"), bearer(secrets.token)]) {
          assert.strictEqual((yield* ask(port, "/metrics", headers)).status, 401)
        }
        const page = yield* openStream(port)
        assert.deepStrictEqual((yield* page.until(has(1)))[0]!.whole, empty)
        const metrics = yield* ask(port, "/metrics", bearer(secrets.metricsToken))
        assert.deepStrictEqual(
          [metrics.status, metrics.headers["content-type"], metrics.body],
          [200, metricsType, "a_metric 1\n"]
        )
      })
    )
  )

  it.live("sends a page that may run its own script alone, and has nothing of the fleet in it", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { port } = yield* serveWatch({ ...options, first: { ...empty, head: { ...empty.head, name: "hidden" } } })
        const { body, headers, status } = yield* ask(port, "/")
        assert.strictEqual(status, 200)
        const policy = String(headers["content-security-policy"])
        for (const part of ["default-src 'none'", "connect-src 'self'", "base-uri 'none'", "frame-ancestors 'none'"]) {
          assert.include(policy, part)
        }
        assert.notMatch(policy, /unsafe|\*|https?:/)
        const [, script] = /<script>([\s\S]*)<\/script>/.exec(body)!
        assert.include(policy, `script-src 'sha256-${createHash("sha256").update(script!).digest("base64")}'`)
        assert.notMatch(
          body,
          /<link(?! rel="icon" href="data:,")|src=|@import|url\(|https?:\/\/|style="|hidden\b.*fleet/
        )
        assert.notInclude(body, "prod")
        assert.deepInclude(headers, {
          "cache-control": "no-store",
          "x-content-type-options": "nosniff",
          "referrer-policy": "no-referrer"
        })
      })
    )
  )

  it.live("turns away names that are not its own, pages of others, other methods and paths", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { port } = yield* serveWatch(options)
        const token = bearer(secrets.token)
        const status = (path: string, headers: Readonly<Record<string, string>>, method?: string) =>
          Effect.map(ask(port, path, headers, method), (answer) => answer.status)
        for (const host of ["evil.example", `evil.example:${port}`, "127.0.0.1.evil.example", "127.0.0.1:x"]) {
          assert.strictEqual(yield* status("/", { Host: host }), 403, host)
          assert.strictEqual(yield* status("/events", { ...token, Host: host }), 403, host)
        }
        for (const host of ["localhost:9", `127.0.0.1:${port}`, "[::1]:80", "LOCALHOST"]) {
          assert.strictEqual(yield* status("/", { Host: host }), 200, host)
        }
        for (const origin of ["http://evil.example", "null", `https://127.0.0.1:${port}`, "http://127.0.0.1:1"]) {
          assert.strictEqual(yield* status("/events", { ...token, Origin: origin }), 403, origin)
        }
        assert.strictEqual(yield* status("/", { Origin: `http://127.0.0.1:${port}` }), 200)
        assert.strictEqual(yield* status("/", {}, "POST"), 405)
        assert.strictEqual(yield* status("/", {}, "OPTIONS"), 405)
        for (const path of ["/index.html", "/events/", "/constructor", "//", "/../events"]) {
          assert.strictEqual(yield* status(path, token), 404, path)
        }
      })
    )
  )

  it.live("sends changes to all pages, and nothing where nothing changed", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { port, show } = yield* serveWatch(options)
        const pages = [yield* openStream(port), yield* openStream(port)]
        for (const page of pages) yield* page.until(has(1))
        const named = (version: string) => ({ ...empty, head: { ...empty.head, version } })
        yield* show(named("–"))
        yield* show(named("2"))
        yield* show(named("2"))
        yield* show(named("3"))
        for (const page of pages) {
          const found = yield* page.until(has(3))
          assert.deepStrictEqual(
            found.slice(1).map(({ change }) => change?.head?.version),
            ["2", "3"]
          )
        }
      })
    )
  )

  it.live("sends a page that does not read everything anew, and queues little for it", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { port, show } = yield* serveWatch(options)
        const socket = connect(port, "127.0.0.1")
        yield* Effect.addFinalizer(() => Effect.sync(() => socket.destroy()))
        socket.pause()
        socket.write(`GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ${secrets.token}\r\n\r\n`)
        // Another page shows when the server has taken both in.
        const reading = yield* openStream(port)
        yield* reading.until(has(1))
        const large = (turn: number) => ({
          ...empty,
          head: { ...empty.head, trouble: `${turn} ${"x".repeat(2 ** 20)}` }
        })
        for (let turn = 1; turn <= 40; turn++) {
          yield* show(large(turn))
          yield* reading.until(has(turn + 1))
        }
        const chunks: Array<Buffer> = []
        const caughtUp = Effect.callback<void>((resume) => {
          socket.on("data", (chunk) => {
            chunks.push(chunk)
            if (!chunk.subarray(-4).equals(Buffer.from("\n\n\r\n"))) return
            const all = Buffer.concat(chunks)
            const begins = all.lastIndexOf('data: {"whole"')
            if (all.indexOf('"trouble":"40 x', begins) >= 0) resume(Effect.void)
          })
          socket.resume()
        })
        yield* Effect.timeout(caughtUp, "20 seconds")
        const bytes = chunks.reduce((sum, { length }) => sum + length, 0)
        assert.isBelow(bytes, 20 * 2 ** 20)
      })
    )
  )

  it.live("takes no more than sixteen pages, and a new one when another has closed", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { port } = yield* serveWatch(options)
        yield* Effect.scoped(
          Effect.gen(function* () {
            for (let page = 0; page < 16; page++) yield* (yield* openStream(port)).until(has(1))
            assert.strictEqual((yield* ask(port, "/events", bearer(secrets.token))).status, 503)
          })
        )
        const isOpen = Effect.gen(function* () {
          const page = yield* openStream(port)
          yield* page.until((_, status) => status !== 0)
          return page.stream.status === 200
        })
        yield* Effect.repeat(Effect.scoped(isOpen), { until: (open) => open, schedule: Schedule.spaced(10) })
      })
    )
  )
})

describe("metrics", () => {
  it.live("are open to everybody on loopback at a port of their own, by its own name", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const port = yield* serveMetrics(0, () => "a_metric 2\n")
        assert.deepInclude(yield* ask(port, "/metrics"), { status: 200, body: "a_metric 2\n" })
        assert.strictEqual((yield* ask(port, "/metrics", { Host: "evil.example" })).status, 403)
        assert.strictEqual((yield* ask(port, "/")).status, 404)
        assert.strictEqual((yield* ask(port, "/events", bearer(secrets.token))).status, 404)
      })
    )
  )

  const python = pythonWith("prometheus_client")
  it.live.skipIf(python === undefined)(
    withPython(python, "are read by the parser of prometheus_client, and count updates that end", "prometheus_client"),
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const { store } = yield* servedStore()
          const plain = served(3)
          const name = 'a "fleet" \\ of\nmany'
          const progress = plain.progress.map((stated, rank) => (rank === 0 ? stated : took(stated, 2, rank / 10)))
          yield* putFleet(store, { ...plain, name, progress })
          yield* beat(store, name, () => plain.reports)
          const looks = yield* Queue.unbounded<void>()
          const watched = yield* watchFleet(store, name, Effect.asVoid(Queue.offer(looks, undefined)))
          const read = () => {
            const script = fileURLToPath(new URL("../fixtures/prometheus_text.py", import.meta.url))
            const ended = spawnSync(python!, [script], { input: watched.metrics(), encoding: "utf8" })
            assert.strictEqual(ended.status, 0, ended.stderr)
            return JSON.parse(ended.stdout) as ReadonlyArray<{
              readonly name: string
              readonly type: string
              readonly help: string
              readonly samples: ReadonlyArray<readonly [string, Readonly<Record<string, string>>, number]>
            }>
          }
          const families = new Map(read().map((family) => [family.name, family]))
          for (const { name: family, type, help, samples } of families.values()) {
            assert.include(["gauge", "counter"], type, family)
            assert.match(help, /^[A-Z].*\.$/, family)
            for (const [, labels] of samples) assert.strictEqual(labels.fleet, name)
          }
          assert.deepStrictEqual(
            families.get("tensorferry_fleet_member_version")!.samples.map(([, labels, value]) => [labels.rank, value]),
            [
              ["1", 2],
              ["2", 2],
              ["3", 2]
            ]
          )
          assert.strictEqual(families.get("tensorferry_fleet_last_update_seconds")!.samples[0]![2], 3)
          const ended = () =>
            read()
              .find((family) => family.name === "tensorferry_fleet_updates")!
              .samples.map(([, { outcome }, value]) => [outcome, value])
          assert.deepStrictEqual(ended(), [
            ["committed", 1],
            ["aborted", 0]
          ])
          const by = madeUpMember(0).id
          yield* append(store, name, { _tag: "Propose", manifest: madeUpVersion(3), policy: { _tag: "Each" }, by })
          yield* append(store, name, { _tag: "Abort", serial: 3, culprits: [by], reason: "Late." })
          while (watched.view().updates.length < 2) yield* Queue.take(looks)
          assert.deepStrictEqual(ended(), [
            ["committed", 1],
            ["aborted", 1]
          ])
        })
      )
  )
})

describe("a watched fleet", () => {
  it.live("stays as it was seen last while the store is away, says so, and goes on when it is back", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { store } = yield* servedStore()
        const plain = served(2)
        yield* putFleet(store, plain)
        let isAway = false
        const away = keyValueError("Unreachable", { detail: "The store is gone.", remedy: "Start it." })
        const list: typeof store.list = (prefix) => (isAway ? Effect.fail(away) : store.list(prefix))
        const looks = yield* Queue.unbounded<void>()
        const watched = yield* watchFleet({ ...store, list }, "prod", Effect.asVoid(Queue.offer(looks, undefined)))
        isAway = true
        while (watched.page().head.trouble === "") yield* Queue.take(looks)
        assert.include(watched.page().head.trouble, "The store is gone.")
        assert.lengthOf(watched.page().members, 3)
        assert.include(watched.metrics(), 'tensorferry_fleet_store_up{fleet="prod"} 0')
        isAway = false
        while (watched.page().head.trouble !== "") yield* Queue.take(looks)
        assert.include(watched.metrics(), 'tensorferry_fleet_store_up{fleet="prod"} 1')
      })
    )
  )
})

describe("a stranger", () => {
  it("is who asks by another name or from another page", () => {
    assert.isUndefined(strangerFault({ host: "127.0.0.1:80", origin: "http://127.0.0.1:80" }))
    for (const headers of [{}, { host: "127.0.0.1, evil" }, { host: "127.0.0.1", origin: "" }, { host: "0.0.0.0:80" }])
      assert.isDefined(strangerFault(headers), JSON.stringify(headers))
  })

  it("proves no token by one that is empty, cut or longer", () => {
    const proves = (authorization: string) => provesToken({ authorization }, "secret")
    assert.isTrue(proves("Bearer secret"))
    assert.isTrue(proves("bearer secret"))
    for (const text of [
      "",
      "secret",
      "Bearer",
      "Bearer ",
      "Bearer secre",
      "Bearer secrets",
      "Basic secret",
      "Bearer  secret"
    ])
      assert.isFalse(proves(text), text)
  })
})
