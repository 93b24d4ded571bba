// SPDX-License-Identifier: Apache-2.0
/** Short transfers whose waiter looks at the sockets itself, against a sender of plain sockets. */
import { randomBytes } from "node:crypto"
import { assert, describe, it } from "@effect/vitest"
import type { NativeJobHandle } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import {
  addFlow,
  addPeer,
  encodeFrame,
  hostEngine,
  kinds,
  listenWire,
  makeIdentity,
  openEndpoint,
  openLane,
  valueOf
} from "./support.ts"

const [own, peer] = [makeIdentity(0), makeIdentity(1)]
const patienceMillis = 10_000

/** An endpoint with a flow that receives so many bytes, and a lane of its peer. */
const setUp = (byteLength: number) =>
  Effect.gen(function* () {
    const made = yield* openEndpoint(own, { deadline: patienceMillis })
    const { addon, endpoint } = made
    const listener = yield* listenWire(peer)
    const tensor = yield* made.engine.allocate("uint8", [byteLength])
    const flow = addFlow(made, addPeer(addon, endpoint, peer, listener.port), 7, "recv", [tensor])
    const lane = yield* Effect.promise(() => openLane(made.port, peer, own))
    let run = 0
    return {
      ...made,
      bytes: tensor.storage.bytes!,
      lane,
      /** Starts a run for which the sender knows that memory waits. */
      start: Effect.gen(function* () {
        const ends: Array<string> = []
        let tell = () => {}
        const called = new Promise<void>((resolve) => {
          tell = resolve
        })
        const job = valueOf(
          addon.startTransfer(endpoint, [flow], ({ code }) => {
            ends.push(code)
            tell()
          })
        )
        const ready = yield* Effect.promise(lane.frame)
        assert.deepInclude(ready, { kind: kinds.ready, run: ++run })
        return { job, ends, called }
      }),
      send: (sent: Buffer) =>
        lane.write(encodeFrame({ kind: kinds.chunk, program: 7, run, chunk: 0, length: sent.length }), sent),
      /** Until the transfer has ended, in one turn of the loop. */
      attend: (job: NativeJobHandle) => {
        const end = performance.now() + patienceMillis
        while (performance.now() < end) if (valueOf(addon.attendTransfer(endpoint, job))) return true
        return false
      }
    }
  })

type Given = Effect.Success<ReturnType<typeof setUp>>

const live = (title: string, byteLength: number, body: (given: Given) => Effect.Effect<void>) =>
  it.live(title, () =>
    setUp(byteLength).pipe(Effect.flatMap(body), Effect.scoped, Effect.provide(hostEngine), Effect.orDie)
  )

const turn = Effect.promise(() => new Promise<void>((resolve) => setImmediate(resolve)))

describe("a short transfer that is attended", () => {
  live("ends without a turn of the loop, and without its callback", 4096, ({ addon, endpoint, ...given }) =>
    Effect.gen(function* () {
      for (let round = 1; round <= 50; round++) {
        const sent = randomBytes(4096)
        const { job, ends } = yield* given.start
        given.send(sent)
        assert.isTrue(given.attend(job))
        assert.isTrue(sent.equals(given.bytes))
        valueOf(addon.endAttending(endpoint))
        const have = yield* Effect.promise(given.lane.frame)
        assert.deepInclude(have, { kind: kinds.have, run: round })
        yield* turn
        assert.deepStrictEqual(ends, [])
      }
    })
  )

  live("is confirmed, and the next one comes, where nobody ends the turn", 4096, (given) =>
    Effect.gen(function* () {
      const first = yield* given.start
      given.send(randomBytes(4096))
      assert.isTrue(given.attend(first.job))
      assert.deepInclude(yield* Effect.promise(given.lane.frame), { kind: kinds.have, run: 1 })
      const second = yield* given.start
      const sent = randomBytes(4096)
      given.send(sent)
      yield* Effect.promise(() => second.called)
      assert.deepStrictEqual(second.ends, ["Ok"])
      assert.isTrue(sent.equals(given.bytes))
    })
  )

  live("is left to the threads after looking in vain", 4096, ({ addon, endpoint, ...given }) =>
    Effect.gen(function* () {
      const { job, ends, called } = yield* given.start
      for (let tries = 0; tries < 100; tries++) assert.isFalse(valueOf(addon.attendTransfer(endpoint, job)))
      given.send(randomBytes(4096))
      yield* Effect.promise(() => called)
      assert.deepStrictEqual(ends, ["Ok"])
      assert.deepInclude(yield* Effect.promise(given.lane.frame), { kind: kinds.have, run: 1 })
    })
  )

  live("fails by its callback where the peer breaks the protocol meanwhile", 4096, ({ addon, endpoint, ...given }) =>
    Effect.gen(function* () {
      const { job, ends, called } = yield* given.start
      given.lane.write(encodeFrame({ kind: 99, program: 7, run: 1, chunk: 0, length: 10 }))
      for (let tries = 0; tries < 100; tries++) assert.isFalse(valueOf(addon.attendTransfer(endpoint, job)))
      yield* Effect.promise(() => called)
      assert.deepStrictEqual(ends, ["SystemFailure"])
    })
  )

  live("is not looked for where it is long", 2 ** 20, ({ addon, endpoint, ...given }) =>
    Effect.gen(function* () {
      const { job, called } = yield* given.start
      const sent = randomBytes(2 ** 20)
      given.send(sent)
      yield* Effect.promise(() => called)
      assert.isFalse(valueOf(addon.attendTransfer(endpoint, job)), "its callback was called")
      assert.isTrue(sent.equals(given.bytes))
    })
  )

  live("is nothing that another handle names", 4096, ({ addon, endpoint, ...given }) =>
    Effect.gen(function* () {
      yield* given.start
      const wrong = [undefined, {}, endpoint] as unknown as ReadonlyArray<NativeJobHandle>
      for (const handle of wrong) assert.notStrictEqual(addon.attendTransfer(endpoint, handle).code, "Ok")
    })
  )
})
