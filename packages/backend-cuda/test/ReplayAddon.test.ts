// SPDX-License-Identifier: Apache-2.0
/**
 * Replay copies of the addon itself: what is queued and in which order, how host slots are registered, and that whatever is
 * passed or freed at a bad moment is refused or waited for.
 */

import { assert, describe, it } from "@effect/vitest"
import type { Addon, NativeDevice, NativePin, NativeReplay, PreparedReplayCopy } from "@tensorferry/gpu/Addon"
import { loadAddon, replayAnswers } from "@tensorferry/gpu/Addon"
import { leaks, simulator, violations } from "@tensorferry/simulators/gpu"
import { allocate, openDevice, problem, run, simulated, start, value } from "@tensorferry/simulators/gpuAddon"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import { replayWay } from "../src/ReplayQueue.ts"
import { waysOfReplay } from "./replay.ts"

const page = 4096

/** Host memory that starts at a page and holds a pattern. */
const hostBytes = (byteLength: number, seed: number): Uint8Array => {
  const room = new Uint8Array(byteLength + page)
  const address = Number(value(addonNow().addressOf(room)))
  return pattern(room.subarray((page - (address % page)) % page).subarray(0, byteLength), seed)
}

const pattern = (bytes: Uint8Array, seed: number): Uint8Array => {
  for (let at = 0; at < bytes.length; at++) bytes[at] = (at * 31 + seed * 7) & 0xff
  return bytes
}

let loaded: Addon | undefined
const addonNow = (): Addon => loaded ?? assert.fail("the addon is not loaded")

const addressOf = (bytes: Uint8Array): bigint => value(addonNow().addressOf(bytes))

const create = (device: NativeDevice, slots: number, { streams, copiesPerEvent, isTimed } = replayWay) =>
  addonNow().createReplay(device, slots, streams, copiesPerEvent, isTimed)

const openReplay = (device: NativeDevice, slots = 2, way = replayWay) =>
  Effect.acquireRelease(
    Effect.sync(() => value(create(device, slots, way))),
    ({ replay }) => Effect.sync(() => void addonNow().closeReplay(replay))
  )

const register = (device: NativeDevice, bytes: Uint8Array) =>
  Effect.acquireRelease(
    Effect.promise(() =>
      run<NativePin>((done) => addonNow().startRegisterHostSlot(device, addressOf(bytes), bytes.length, done))
    ),
    (pin) => Effect.promise(() => start<undefined>((done) => addonNow().startUnpinHost(pin, done)).answer)
  )

const waitFor = (copy: PreparedReplayCopy) =>
  Effect.promise(() => run<undefined>((done) => addonNow().startReplayWait(copy.copy, done)))

const prepare = (replay: NativeReplay, slot: number, destination: bigint, source: Uint8Array): PreparedReplayCopy =>
  value(addonNow().prepareReplayCopy(replay, slot, destination, addressOf(source), source.length))

const over = <A, E>(settings: string, body: (addon: Addon, device: NativeDevice) => Effect.Effect<A, E, never>) =>
  simulated(
    settings,
    Effect.scoped(
      Effect.gen(function* () {
        loaded = yield* loadAddon
        const device = yield* openDevice(loaded)
        return yield* body(loaded, device)
      })
    )
  )

const seeds = isSoak ? 1000 : 20

