// SPDX-License-Identifier: Apache-2.0
/**
 * What one side learns when the other gives something up: who it was, at once, and that work goes on after the next
 * registration.
 */
import { spawn } from "node:child_process"
import { assert, describe, it } from "@effect/vitest"
import { processStart as startOf } from "@tensorferry/core/group/processStart"
import { replicate, shard } from "@tensorferry/core/layout/Placement"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import type { BusError } from "../../src/BusError.ts"
import { Transfer } from "../../src/command/Command.ts"
import { makeCluster } from "../cluster.ts"
import { kill } from "../processes.ts"
import { faultOf, fill, makeTensor } from "../tensors.ts"
import { all, register, sideOf, twoAgents } from "./twoAgents.ts"

/** Longer than any test may take, so that a wait until the deadline is a failure. */
const patient = { deadline: "60 seconds" } as const

/** The error of a call, which must come within a second. */
const failsSoon = <A>(call: Effect.Effect<A, BusError>, tag: string, says: RegExp) =>
  Effect.gen(function* () {
    const [time, error] = yield* Effect.timed(Effect.flip(call))
    assert.strictEqual(error.reason._tag, tag, error.message)
    assert.match(error.message, says)
    assert.isBelow(Duration.toMillis(time), 1_000)
    return error
  })

const forked = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.forkChild(effect, { startImmediately: true })

/** A process that waits to be killed, and what it is called for ever. */
const idle = Effect.gen(function* () {
  const child = spawn(process.execPath, ["-e", "process.stdin.resume()"], { stdio: ["pipe", "ignore", "ignore"] })
  yield* Effect.addFinalizer(() => kill(child, "SIGKILL"))
  return { child, pid: child.pid!, processStart: startOf(child.pid!)! }
})

