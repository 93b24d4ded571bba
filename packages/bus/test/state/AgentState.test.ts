// SPDX-License-Identifier: Apache-2.0
/** An agent's state: who sees what, what is left of an earlier agent, and files that cannot be trusted. */
import { spawnSync } from "node:child_process"
import { existsSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as AgentStateLmdb from "../../src/state/AgentStateLmdb.ts"
import * as NamedSemaphore from "../../src/state/NamedSemaphore.ts"
import {
  hasLmdb,
  lmdbMissing,
  plain,
  pythonLmdb,
  pythonLmdbMissing,
  scratch,
  semaphoresOf,
  uniqueFile
} from "../support.ts"

const bytes = (text: string) => new TextEncoder().encode(text)
const text = (value: Uint8Array | undefined) => (value === undefined ? undefined : new TextDecoder().decode(value))

const open = (path: string, role: "agent" | "client" = "agent") =>
  AgentStateLmdb.make({ path, role, mapBytes: 2 ** 20, connectMillis: 100 })

const withFile = <A, E, R>(body: (path: string, folder: string) => Effect.Effect<A, E, R>) =>
  Effect.scoped(Effect.flatMap(scratch, (folder) => body(uniqueFile(folder, "state"), folder)))

describe.skipIf(!hasLmdb)(`state${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it.live("clients read what the agent writes, removes, and removes at its end", () =>
    withFile((path, folder) =>
      Effect.gen(function* () {
        assert.strictEqual((yield* Effect.flip(open(path, "client"))).reason._tag, "NotServed")
        yield* Effect.scoped(
          Effect.gen(function* () {
            const agent = yield* open(path)
            const client = yield* open(path, "client")
            yield* agent.put([
              ["a", bytes("1")],
              ["b", bytes("")]
            ])
            assert.strictEqual(text(yield* client.get("a")), "1")
            assert.strictEqual(text(yield* client.get("b")), "")
            yield* agent.put([["a", undefined]])
            assert.isUndefined(yield* client.get("a"))
          })
        )
        assert.deepStrictEqual(readdirSync(folder), [])
      })
    )
  )

  it.live("all or nothing, names that are too long, and a full file", () =>
    withFile((path) =>
      Effect.gen(function* () {
        const state = yield* open(path)
        const long = yield* Effect.flip(
          state.put([
            ["fine", bytes("1")],
            ["x".repeat(600), bytes("1")]
          ])
        )
        assert.strictEqual(long.reason._tag, "TooLarge")
        assert.isUndefined(yield* state.get("fine"))
        const full = yield* Effect.flip(state.put([["big", new Uint8Array(2 ** 21)]]))
        assert.strictEqual(full.reason._tag, "TooLarge")
        yield* state.put([["fine", bytes("2")]])
        assert.strictEqual(text(yield* state.get("fine")), "2")
      })
    )
  )

  it.live("a file that was removed is created again; a file of an earlier agent is emptied", () =>
    withFile((path) =>
      Effect.gen(function* () {
        const state = yield* open(path)
        yield* state.put([["a", bytes("1")]])
        for (const file of [path, `${path}-lock`]) rmSync(file)
        assert.isUndefined(yield* state.get("a"))
        yield* state.put([["a", bytes("2")]])
        assert.isTrue(existsSync(path))
        const client = yield* open(path, "client")
        assert.strictEqual(text(yield* client.get("a")), "2")
        const next = yield* open(path)
        assert.isUndefined(yield* next.get("a"))
      })
    )
  )

  const semaphores = `/bus_state_${process.pid}`

  it.live("completions: replies, time that is over, and waits that others overtake", () =>
    withFile((path) =>
      Effect.gen(function* () {
        const agent = yield* open(path)
        const client = yield* open(path, "client")
        yield* Effect.scoped(
          Effect.gen(function* () {
            const name = `${semaphores}_early`
            const completion = yield* client.expect(name)
            assert.isUndefined(yield* completion.wait("early", 20))
            const twice = yield* Effect.flip(client.expect(name))
            assert.match(twice.message, /exists/i)
            yield* agent.complete(name, [["early", bytes("1")]])
            assert.deepStrictEqual(semaphoresOf(`${name.slice(1)}`), [])
            assert.strictEqual(text((yield* completion.wait("early", 10_000))?.reply), "1")
          })
        )
        // All wait at once, and the last is completed first: none may hold the thread of another.
        const names = Array.from({ length: 12 }, (_, at) => `${semaphores}_${at}`)
        const waits = yield* Effect.forEach(names, (name) =>
          Effect.forkChild(
            Effect.scoped(Effect.flatMap(client.expect(name), (completion) => completion.wait(name, 20_000))),
            { startImmediately: true }
          )
        )
        for (const [at, name] of [...names.entries()].reverse()) {
          yield* agent.complete(name, [[name, bytes(`${at}`)]])
          assert.strictEqual(text((yield* Fiber.join(waits[at]!))?.reply), `${at}`)
        }
        assert.deepStrictEqual(semaphoresOf(semaphores.slice(1)), [])
      })
    )
  )

  it.live("completions without a reply, without a client, and waits that are interrupted", () =>
    withFile((path, folder) =>
      Effect.gen(function* () {
        const agent = yield* open(path)
        const client = yield* open(path, "client")
        const name = `${semaphores}_odd`
        yield* Effect.scoped(
          Effect.gen(function* () {
            const completion = yield* client.expect(name)
            const waiting = yield* Effect.forkChild(completion.wait("x", 20_000), { startImmediately: true })
            const long = yield* Effect.flip(agent.complete(name, [["x".repeat(600), bytes("1")]]))
            assert.strictEqual(long.reason._tag, "TooLarge")
            assert.deepStrictEqual(yield* Fiber.join(waiting), { reply: undefined })
          })
        )
        // Also where there is no place for replies at all.
        yield* Effect.scoped(
          Effect.gen(function* () {
            const elsewhere = join(folder, "elsewhere")
            mkdirSync(elsewhere)
            const homeless = yield* open(uniqueFile(elsewhere, "state"))
            const waiting = yield* NamedSemaphore.create(name)
            rmSync(elsewhere, { recursive: true })
            const failure = yield* Effect.flip(homeless.complete(name, [["x", bytes("1")]]))
            assert.strictEqual(failure.reason._tag, "NotServed")
            yield* waiting.wait("10 seconds")
          })
        )
        const nobody = yield* Effect.flip(agent.complete(name, [["kept", bytes("1")]]))
        assert.match(nobody.message, /sem_open/)
        assert.strictEqual(text(yield* client.get("kept")), "1")
        for (let round = 0; round < 5; round++) {
          const waiting = yield* Effect.forkChild(
            Effect.scoped(Effect.flatMap(client.expect(name), (completion) => completion.wait("x", 20_000))),
            { startImmediately: true }
          )
          yield* Effect.yieldNow
          yield* Effect.timeout(Fiber.interrupt(waiting), "5 seconds")
          assert.deepStrictEqual(semaphoresOf(name.slice(1)), [])
        }
      })
    )
  )

  it.live("links and files that are none of ours", () =>
    withFile((path, folder) =>
      Effect.gen(function* () {
        symlinkSync(join(folder, "elsewhere"), path)
        assert.strictEqual((yield* Effect.flip(open(path))).reason._tag, "Untrusted")
        const junk = uniqueFile(folder, "junk")
        writeFileSync(junk, "x".repeat(10_000), { mode: 0o600 })
        assert.strictEqual((yield* Effect.flip(open(junk, "client"))).reason._tag, "Damaged")
      })
    )
  )

  it.live.skipIf(pythonLmdb === undefined)(
    `read by Python${pythonLmdb === undefined ? ` (skipped: ${pythonLmdbMissing})` : ""}`,
    () =>
      withFile((path) =>
        Effect.gen(function* () {
          const state = yield* open(path)
          yield* state.put([["pair:p/state:match", bytes("matched")]])
          const program =
            "import lmdb,sys; e=lmdb.open(sys.argv[1],subdir=False,max_dbs=2,map_size=2**20); d=e.open_db(b'pair_state'); print(e.begin(db=d).get(b'pair:p/state:match'))"
          const { stdout, stderr } = spawnSync(pythonLmdb!, ["-c", program, path], { encoding: "utf8", env: plain })
          assert.strictEqual(stdout.trim(), "b'matched'", stderr)
        })
      )
  )
})
