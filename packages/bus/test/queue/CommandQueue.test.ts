// SPDX-License-Identifier: Apache-2.0
/**
 * Command queues: order, waiting, full queues, damaged entries, producers that die half-way, queues that somebody removes,
 * and other programs on the same queue.
 */
import { spawnSync } from "node:child_process"
import { chmodSync, existsSync, mkdirSync, readdirSync, statSync, symlinkSync, writeFileSync } from "node:fs"
import { basename, join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { CleanupBatch, type Message } from "../../src/command/Command.ts"
import type { CommandQueueShape } from "../../src/queue/CommandQueue.ts"
import * as CommandQueueLmdb from "../../src/queue/CommandQueueLmdb.ts"
import * as CommandQueueMemory from "../../src/queue/CommandQueueMemory.ts"
import * as NamedSemaphore from "../../src/state/NamedSemaphore.ts"
import {
  hasLmdb,
  isSoak,
  lmdbMissing,
  plain,
  pythonLmdb,
  pythonLmdbMissing,
  runPython,
  scratch,
  semaphoresOf,
  uniqueFile
} from "../support.ts"

const command = (batchId: string) => new CleanupBatch({ batchId })
const batchOf = (message: Message): string => (message as CleanupBatch).batchId

/** Takes `count` commands, however many come at once. */
const takeMany = (queue: CommandQueueShape, count: number) =>
  Effect.gen(function* () {
    const taken: Array<string> = []
    while (taken.length < count) taken.push(...(yield* queue.dequeue(count - taken.length)).map(batchOf))
    return taken
  })

const names = (count: number, prefix = "b") => Array.from({ length: count }, (_, at) => `${prefix}-${at}`)

const behaviours = (
  make: (capacity: number) => Effect.Effect<CommandQueueShape, unknown, import("effect/Scope").Scope>
) => {
  it.live("keeps the order", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const queue = yield* make(8)
        const sent = names(50)
        const producer = yield* Effect.forkChild(queue.enqueue(sent.map(command)))
        assert.deepStrictEqual(yield* takeMany(queue, 50), sent)
        yield* Fiber.join(producer)
        assert.deepInclude(yield* queue.status, { head: 50n, tail: 50n, space: 8 })
      })
    )
  )

  it.live("a full queue makes producers wait, and fail at their deadline", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const queue = yield* make(3)
        yield* queue.enqueue(names(3).map(command))
        const error = yield* Effect.flip(queue.enqueue([command("late")], "50 millis"))
        assert.strictEqual(error.reason._tag, "Full")
        assert.deepStrictEqual(yield* takeMany(queue, 3), names(3))
        yield* queue.enqueue([command("next")])
        assert.deepStrictEqual(yield* takeMany(queue, 1), ["next"])
      })
    )
  )

  it.live("a wait can be interrupted, and takes nothing", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const queue = yield* make(3)
        const waiting = yield* Effect.forkChild(queue.dequeue(), { startImmediately: true })
        yield* Effect.yieldNow
        yield* Fiber.interrupt(waiting)
        yield* queue.enqueue([command("a")])
        assert.deepStrictEqual(yield* takeMany(queue, 1), ["a"])
      })
    )
  )
}

describe("in memory", () => behaviours((capacity) => CommandQueueMemory.make({ capacity })))