describe("a batch that one side drops", () => {
  it.live("is dropped where its client ends while the agent opens its memory, and the next client takes the name", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { child, pid, processStart } = yield* idle
        const own = { pid: process.pid, processStart: startOf("self")! }
        let isFirst = true
        const { a, b, tensor } = yield* twoAgents({
          ...patient,
          // The first tensor that is registered is of the other process, which ends before the tensor is open.
          throughMemory: (memory) => ({
            ...memory,
            share: (storage) =>
              Effect.map(memory.share(storage), (handle) => {
                if (!isFirst) return handle
                isFirst = false
                return { ...handle, pid, processStart }
              }),
            openShared: (handle) =>
              handle.pid === pid
                ? Effect.andThen(kill(child, "SIGKILL"), memory.openShared({ ...handle, ...own }))
                : memory.openShared(handle)
          })
        })
        const [x, y] = [yield* tensor(), yield* tensor()]
        yield* failsSoon(register(b.client, "w", y), "BatchGone", new RegExp(`process ${pid}, has exited`))
        yield* all([register(a.client, "w", x), register(b.client, "w", y)])
        fill(x, [1, 2, 3, 4])
        yield* all([a.client.transfer("w", "send"), b.client.transfer("w", "recv")])
        assert.isUndefined(faultOf(y, [1, 2, 3, 4]))
      })
    )
  )

  it.live("fails the transfer that waits on the other side, and both sides go on with the next registration", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* twoAgents(patient)
        const [x, y] = [yield* tensor(), yield* tensor()]
        for (let round = 0; round < 3; round++) {
          yield* all([register(a.client, "w", x), register(b.client, "w", y)])
          const waiting = yield* forked(Effect.flip(a.client.transfer("w", "send")))
          while (!(yield* b.client.transferSignal("w"))) yield* Effect.yieldNow
          const dropped = yield* Clock.monotonicTimeNanos
          yield* b.client.cleanupBatch("w")
          const error = yield* Fiber.join(waiting)
          assert.isBelow(Number((yield* Clock.monotonicTimeNanos) - dropped) / 1e6, 1_000)
          assert.strictEqual(error.reason._tag, "BatchGone", error.message)
          assert.strictEqual(error.reason.peer, 1)
          assert.match(error.message, /agent 1 dropped it: its client cleaned it up/)
          yield* failsSoon(a.client.transfer("w", "send"), "BatchGone", /agent 1/)
        }
        yield* all([register(a.client, "w", x), register(b.client, "w", y)])
        fill(x, [1, 2, 3, 4])
        yield* all([a.client.transfer("w", "send"), b.client.transfer("w", "recv")])
        assert.isUndefined(faultOf(y, [1, 2, 3, 4]))
      })
    )
  )

  it.live("leaves the other batches of the pair alone, whatever side comes first", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* twoAgents(patient)
        const [x, y, z, w] = [yield* tensor(), yield* tensor(), yield* tensor(), yield* tensor()]
        yield* all([register(a.client, "one", x), register(b.client, "one", y)])
        yield* all([register(a.client, "two", z), register(b.client, "two", w)])
        const waiting = yield* forked(Effect.flip(a.client.transfer("one", "send")))
        while (!(yield* b.client.transferSignal("one"))) yield* Effect.yieldNow
        yield* b.client.cleanupBatch("one")
        assert.strictEqual((yield* Fiber.join(waiting)).reason._tag, "BatchGone")
        fill(z, [5, 6, 7, 8])
        const sending = yield* forked(a.client.transfer("two", "send"))
        // The receiver asks first, as it does before it receives.
        while (!(yield* b.client.transferSignal("two"))) yield* Effect.yieldNow
        yield* b.client.transfer("two", "recv")
        yield* Fiber.join(sending)
        assert.isUndefined(faultOf(w, [5, 6, 7, 8]))
        // A real disagreement is one still.
        for (const error of yield* all([
          Effect.flip(a.client.transfer("two", "send")),
          Effect.flip(b.client.transfer("two", "send"))
        ])) {
          assert.strictEqual(error.reason._tag, "BatchMismatch", error.message)
        }
      })
    )
  )

  it.live("fails all ranks of the other side, those that wait and those that come later", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { start, memory } = yield* makeCluster(patient)
        const [a0, a1, b] = [yield* start(0), yield* start(1), yield* start(2)]
        const clients = [a0.client, a1.client, b.client]
        const left = { pair: "p", local: "a", remote: "b", mesh: [2], placements: [shard(0)] }
        const right = { pair: "p", local: "b", remote: "a", mesh: [1], placements: [replicate] }
        yield* all([a0.client.initPair(left), a1.client.initPair(left), b.client.initPair(right)])
        const tensors = yield* Effect.forEach([2, 2, 4], (length) => makeTensor(memory, "float32", [length]))
        const meet = all(clients.map((client, at) => register(client, "w", tensors[at]!)))
        for (let round = 0; round < 4; round++) {
          yield* meet
          const first = yield* forked(Effect.flip(a0.client.transfer("w", "send")))
          const held = round % 2 === 0 ? undefined : yield* forked(Effect.flip(a1.client.transfer("w", "send")))
          while (!(yield* b.client.transferSignal("w"))) yield* Effect.yieldNow
          yield* b.client.cleanupBatch("w")
          const told = [
            yield* Fiber.join(first),
            yield* held === undefined ? Effect.flip(a1.client.transfer("w", "send")) : Fiber.join(held)
          ]
          for (const error of told as ReadonlyArray<BusError>) {
            assert.strictEqual(error.reason._tag, "BatchGone", error.message)
            assert.match(error.message, /agent 2/)
          }
          yield* meet
          fill(tensors[0]!, [round, 1])
          fill(tensors[1]!, [2, 3])
          yield* all([a0.client.transfer("w", "send"), a1.client.transfer("w", "send"), b.client.transfer("w", "recv")])
          assert.isUndefined(faultOf(tensors[2]!, [round, 1, 2, 3]))
          yield* all(clients.map((client) => client.cleanupBatch("w")))
        }
      })
    )
  )

  it.live("a transfer that one side gave up while it waited is declined, and the next one moves", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* twoAgents(patient)
        const [x, y] = [yield* tensor(), yield* tensor()]
        yield* all([register(a.client, "w", x), register(b.client, "w", y)])
        for (const [mine, first, theirs, second] of [
          [b, "recv", a, "send"],
          [a, "send", b, "recv"]
        ] as const) {
          const waiting = yield* forked(mine.agent.handle(new Transfer({ batchId: "w", transferType: first })))
          // A command on another batch passes through the agent after the transfer has begun to wait.
          yield* Effect.exit(mine.client.cleanupBatch("none"))
          yield* Fiber.interrupt(waiting)
          yield* failsSoon(theirs.client.transfer("w", second), "TransferFailed", /gave batch w up/)
          fill(x, [9, 8, 7, 6])
          yield* all([a.client.transfer("w", "send"), b.client.transfer("w", "recv")])
          assert.isUndefined(faultOf(y, [9, 8, 7, 6]))
        }
      })
    )
  )
})