describe("a prepared copy", () => {
  it.live("is done when its event says so, and not before", () =>
    Effect.gen(function* () {
      let early = 0
      for (let seed = 1; seed <= seeds; seed++) {
        yield* over(`seed=${seed} pace=0`, (addon, device) =>
          Effect.scoped(
            Effect.gen(function* () {
              const { replay } = yield* openReplay(device, 2, waysOfReplay[seed % waysOfReplay.length])
              const { address } = yield* allocate(addon, device, 3 * page)
              const source = hostBytes(3 * page, seed)
              yield* register(device, source)
              const copy = prepare(replay, 1, address, source)
              for (let round = 0; round < 3; round++) {
                pattern(source, seed + round)
                simulator.write(address, new Uint8Array(3 * page).fill(0xd7))
                simulator.configure("query=0")
                assert.strictEqual(copy.start(), replayAnswers.ok)
                assert.strictEqual(copy.query(), replayAnswers.notReady)
                simulator.configure("query=50")
                early += Buffer.compare(simulator.read(address, 3 * page), source) === 0 ? 0 : 1
                yield* waitFor(copy)
                assert.strictEqual(copy.query(), replayAnswers.ok)
                assert.deepStrictEqual(simulator.read(address, 3 * page), Buffer.from(source))
                const { isTimed } = waysOfReplay[seed % waysOfReplay.length]!
                assert.strictEqual(copy.seconds() >= 0, isTimed, `${copy.seconds()}`)
              }
            })
          )
        )
      }
      assert.isAbove(early, 0)
    })
  )

  it.live("makes each stream that waits read the new bytes, also a foreign stream", () =>
    Effect.gen(function* () {
      let stale = 0
      for (let seed = 1; seed <= seeds; seed++) {
        yield* over(`seed=${seed}`, (addon, device) =>
          Effect.scoped(
            Effect.gen(function* () {
              const { replay, stream } = yield* openReplay(device, 2, waysOfReplay[seed % waysOfReplay.length])
              const foreign = yield* Effect.acquireRelease(
                Effect.sync(() => simulator.createStream(0)),
                (handle) => Effect.sync(() => void simulator.destroyStream(handle))
              )
              const { address } = yield* allocate(addon, device, 2 * page)
              const source = hostBytes(2 * page, seed)
              yield* register(device, source)
              const copy = prepare(replay, 0, address, source)
              for (const [consumer, given] of [
                [stream, undefined],
                [foreign, foreign]
              ] as const) {
                pattern(source, seed + 1)
                simulator.write(address, new Uint8Array(2 * page).fill(0xd7))
                copy.start()
                value(addon.holdStream(copy.copy, given))
                assert.deepStrictEqual(simulator.readOnStream(consumer, address, 2 * page), Buffer.from(source))
                yield* waitFor(copy)
              }
              // Without being told, a consumer reads too early in some orders.
              simulator.write(address, new Uint8Array(2 * page).fill(0xd7))
              copy.start()
              if (Buffer.compare(simulator.readOnStream(foreign, address, 2 * page), source) !== 0) stale += 1
              yield* waitFor(copy)
            })
          )
        )
      }
      assert.isAbove(stale, 0)
    })
  )

  it.live("of many shares an event with others only where the stream has enough to do", () =>
    over("seed=3 pace=0 query=0", (addon, device) =>
      Effect.scoped(
        Effect.gen(function* () {
          const { replay } = yield* openReplay(device, 8, { streams: 1, copiesPerEvent: 3, isTimed: true })
          const { address } = yield* allocate(addon, device, 8 * page)
          const source = hostBytes(page, 1)
          yield* register(device, source)
          const copies = Array.from({ length: 8 }, (_, slot) =>
            prepare(replay, slot, address + BigInt(slot * page), source)
          )
          const events = () => simulator.report().calls.cudaEventRecord ?? 0
          const before = events()
          for (const copy of copies) assert.strictEqual(copy.start(), replayAnswers.ok)
          // The beginning of the first; the ends of the first three; one of the next three.
          assert.strictEqual(events() - before, 5)
          // Whoever waits has an event recorded where there is none.
          simulator.configure("query=50")
          yield* waitFor(copies[7]!)
          assert.strictEqual(events() - before, 6)
          for (const [slot, copy] of copies.entries()) {
            assert.strictEqual(copy.query(), replayAnswers.ok)
            assert.isAtLeast(copy.seconds(), 0)
            assert.deepStrictEqual(simulator.read(address + BigInt(slot * page), page), Buffer.from(source))
          }
        })
      )
    )
  )

  it.live("of pageable memory is made by a thread where it is long", () =>
    over("seed=5", (addon, device) =>
      Effect.scoped(
        Effect.gen(function* () {
          const { replay } = yield* openReplay(device)
          const { address } = yield* allocate(addon, device, 100 * page)
          const [short, long] = [hostBytes(page, 1), hostBytes(100 * page, 2)]
          const copy = prepare(replay, 0, address, short)
          assert.strictEqual(copy.start(), replayAnswers.ok)
          pattern(short, 9) // the driver has read it
          yield* waitFor(copy)
          assert.deepStrictEqual(simulator.read(address, page), Buffer.from(pattern(short, 1)))
          const onThread = prepare(replay, 1, address, long)
          assert.strictEqual(onThread.start(), replayAnswers.needsThread)
          yield* Effect.promise(() => run<undefined>((done) => addon.startReplayCopy(onThread.copy, done)))
          assert.deepStrictEqual(simulator.read(address, long.length), Buffer.from(long))
          // Registered later, it is queued at once; not registered any more, it needs the thread again.
          yield* Effect.scoped(
            Effect.gen(function* () {
              yield* register(device, long)
              pattern(long, 3)
              assert.strictEqual(onThread.start(), replayAnswers.ok)
              yield* waitFor(onThread)
            })
          )
          assert.deepStrictEqual(simulator.read(address, long.length), Buffer.from(long))
          assert.strictEqual(onThread.start(), replayAnswers.needsThread)
        })
      )
    )
  )

  it.live("of slots that share pages is cut where registrations meet", () =>
    over("seed=7", (addon, device) =>
      Effect.scoped(
        Effect.gen(function* () {
          const { replay } = yield* openReplay(device)
          const { address } = yield* allocate(addon, device, 20 * page)
          const room = hostBytes(20 * page, 4)
          const [first, second, both] = [
            room.subarray(0, 33_000),
            room.subarray(33_000, 70_000),
            room.subarray(5, 75_000)
          ]
          yield* register(device, first)
          yield* register(device, second)
          for (const part of [first, second, both]) {
            const copy = prepare(replay, 0, address, part)
            if (copy.start() === replayAnswers.needsThread) {
              yield* Effect.promise(() => run<undefined>((done) => addon.startReplayCopy(copy.copy, done)))
            }
            yield* waitFor(copy)
            assert.deepStrictEqual(simulator.read(address, part.length), Buffer.from(part))
          }
          const again = prepare(replay, 0, address, second)
          assert.strictEqual(again.start(), replayAnswers.ok)
          yield* waitFor(again)
        })
      )
    )
  )
})