describe.skipIf(!hasLmdb)(`in a file${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  const open = (path: string, options: Partial<CommandQueueLmdb.LmdbQueueOptions> = {}) =>
    CommandQueueLmdb.make({ path, role: "agent", mapBytes: 2 ** 24, ...options })

  const withFile = <A, E, R>(body: (path: string, folder: string) => Effect.Effect<A, E, R>) =>
    Effect.scoped(Effect.flatMap(scratch, (folder) => body(uniqueFile(folder, "q"), folder)))

  behaviours((capacity) => Effect.flatMap(scratch, (folder) => open(uniqueFile(folder, "q"), { capacity })))

  it.live("leaves nothing behind", () =>
    withFile((path, folder) =>
      Effect.gen(function* () {
        yield* Effect.scoped(Effect.flatMap(open(path), (queue) => queue.enqueue([command("a")])))
        assert.deepStrictEqual(readdirSync(folder), [])
        assert.deepStrictEqual(semaphoresOf(basename(folder)), [])
        // Nor does an agent that could not begin.
        const junk = uniqueFile(folder, "junk")
        writeFileSync(junk, "")
        chmodSync(junk, 0o666)
        yield* Effect.flip(open(junk))
        assert.deepStrictEqual(
          readdirSync(folder).filter((name) => name.endsWith("-agent")),
          []
        )
        assert.deepStrictEqual(
          readdirSync("/dev/shm").filter((name) => name.includes(basename(folder))),
          []
        )
      })
    )
  )

  it.live("many clients at once", () =>
    withFile((path) =>
      Effect.gen(function* () {
        const agent = yield* open(path, { capacity: 7 })
        const clients = yield* Effect.forEach(names(4), () => open(path, { role: "client", capacity: 7 }))
        const count = 40
        const producing = yield* Effect.forkChild(
          Effect.forEach(clients, (client, at) => client.enqueue(names(count, String(at)).map(command)), {
            concurrency: "unbounded"
          })
        )
        const taken = yield* takeMany(agent, 4 * count)
        yield* Fiber.join(producing)
        for (let at = 0; at < 4; at++) {
          assert.deepStrictEqual(
            taken.filter((name) => name.startsWith(`${at}-`)),
            names(count, String(at))
          )
        }
      })
    )
  )

  it.live("positions beyond 2^32", () =>
    withFile((path) =>
      Effect.gen(function* () {
        if (pythonLmdb === undefined) return assert.isTrue(true, pythonLmdbMissing)
        const agent = yield* open(path)
        const start = 2 ** 32 - 3
        const script = `import lmdb,sys; e=lmdb.open(sys.argv[1],subdir=False,max_dbs=2,map_size=2**24); d=e.open_db(b'command_queue'); t=e.begin(write=True,db=d); [t.put(k,(${start}).to_bytes(8,sys.byteorder)) for k in (b'__head__',b'__tail__')]; t.commit()`
        assert.strictEqual(spawnSync(pythonLmdb, ["-c", script, path], { env: plain }).status, 0)
        const sent = names(9)
        yield* agent.enqueue(sent.map(command))
        assert.deepStrictEqual(yield* takeMany(agent, 9), sent)
        assert.deepInclude(yield* agent.status, { head: BigInt(start) + 9n, tail: BigInt(start) + 9n })
      })
    )
  )

  it.live("one agent only; a client without an agent", () =>
    withFile((path) =>
      Effect.gen(function* () {
        const absent = yield* Effect.flip(open(path, { role: "client", connectDeadline: "50 millis" }))
        assert.strictEqual(absent.reason._tag, "NotServed")
        const homeless = yield* Effect.flip(open("/nonexistent/q.lmdb"))
        assert.match(homeless.message, /Make the folder/)
        yield* open(path)
        const busy = yield* Effect.flip(open(path))
        assert.strictEqual(busy.reason._tag, "Busy")
      })
    )
  )

  it.live("agents of one rank in two folders: the second hears who has it", () =>
    withFile((path, folder) =>
      Effect.gen(function* () {
        const elsewhere = join(folder, "other")
        mkdirSync(elsewhere)
        const other = join(elsewhere, basename(path))
        const agent = yield* open(path)
        const busy = yield* Effect.flip(open(other))
        assert.strictEqual(busy.reason._tag, "Busy")
        assert.include(busy.message, `${path}, process ${process.pid}`)
        assert.match(busy.reason.remedy, /another rank/)
        // The first one is not disturbed, and nothing of the second is left.
        assert.deepStrictEqual(readdirSync(elsewhere), [])
        yield* agent.enqueue([command("a")])
        assert.deepStrictEqual(yield* takeMany(agent, 1), ["a"])
      })
    )
  )

  it.live("an agent after one of its name that was killed elsewhere", () =>
    withFile((path, folder) =>
      Effect.gen(function* () {
        const elsewhere = join(folder, "other")
        mkdirSync(elsewhere)
        const fixture = new URL("../fixtures/queue-agent.ts", import.meta.url).pathname
        const killed = spawnSync(process.execPath, [fixture, join(elsewhere, basename(path))], {
          encoding: "utf8",
          timeout: 60_000
        })
        assert.strictEqual(killed.signal, "SIGKILL", killed.stderr)
        const agent = yield* open(path)
        yield* agent.enqueue([command("mine")])
        assert.deepStrictEqual(yield* takeMany(agent, 1), ["mine"])
      })
    )
  )

  it.live("links, files that others can write, and folders are refused", () =>
    withFile((path, folder) =>
      Effect.gen(function* () {
        const target = join(folder, "target")
        writeFileSync(target, "")
        symlinkSync(target, path)
        assert.strictEqual((yield* Effect.flip(open(path))).reason._tag, "Untrusted")
        assert.strictEqual(statSync(target).size, 0)
        const loose = uniqueFile(folder, "loose")
        writeFileSync(loose, "")
        chmodSync(loose, 0o666)
        assert.strictEqual((yield* Effect.flip(open(loose))).reason._tag, "Untrusted")
        const directory = uniqueFile(folder, "directory")
        mkdirSync(directory)
        assert.include(["Untrusted", "SystemFailure"], (yield* Effect.flip(open(directory))).reason._tag)
      })
    )
  )

  it.live("a maker that died half-way does not stop an agent", () =>
    withFile((path, folder) =>
      Effect.gen(function* () {
        const name = `/cq_ready_${basename(path, ".lmdb")}`
        yield* NamedSemaphore.create(name)
        const agent = yield* open(path)
        yield* agent.enqueue([command("a")])
        assert.deepStrictEqual(yield* takeMany(agent, 1), ["a"])
        assert.lengthOf(semaphoresOf(basename(folder)), 3)
      })
    )
  )

  it.live("memory for one file: a command that does not fit", () =>
    withFile((path) =>
      Effect.gen(function* () {
        const agent = yield* open(path, { mapBytes: 2 ** 18 })
        const error = yield* Effect.flip(agent.enqueue([command("x".repeat(2 ** 20))]))
        assert.strictEqual(error.reason._tag, "Full")
        yield* agent.enqueue([command("small")])
        assert.deepStrictEqual(yield* takeMany(agent, 1), ["small"])
        assert.strictEqual((yield* agent.status).space, 50_000)
      })
    )
  )

  describe.skipIf(pythonLmdb === undefined)(
    `with Python${pythonLmdb === undefined ? ` (skipped: ${pythonLmdbMissing})` : ""}`,
    () => {
      const python = (...args: ReadonlyArray<string>) => Effect.sync(() => runPython(pythonLmdb!, ...args))

      it.live("commands both ways", () =>
        withFile((path) =>
          Effect.gen(function* () {
            const agent = yield* open(path)
            assert.strictEqual(yield* python("enqueue", path, "20", "py"), "")
            assert.deepStrictEqual(yield* takeMany(agent, 20), names(20, "py"))
            yield* agent.enqueue([command("ts")])
            const hex = (yield* python("dequeue", path, "1")).trim()
            assert.include(Buffer.from(hex, "hex").toString("latin1"), "CleanupBatch")
            assert.deepInclude(yield* agent.status, { head: 21n, tail: 21n, items: 0, space: 50_000 })
          })
        )
      )

      it.live("an invalid entry is skipped, and its place is free again", () =>
        withFile((path) =>
          Effect.gen(function* () {
            const agent = yield* open(path)
            yield* python("damage", path)
            yield* agent.enqueue([command("good")])
            assert.deepStrictEqual(yield* takeMany(agent, 1), ["good"])
            assert.deepInclude(yield* agent.status, { items: 0, space: 50_000, refused: 1 })
          })
        )
      )

      it.live("a client that dies after taking a place and before posting its command costs no place", () =>
        withFile((path) =>
          Effect.gen(function* () {
            const agent = yield* open(path)
            yield* python("die with a place", path)
            assert.strictEqual((yield* agent.status).space, 49_999)
            yield* python("die before the post", path)
            assert.strictEqual((yield* agent.status).items, 0)
            assert.deepStrictEqual(yield* takeMany(agent, 1), ["unposted"])
            // The lost place comes back once the queue has been empty for a while.
            const waiting = yield* Effect.forkChild(agent.dequeue())
            const regained = Effect.gen(function* () {
              while ((yield* agent.status).space < 50_000) yield* Effect.sleep("50 millis")
            })
            yield* Effect.timeout(regained, "20 seconds")
            yield* Fiber.interrupt(waiting)
          })
        )
      )

      it.live("an agent that was killed is followed by another, which finds all commands", () =>
        withFile((path) =>
          Effect.gen(function* () {
            const fixture = new URL("../fixtures/queue-agent.ts", import.meta.url).pathname
            const killed = spawnSync(process.execPath, [fixture, path], { encoding: "utf8", timeout: 60_000 })
            assert.strictEqual(killed.signal, "SIGKILL", killed.stderr)
            assert.isTrue(existsSync(path))
            const client = yield* open(path, { role: "client" })
            yield* client.enqueue([command("c")])
            const agent = yield* open(path)
            assert.deepStrictEqual(yield* takeMany(agent, 3), ["a", "b", "c"])
            assert.deepInclude(yield* agent.status, { items: 0, space: 50_000 })
          })
        )
      )

      it.live("a client that removes the queue under the agent", () =>
        withFile((path) =>
          Effect.gen(function* () {
            const agent = yield* open(path)
            const client = yield* open(path, { role: "client" })
            yield* client.enqueue([command("before")])
            assert.deepStrictEqual(yield* takeMany(agent, 1), ["before"])
            const taking = yield* Effect.forkChild(takeMany(agent, isSoak ? 3 : 2), { startImmediately: true })
            for (let round = 0; round < (isSoak ? 3 : 2); round++) {
              assert.strictEqual(yield* python("destroy", path), "")
              yield* client.enqueue([command(`after ${round}`)])
            }
            assert.deepStrictEqual(
              yield* Fiber.join(taking),
              names(isSoak ? 3 : 2, "x").map((_, at) => `after ${at}`)
            )
          })
        )
      )
    }
  )
})
