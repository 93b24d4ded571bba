// SPDX-License-Identifier: Apache-2.0
/**
 * Signals by flags of a driver: nobody sleeps over a statement, whenever it is made, and what was stated counts by either way
 * and after the flags are gone.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { makeSignals } from "../../src/copy/internal/signals.ts"
import { makeInProcessGroups } from "../../src/group/ProcessGroupInProcess.ts"
import type { PeerFlag, PeerFlags } from "../../src/service/CopyDriver.ts"

const soon = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.timeout(effect, "2 seconds")

/** Flags in which the test states what it likes, and which wake nobody by themselves. */
const makeFlags = (isSeen = true) => {
  const stated = new Map<PeerFlag, number>()
  const told: Array<readonly [PeerFlag, number]> = []
  const sleeps: Array<boolean> = []
  let sleeping = (_isAsleep: boolean): void => {}
  const flags: PeerFlags = {
    tell: (_peer, flag, value) => {
      told.push([flag, value])
      return isSeen
    },
    read: (_peer, flag) => stated.get(flag) ?? 0,
    sleep: (isAsleep) => {
      sleeps.push(isAsleep)
      sleeping(isAsleep)
    },
    watch: () => () => {}
  }
  const whenSleeping = (does: typeof sleeping) => {
    sleeping = does
  }
  return { flags, stated, told, sleeps, whenSleeping }
}

/** Both ranks of a group; rank 0 has the signals. */
const makePair = Effect.gen(function* () {
  const [group, other] = yield* makeInProcessGroups(2, { deadline: Duration.minutes(5) })
  return { signals: yield* makeSignals(group!), other: yield* makeSignals(other!) }
})

describe("signals by flags", () => {
  it.live("end a wait where the peer states something just before this rank sleeps, and so does not wake it", () =>
    Effect.gen(function* () {
      const { signals } = yield* makePair
      const { flags, stated, sleeps, whenSleeping } = makeFlags()
      signals.use(flags)
      whenSleeping((isAsleep) => {
        if (isAsleep) stated.set("Ready", 3)
      })
      assert.isFalse(signals.isReady(1, 3))
      assert.isTrue(yield* soon(signals.until(() => signals.isReady(1, 3) || undefined)))
      assert.strictEqual(sleeps.at(-1), false)
    })
  )

  it.live("end a wait of a rank that polled, where the peer states something as the polling ends", () =>
    Effect.gen(function* () {
      const { signals } = yield* makePair
      const { flags, stated, sleeps, whenSleeping } = makeFlags()
      signals.use(flags)
      const isAsleep = yield* Deferred.make<void>()
      whenSleeping((sleeps) => {
        if (!sleeps) return
        stated.set("Done", 1)
        Deferred.doneUnsafe(isAsleep, Exit.void)
      })
      const stop = signals.poll(20)
      assert.isTrue(yield* soon(signals.until(() => signals.isDone(1, 1) || undefined)))
      assert.isTrue(sleeps.includes(true), "it slept when the time was over")
      stop()
      assert.strictEqual(sleeps.at(-1), false)
    })
  )

  it.live("are seen by a rank that polls without anybody who wakes it", () =>
    Effect.gen(function* () {
      const { signals } = yield* makePair
      const { flags, stated, sleeps } = makeFlags()
      signals.use(flags)
      const stop = signals.poll(5000)
      setImmediate(() => stated.set("Ready", 1))
      assert.isTrue(yield* soon(signals.until(() => signals.isReady(1, 1) || undefined)))
      assert.notInclude(sleeps, true)
      stop()
    })
  )

  it.live("count after other flags or none took the place of those", () =>
    Effect.gen(function* () {
      const { signals } = yield* makePair
      const { flags, stated } = makeFlags()
      signals.use(flags)
      stated.set("Done", 7)
      signals.use(makeFlags().flags)
      assert.deepStrictEqual([signals.isDone(1, 7), signals.isDone(1, 8), signals.isOut(1, 7)], [true, false, true])
      signals.use(undefined)
      assert.isTrue(signals.isDone(1, 7))
    })
  )

  it.live("count by whichever way came further", () =>
    Effect.gen(function* () {
      const { signals, other } = yield* makePair
      const { flags, stated } = makeFlags()
      signals.use(flags)
      stated.set("Ready", 4)
      yield* other.tellPeers("Ready", [0], 6)
      assert.isTrue(signals.isReady(1, 6))
      stated.set("Ready", 9)
      yield* other.tellPeers("Ready", [0], 8)
      assert.deepStrictEqual([signals.isReady(1, 9), signals.isReady(1, 10)], [true, false])
    })
  )

  it.live("are posted as well to a peer that may not see them", () =>
    Effect.gen(function* () {
      const { signals, other } = yield* makePair
      const { flags, told } = makeFlags(false)
      signals.use(flags)
      yield* signals.tellPeers("Out", [1], 5)
      assert.deepStrictEqual(told, [["Out", 5]])
      assert.isTrue(other.isOut(0, 5))
    })
  )

  it.live("of no exact whole number above zero say nothing", () =>
    Effect.gen(function* () {
      const { signals } = yield* makePair
      const { flags, stated } = makeFlags()
      signals.use(flags)
      for (const value of [Number.NaN, Number.POSITIVE_INFINITY, -1, 0.5, 2 ** 60]) {
        stated.set("Ready", value)
        assert.isFalse(signals.isReady(1, 1), String(value))
      }
      assert.strictEqual(signals.heard(1), 0)
    })
  )

  it.live("tell again and again that a rank is at work on one run", () =>
    Effect.gen(function* () {
      const { signals } = yield* makePair
      const { flags, stated, told } = makeFlags()
      signals.use(flags)
      for (let time = 0; time < 3; time++) yield* signals.tellPeers("Alive", [1], 12)
      assert.strictEqual(new Set(told.map(([, value]) => value)).size, 3)
      const heard = [1, 2].map((value) => {
        stated.set("Alive", value)
        return signals.heard(1)
      })
      assert.isAbove(heard[1]!, heard[0]!)
    })
  )
})
