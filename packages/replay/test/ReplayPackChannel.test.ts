// SPDX-License-Identifier: Apache-2.0
/** Pack requests over a channel: answers, failures, cancellation, a collector that goes, and answers that lie. */
import { EventEmitter } from "node:events"
import { assert, describe, it } from "@effect/vitest"
import type { PackedBatch, PackRequest } from "@tensorferry/core/replay/ReplayPackRequests"
import { batchError, type ReplayPipelineError } from "@tensorferry/core/replay/ReplayPipelineError"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { type MessagePort, portChannel, remotePackRequests, servePackRequests } from "../src/ReplayPackChannel.ts"

/** Two ends that carry JSON, as Node's channel between processes does. */
const makePorts = () => {
  const ends = [new EventEmitter(), new EventEmitter()] as const
  const state = { connected: true }
  const port = (at: 0 | 1): MessagePort & EventEmitter =>
    Object.defineProperty(
      Object.assign(ends[at], {
        send: (message: unknown) =>
          setImmediate(() => ends[1 - at]!.emit("message", JSON.parse(JSON.stringify(message))))
      }),
      "connected",
      { get: () => state.connected }
    ) as unknown as MessagePort & EventEmitter
  const disconnect = (): void => {
    state.connected = false
    for (const end of ends) end.emit("disconnect")
  }
  return { learner: port(0), collector: port(1), disconnect }
}

const packed = ({ tick, slot }: PackRequest): PackedBatch => ({
  ...{ tick, slot, first: 2n ** 60n, end: 2n ** 60n + 9n, redrawn: 3, pid: 7 },
  startedAt: 1n,
  endedAt: 2n
})

const request = (tick: number): PackRequest => ({ tick, slot: tick % 2, seed: 4, rows: 5 })

const reasonOf = <A>(effect: Effect.Effect<A, ReplayPipelineError>) =>
  Effect.map(Effect.flip(effect), ({ reason }) => reason)

const turns = Effect.repeat(
  Effect.callback<void>((resume) => void setImmediate(() => resume(Effect.void))),
  { times: 20 }
)

describe("a channel", () => {
  it.live("carries requests in order and answers with all their numbers", () =>
    Effect.gen(function* () {
      const { collector, learner } = makePorts()
      const seen: Array<PackRequest> = []
      yield* servePackRequests(portChannel(collector), (asked) =>
        Effect.gen(function* () {
          seen.push(asked)
          // The first one takes longest.
          if (asked.tick === 0) yield* turns
          if (asked.tick !== 2) return packed(asked)
          return yield* batchError("Overwritten", asked, { detail: "so it is", remedy: "", isRetryable: true })
        })
      )
      const requests = yield* remotePackRequests(portChannel(learner))
      const exits = yield* Effect.forEach([0, 1, 2, 3], (tick) => Effect.result(requests.pack(request(tick))), {
        concurrency: "unbounded"
      })
      assert.deepStrictEqual(seen, [0, 1, 2, 3].map(request))
      for (const tick of [0, 1, 3]) {
        const exit = exits[tick]!
        assert.deepStrictEqual(exit._tag === "Success" ? exit.success : undefined, packed(request(tick)))
      }
      const { _tag, detail, isRetryable, slot } = yield* reasonOf(requests.pack(request(2)))
      assert.deepStrictEqual([_tag, slot, isRetryable, detail], ["Overwritten", 0, true, "Tick 2: so it is"])
    })
  )

  it.live("releases a slot before an interruption ends", () =>
    Effect.gen(function* () {
      const { collector, learner } = makePorts()
      const state = { isWriting: false }
      const ending = yield* Deferred.make<void>()
      yield* servePackRequests(portChannel(collector), () =>
        Effect.callback<PackedBatch>(() => {
          state.isWriting = true
          return Effect.andThen(
            Deferred.await(ending),
            Effect.sync(() => {
              state.isWriting = false
            })
          )
        })
      )
      const requests = yield* remotePackRequests(portChannel(learner))
      // The second one has not begun when it is interrupted.
      const fibers = [
        yield* Effect.forkChild(requests.pack(request(0)), { startImmediately: true }),
        yield* Effect.forkChild(requests.pack(request(1)), { startImmediately: true })
      ]
      yield* turns
      assert.isTrue(state.isWriting)
      const interrupting = yield* Effect.forkChild(Fiber.interruptAll(fibers), { startImmediately: true })
      yield* turns
      assert.isUndefined(interrupting.pollUnsafe(), "the collector still writes")
      yield* Deferred.succeed(ending, undefined)
      yield* Fiber.join(interrupting)
      assert.isFalse(state.isWriting)
    })
  )

  it.live("that closes fails every open request and every later one, and stops the collector", () =>
    Effect.gen(function* () {
      const { collector, disconnect, learner } = makePorts()
      const state = { interrupted: 0 }
      const { closed } = yield* servePackRequests(portChannel(collector), () =>
        Effect.onInterrupt(Effect.never, () =>
          Effect.sync(() => {
            state.interrupted += 1
          })
        )
      )
      const requests = yield* remotePackRequests(portChannel(learner))
      const open = yield* Effect.forkChild(reasonOf(requests.pack(request(6))), { startImmediately: true })
      yield* turns
      disconnect()
      const reason = yield* Fiber.join(open)
      assert.deepStrictEqual([reason._tag, reason.slot], ["CollectorGone", 0])
      assert.match(reason.detail, /Tick 6/)
      assert.strictEqual((yield* reasonOf(requests.pack(request(7))))._tag, "CollectorGone")
      yield* closed
      yield* turns
      assert.strictEqual(state.interrupted, 1)
    })
  )

  it.live("believes no answer that is wrong, and passes by what is none", () =>
    Effect.gen(function* () {
      const { collector, learner } = makePorts()
      const lies: ReadonlyArray<object> = [{ tick: 1 }, { slot: 1 }, { first: "9", end: "9" }]
      collector.on("message", (message) => {
        const { id, tick } = message as { readonly id: number; readonly tick: number }
        const truth = { _tag: "ReplayPacked", id, tick, slot: 0, first: "0", end: "9", redrawn: 0, pid: 1 }
        const times = { startedAt: "1", endedAt: "2" }
        for (const other of [
          "text",
          null,
          { _tag: "Other" },
          { ...truth, ...times, id: id + 50 },
          { ...truth, ...times, end: "-1" }
        ])
          collector.send?.(other, () => undefined)
        collector.send?.({ ...truth, ...times, ...lies[tick / 2] }, () => undefined)
      })
      const requests = yield* remotePackRequests(portChannel(learner))
      for (const at of lies.keys()) {
        assert.strictEqual((yield* reasonOf(requests.pack(request(2 * at))))._tag, "PackFailed", `lie ${at}`)
      }
      assert.strictEqual((yield* requests.pack(request(2 * lies.length))).end, 9n)
    })
  )
})