describe("a pair that one side leaves", () => {
  it.live("fails what waits on the other side, by name, and is made again without a restart", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor, meet, map } = yield* twoAgents(patient)
        const [x, y] = [yield* tensor(), yield* tensor()]
        const left = /agent 1 left it: its client sent LeavePair/
        for (let round = 0; round < 2; round++) {
          yield* failsSoon(b.client.initPair(sideOf("p", "b", "a")), "PairExists", /send LeavePair, then InitPair/)
          yield* all([register(a.client, "w", x), register(b.client, "w", y)])
          const waiting = [
            yield* forked(Effect.flip(a.client.transfer("w", "send"))),
            yield* forked(Effect.flip(register(a.client, "other", x)))
          ]
          while (!(yield* b.client.transferSignal("w"))) yield* Effect.yieldNow
          const since = yield* Clock.monotonicTimeNanos
          yield* b.client.leavePair("p")
          for (const each of waiting) {
            const error = yield* Fiber.join(each)
            assert.strictEqual(error.reason._tag, "PairBroken", error.message)
            assert.match(error.message, left)
          }
          assert.isBelow(Number((yield* Clock.monotonicTimeNanos) - since) / 1e6, 1_000)
          yield* failsSoon(register(a.client, "next", x), "PairBroken", left)
          yield* failsSoon(b.client.leavePair("p"), "UnknownPair", /no pair "p" on agent 1/)
          yield* meet("p")
          assert.deepStrictEqual(yield* a.agent.batches, [])
          yield* all([register(a.client, "w", x), register(b.client, "w", y)])
          fill(x, [round, 2, 3, 4])
          yield* all([a.client.transfer("w", "send"), b.client.transfer("w", "recv")])
          assert.isUndefined(faultOf(y, [round, 2, 3, 4]))
          yield* all([a.client.cleanupBatch("w"), b.client.cleanupBatch("w")])
        }
        yield* all([a.client.leavePair("p"), b.client.leavePair("p")])
        assert.deepStrictEqual([...map.list("").keys()], [])
      })
    )
  )

  it.live("and one whose agents met again while the other side knew nothing", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor, meet } = yield* twoAgents(patient)
        const [x, y] = [yield* tensor(), yield* tensor()]
        yield* all([register(a.client, "w", x), register(b.client, "w", y)])
        yield* b.client.leavePair("p")
        const joining = yield* forked(b.client.initPair(sideOf("p", "b", "a")))
        yield* failsSoon(a.client.transfer("w", "send"), "PairBroken", /agent 1/)
        yield* a.client.initPair(sideOf("p", "a", "b"))
        yield* Fiber.join(joining)
        yield* failsSoon(a.client.transfer("w", "send"), "UnknownBatch", /w/)
        yield* failsSoon(meet("p"), "PairExists", /pair p/)
      })
    )
  )

  it.live("and one whose agents run on two hosts is refused at the meeting, on both", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { start } = yield* makeCluster(patient)
        const a = yield* start(0, { host: { id: "1", name: "alpha" } })
        const b = yield* start(1, { host: { id: "2", name: "beta" } })
        const says = /agent [01] runs on host (alpha|beta), agent [01] on host (alpha|beta).*on one host/
        yield* all([
          failsSoon(a.client.initPair(sideOf("p", "a", "b")), "HostsDiffer", says),
          failsSoon(b.client.initPair(sideOf("p", "b", "a")), "HostsDiffer", says)
        ])
      })
    )
  )

  it.live("and whoever waits to make one learns of a member that is gone before all are there", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { start, map } = yield* makeCluster(patient)
        const scope = yield* Scope.make()
        const [a, b] = [yield* start(0), yield* Scope.provide(start(1), scope)]
        const left = { pair: "p", local: "a", remote: "b", mesh: [2], placements: [shard(0)] }
        const waiting = yield* forked(Effect.flip(a.client.initPair(left)))
        yield* forked(Effect.exit(b.client.initPair(left)))
        while (map.list("pair/").size < 2) yield* Effect.yieldNow
        // Another command passes through the agent after it has read of both.
        yield* Effect.exit(a.client.cleanupBatch("none"))
        const since = yield* Clock.monotonicTimeNanos
        // As a process that is killed: its entries go, and it says nothing more.
        map.remove("pair/p/1")
        const error = yield* Fiber.join(waiting)
        assert.isBelow(Number((yield* Clock.monotonicTimeNanos) - since) / 1e6, 1_000)
        assert.strictEqual(error.reason._tag, "PairBroken", error.message)
        assert.match(error.message, /agent 1 had registered and is gone/)
        yield* Scope.close(scope, Exit.void)
      })
    )
  )
})