describe("a host slot", () => {
  it.live("that cannot be registered says why, and nothing stays registered", () =>
    Effect.gen(function* () {
      for (const failing of [1, 2, 3]) {
        yield* over(`seed=${failing} fail=cudaHostRegister:${failing}:2`, (addon, device) =>
          Effect.scoped(
            Effect.gen(function* () {
              const slots = [1, 2, 3].map((seed) => hostBytes(2 * page, seed))
              const answers = []
              for (const slot of slots) {
                answers.push(
                  yield* Effect.promise(
                    () =>
                      start<NativePin>((done) =>
                        addon.startRegisterHostSlot(device, addressOf(slot), slot.length, done)
                      ).answer
                  )
                )
              }
              assert.deepStrictEqual(
                answers.map(({ code }) => code),
                [1, 2, 3].map((at) => (at === failing ? "OutOfMemory" : "Ok"))
              )
              for (const answer of answers) {
                if (answer.code !== "Ok") continue
                yield* Effect.promise(() => run<undefined>((done) => addon.startUnpinHost(answer.value, done)))
              }
              assert.strictEqual(simulator.report().live.hostRegistrations, 0)
            })
          )
        )
      }
    })
  )

  it.live("may be registered twice, and stays registered until both are unregistered", () =>
    over("seed=2", (_, device) =>
      Effect.scoped(
        Effect.gen(function* () {
          const slot = hostBytes(2 * page, 1)
          yield* register(device, slot)
          yield* Effect.scoped(register(device, slot))
          assert.strictEqual(simulator.report().live.hostRegistrations, 1)
        })
      )
    )
  )

  it.live("that is revoked during its copy is waited for", () =>
    over("seed=3 query=0 pace=1", (addon, device) =>
      Effect.scoped(
        Effect.gen(function* () {
          const { replay } = yield* openReplay(device)
          const { address } = yield* allocate(addon, device, 2 * page)
          const source = hostBytes(2 * page, 6)
          const pin = yield* Effect.promise(() =>
            run<NativePin>((done) => addon.startRegisterHostSlot(device, addressOf(source), source.length, done))
          )
          const expected = Buffer.from(source)
          assert.strictEqual(prepare(replay, 0, address, source).start(), replayAnswers.ok)
          value(addon.revokePin(replay, pin))
          source.fill(0)
          assert.deepStrictEqual(simulator.read(address, 2 * page), expected)
          assert.strictEqual(problem(addon.revokePin(replay, pin)).code, "InvalidHandle")
        })
      )
    )
  )
})

describe("the end", () => {
  it.live("of a replay object waits for its copies and refuses what comes later", () =>
    over("seed=4", (addon, device) =>
      Effect.scoped(
        Effect.gen(function* () {
          const { replay } = value(create(device, 1))
          const { address } = yield* allocate(addon, device, 2 * page)
          const source = hostBytes(2 * page, 6)
          yield* register(device, source)
          const copy = prepare(replay, 0, address, source)
          copy.start()
          value(addon.closeReplay(replay))
          assert.strictEqual(copy.start(), replayAnswers.isClosed)
          assert.strictEqual(copy.query(), replayAnswers.isClosed)
          assert.isBelow(copy.seconds(), 0)
          for (const refused of [
            addon.closeReplay(replay),
            addon.holdStream(copy.copy, undefined),
            addon.prepareReplayCopy(replay, 0, address, 0n, 1),
            addon.spinReplay(replay, false, 1),
            addon.startReplayWait(copy.copy, () => undefined),
            addon.startReplayCopy(copy.copy, () => undefined),
            addon.startReplayFence(replay, true, () => undefined)
          ]) {
            assert.strictEqual(problem(refused).code, "InvalidHandle")
          }
          assert.strictEqual(value(addon.replayQuery(replay)), replayAnswers.isClosed)
          assert.strictEqual(problem(addon.describeReplayAnswer(replay, replayAnswers.isClosed)).code, "InvalidHandle")
          assert.strictEqual(problem(addon.describeReplayAnswer(replay, 700)).nativeCode, 700)
        })
      )
    )
  )

  it.live("of a device during a copy leaves nothing behind", () =>
    Effect.gen(function* () {
      simulator.reset()
      simulator.configure("pace=1 seed=9")
      loaded = yield* loadAddon
      const addon = loaded
      yield* Effect.scoped(
        Effect.gen(function* () {
          const device = yield* openDevice(addon)
          const { replay } = value(create(device, 1))
          const { address } = yield* allocate(addon, device, 2 * page)
          const source = hostBytes(2 * page, 6)
          yield* Effect.promise(() =>
            run<NativePin>((done) => addon.startRegisterHostSlot(device, addressOf(source), source.length, done))
          )
          const copy = prepare(replay, 0, address, source)
          copy.start()
          const waiting = start<undefined>((done) => addon.startReplayWait(copy.copy, done))
          value(addon.closeDevice(device))
          assert.include(["Ok", "Cancelled"], (yield* Effect.promise(() => waiting.answer)).code)
          assert.strictEqual(copy.start(), replayAnswers.isClosed)
        })
      )
      assert.deepStrictEqual(violations(), [])
      assert.deepStrictEqual(leaks(), [])
    })
  )

  it.live("of a wait comes at once when it is cancelled, whatever the device does", () =>
    over("seed=4 stall=cudaMemcpyAsync:1", (addon, device) =>
      Effect.scoped(
        Effect.gen(function* () {
          const { replay } = yield* openReplay(device)
          const { address } = yield* allocate(addon, device, 2 * page)
          const copy = prepare(replay, 0, address, hostBytes(2 * page, 6))
          copy.start()
          const waiting = start<undefined>((done) => addon.startReplayWait(copy.copy, done))
          value(addon.cancelJob(waiting.handle))
          assert.strictEqual((yield* Effect.promise(() => waiting.answer)).code, "Cancelled")
          simulator.configure("release=stalls")
        })
      )
    )
  )
})

describe("arguments", () => {
  it.live("that make no sense are refused", () =>
    over("seed=1", (addon, device) =>
      Effect.scoped(
        Effect.gen(function* () {
          const { replay } = yield* openReplay(device, 2)
          for (const refused of [
            create(device, 0),
            create(device, 1e9),
            create(device, 1, { ...replayWay, streams: 0 }),
            create(device, 1, { ...replayWay, streams: 17 }),
            create(device, 1, { ...replayWay, copiesPerEvent: 0 }),
            addon.prepareReplayCopy(replay, 2, 0n, 0n, 0),
            addon.prepareReplayCopy(replay, -1, 0n, 0n, 0),
            addon.prepareReplayCopy(replay, 0, 2n ** 64n - 1n, 0n, 8),
            addon.prepareReplayCopy(replay, 0, 0n, 2n ** 64n - 1n, 8),
            addon.prepareReplayCopy(replay, 0, -1n, 0n, 8),
            addon.prepareReplayCopy(replay, 0, 0n, 0n, 2 ** 50),
            addon.startRegisterHostSlot(device, 0n, 0, () => undefined),
            addon.spinReplay(replay, false, 1e12)
          ]) {
            assert.strictEqual(problem(refused).code, "InvalidArgument")
          }
          const forged = {} as never
          for (const refused of [create(forged, 1), addon.holdStream(forged, 1n), addon.closeReplay(forged)]) {
            assert.strictEqual(problem(refused).code, "InvalidHandle")
          }
          // A copy of nothing is ready like any other.
          const nothing = value(addon.prepareReplayCopy(replay, 0, 0n, 0n, 0))
          assert.strictEqual(nothing.start(), replayAnswers.ok)
          yield* waitFor(nothing)
        })
      )
    )
  )
})
