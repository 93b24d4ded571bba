// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of bytes: they arrive whole, between guard bytes, from every kind of host memory, round after round.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { check, checkEqual } from "./Case.ts"
import { setPoison, viewOf } from "./memory.ts"
import { ReplaySubject } from "./ReplaySubject.ts"
import {
  build,
  deviceSlots,
  eventually,
  expectCloseWaits,
  expectHeld,
  expectSlot,
  expectState,
  expectUntouched,
  fillHost,
  hostSlot,
  needsDeferred,
  needsHold,
  needsHook,
  outcomeOf,
  type ReplayCase,
  replayCase,
  submitHeld,
  turns
} from "./replayCase.ts"

const moves = replayCase(
  "moves tensors and touches nothing around them",
  Effect.gen(function* () {
    const backend = yield* build(2)
    for (const [dtype, shape] of [
      ["uint8", [1]],
      ["uint8", [4099]],
      ["float32", [3, 5, 7]],
      ["bfloat16", [129, 3]],
      ["float64", []],
      ["float4_e2m1fn", [6, 4]],
      ["float32", [1024, 257]]
    ] as const) {
      for (const byteOffset of [0, 8]) {
        const source = yield* hostSlot(shape, dtype, byteOffset)
        const [slot] = yield* deviceSlots(backend, 1, shape, dtype)
        const bytes = yield* fillHost(source, shape.length + byteOffset)
        const seconds = yield* backend.submitH2d({ slot: 1, destination: slot!.tensor, source })
        yield* check(seconds >= 0 && seconds < 60, () => `Submitting is said to have taken ${seconds} seconds.`)
        yield* backend.waitReady(1)
        yield* expectState("After the wait", backend, 1, ["ready"])
        yield* expectSlot(`${dtype}, ${byteOffset} bytes into the source`, slot!, bytes)
        yield* backend.clearReady(1)
      }
    }
  })
)

const emptyTensors = replayCase(
  "zero-size tensors become ready",
  Effect.gen(function* () {
    const backend = yield* build(1)
    for (const shape of [[0], [3, 0, 2]]) {
      const source = yield* hostSlot(shape, "float32")
      const [slot] = yield* deviceSlots(backend, 1, shape, "float32")
      yield* Effect.scoped(backend.registerHostSlots([source]))
      yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source })
      yield* backend.waitReady(0)
      yield* backend.waitCurrentStreamForReady(0)
      yield* expectState("After an empty copy", backend, 0, ["ready"])
      yield* expectUntouched("An empty copy", slot!)
      yield* backend.clearReady(0)
    }
  })
)

const rounds = replayCase(
  "three rounds with changed data, registered and not",
  Effect.gen(function* () {
    const ringDepth = 3
    const backend = yield* build(ringDepth)
    const length = 100_003
    const slots = yield* deviceSlots(backend, ringDepth, [length])
    const sources = yield* Effect.forEach(slots, () => hostSlot([length]))
    const round = Effect.fnUntraced(function* (what: string, seed: number) {
      const expected: Array<Uint8Array> = []
      for (const [slot, placed] of slots.entries()) {
        yield* setPoison(placed)
        expected.push(yield* fillHost(sources[slot]!, seed + slot))
        yield* backend.submitH2d({ slot, destination: placed.tensor, source: sources[slot]! })
      }
      for (let slot = ringDepth - 1; slot >= 0; slot--) {
        yield* backend.waitReady(slot)
        yield* expectSlot(`${what}, slot ${slot}`, slots[slot]!, expected[slot]!)
        if (seed % 2 === 0) yield* backend.clearReady(slot)
      }
    })
    for (let at = 0; at < 3; at++) yield* round(`Unregistered, round ${at}`, at * 11)
    yield* Effect.scoped(
      Effect.gen(function* () {
        yield* backend.registerHostSlots(sources)
        for (let at = 0; at < 3; at++) yield* round(`Registered, round ${at}`, 100 + at * 11)
      })
    )
    yield* round("Unregistered again", 200)
  })
)

const otherTensors = replayCase(
  "a slot takes other tensors each time",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const length = 5000
    const slots = yield* deviceSlots(backend, 3, [length])
    const sources = yield* Effect.forEach([0, 1, 2], (at) => hostSlot([length], "uint8", at * 16))
    for (let tick = 0; tick < 12; tick++) {
      const placed = slots[tick % 3]!
      const source = sources[(tick * 2 + (tick >> 2)) % 3]!
      for (const slot of slots) yield* setPoison(slot)
      const bytes = yield* fillHost(source, tick)
      yield* backend.submitH2d({ slot: 0, destination: placed.tensor, source })
      yield* backend.waitReady(0)
      yield* expectSlot(`Tick ${tick}`, placed, bytes)
      for (const slot of slots) if (slot !== placed) yield* expectUntouched(`Tick ${tick}, another destination`, slot)
    }
  })
)

/** Uses memory once, in a scope of its own; answers where it was. */
const once = Effect.fnUntraced(function* (
  backend: Effect.Success<ReturnType<typeof build>>,
  length: number,
  seed: number
) {
  const [slot] = yield* deviceSlots(backend, 1, [length])
  const source = yield* hostSlot([length])
  if (seed % 3 === 2) yield* backend.registerHostSlots([source])
  const bytes = yield* fillHost(source, seed)
  yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source })
  yield* backend.waitReady(0)
  yield* expectSlot(`Allocation ${seed}`, slot!, bytes)
  return [slot!.whole.storage.address, source.storage.address]
}, Effect.scoped)

const addressReuse = replayCase(
  "memory that comes back at the same address is new memory",
  Effect.gen(function* () {
    const backend = yield* build(1)
    // Small memory comes back sooner, large memory is mapped again; both must work.
    for (const [length, times] of [
      [3000, 6],
      [4_500_000, 3]
    ] as const) {
      for (let seed = 0; seed < times; seed++) yield* once(backend, length, seed)
    }
  })
)

const slices = replayCase(
  "slices of one registered slot are sources of their own",
  Effect.gen(function* () {
    const backend = yield* build(4)
    const length = 1000
    const whole = yield* hostSlot([4 * length])
    yield* backend.registerHostSlots([whole])
    const bytes = yield* fillHost(whole, 3)
    const slots = yield* deviceSlots(backend, 4, [length])
    for (const [slot, placed] of slots.entries()) {
      const source = yield* viewOf(whole.storage, "uint8", [length], { byteOffset: slot * length })
      yield* backend.submitH2d({ slot, destination: placed.tensor, source })
    }
    for (const [slot, placed] of slots.entries()) {
      yield* backend.waitReady(slot)
      yield* expectSlot(`Slice ${slot}`, placed, bytes.subarray(slot * length, (slot + 1) * length))
    }
  })
)

const readyIsTrue = replayCase(
  "ready means that the bytes are there",
  Effect.gen(function* () {
    const backend = yield* build(2)
    const length = 8_000_000
    const slots = yield* deviceSlots(backend, 2, [length])
    const source = yield* hostSlot([length])
    yield* backend.registerHostSlots([source])
    for (let round = 0; round < 3; round++) {
      const slot = round % 2
      yield* setPoison(slots[slot]!)
      const bytes = yield* fillHost(source, round)
      yield* backend.submitH2d({ slot, destination: slots[slot]!.tensor, source })
      yield* round === 0
        ? Effect.scoped(
            Effect.gen(function* () {
              // Deferred copies are made by a wait, so somebody waits.
              yield* Effect.forkScoped(backend.waitReady(slot))
              yield* eventually("The copy", backend.isReady(slot))
            })
          )
        : backend.waitReady(slot)
      yield* expectSlot(`Round ${round}`, slots[slot]!, bytes)
    }
  })
)

const heldBack = replayCase(
  "a copy that is held back is not ready, and its bytes are not there",
  Effect.gen(function* () {
    const backend = yield* build(2)
    const [slot, other] = yield* deviceSlots(backend, 2, [50_000])
    const [source, second] = [yield* hostSlot([50_000]), yield* hostSlot([50_000])]
    const bytes = yield* fillHost(source, 1)
    const held = yield* submitHeld(backend, 0, slot!.tensor, source)
    const waiter = yield* expectHeld("A copy that is held", backend, slot!)
    yield* held.release
    yield* backend.waitReady(0)
    yield* expectState("After the wait", backend, 0, ["ready"])
    yield* expectSlot("The slot", slot!, bytes)
    yield* eventually(
      "The other wait",
      Effect.sync(() => outcomeOf(waiter) === "success")
    )
    const more = yield* fillHost(second, 2)
    yield* backend.submitH2d({ slot: 1, destination: other!.tensor, source: second })
    yield* backend.waitReady(1)
    yield* expectSlot("The other slot", other!, more)
  }),
  needsHold
)

const deferredReadsLate = replayCase(
  "a deferred submission is copied by the consumer's wait",
  Effect.gen(function* () {
    const backend = yield* build(2)
    const [slot, other] = yield* deviceSlots(backend, 2, [300])
    const source = yield* hostSlot([300])
    yield* fillHost(source, 1)
    yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source })
    yield* turns
    yield* expectState("After the submission", backend, 0, ["deferred"])
    yield* expectUntouched("A recorded submission", slot!)
    const bytes = yield* fillHost(source, 2)
    yield* backend.waitCurrentStreamForReady(0)
    yield* expectState("After the wait", backend, 0, ["ready"])
    yield* expectSlot("The slot", slot!, bytes)
    yield* backend.submitH2d({ slot: 1, destination: other!.tensor, source })
    yield* backend.clearReady(1)
    yield* expectState("A cleared submission", backend, 1, ["idle"])
    yield* turns
    yield* expectUntouched("A cleared submission", other!)
  }),
  needsDeferred
)

const scopeOf = Effect.flatMap(Scope.Scope, Scope.fork)

const freedSource = replayCase(
  "a source that is freed during its copy does no harm",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const length = 40_000
    const [slot] = yield* deviceSlots(backend, 1, [length])
    const scope = yield* scopeOf
    const whole = yield* Scope.provide(hostSlot([4 * length]), scope)
    // A row in the middle: its address is not the one by which its memory is given back.
    const source = yield* viewOf(whole.storage, "uint8", [length], { byteOffset: 2 * length })
    const bytes = yield* fillHost(source, 5)
    const held = yield* submitHeld(backend, 0, slot!.tensor, source)
    yield* Scope.close(scope, Exit.void)
    // Whoever gets memory now owns it alone.
    const next = yield* hostSlot([4 * length])
    const own = yield* fillHost(next, 9)
    yield* held.release
    const outcome = yield* Effect.result(backend.waitReady(0))
    if (outcome._tag === "Success") yield* expectSlot("A copy that was told to be ready", slot!, bytes)
    const kept = next.storage.bytes!.subarray(0, 4 * length)
    yield* check(Buffer.from(kept).equals(own), () => "Memory that was allocated later changed.")
    yield* backend.clearReady(0)
    yield* setPoison(slot!)
    const row = yield* viewOf(next.storage, "uint8", [length], { byteOffset: 2 * length })
    const last = yield* fillHost(row, 10)
    yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source: row })
    yield* backend.waitReady(0)
    yield* expectSlot("The next copy", slot!, last)
  }),
  needsHold
)

const freedSlots = replayCase(
  "device slots are freed only behind their copies",
  Effect.gen(function* () {
    const backend = yield* build(2)
    const length = 40_000
    const scope = yield* scopeOf
    const [slot] = yield* Scope.provide(deviceSlots(backend, 1, [length]), scope)
    const source = yield* hostSlot([length])
    yield* fillHost(source, 6)
    const held = yield* submitHeld(backend, 0, slot!.tensor, source)
    yield* expectCloseWaits(scope, slot!, held.release)
    const [next] = yield* deviceSlots(backend, 1, [length])
    yield* turns
    yield* expectUntouched("A slot that was allocated later", next!)
  }),
  needsHold
)

const unregistered = replayCase(
  "host slots are unregistered only behind their copies",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const subject = yield* ReplaySubject
    const length = 40_000
    const [slot] = yield* deviceSlots(backend, 1, [length])
    const source = yield* hostSlot([length])
    const scope = yield* scopeOf
    yield* Scope.provide(backend.registerHostSlots([source]), scope)
    const before = subject.registered?.()
    const bytes = yield* fillHost(source, 7)
    const held = yield* submitHeld(backend, 0, slot!.tensor, source)
    const closing = yield* Effect.forkScoped(Scope.close(scope, Exit.void), { startImmediately: true })
    yield* turns
    yield* checkEqual("Registered slots during the copy", subject.registered?.(), before)
    yield* check(closing.pollUnsafe() === undefined, () => "A host slot was unregistered during its copy.")
    yield* held.release
    yield* eventually(
      "Unregistering",
      Effect.sync(() => closing.pollUnsafe() !== undefined)
    )
    yield* backend.waitReady(0)
    yield* expectSlot("The slot", slot!, bytes)
  }),
  needsHold
)

const streams = replayCase(
  "work of a stream that waits for a slot sees its bytes",
  Effect.gen(function* () {
    const backend = yield* build(2)
    const offered = (yield* ReplaySubject).streams?.(backend)
    if (offered === undefined) return
    const length = 300_000
    const slots = yield* deviceSlots(backend, 2, [length])
    const results = yield* deviceSlots(backend, 2, [length])
    const source = yield* hostSlot([length])
    yield* backend.registerHostSlots([source])
    const opened = yield* offered.open
    for (let round = 0; round < 4; round++) {
      for (const [slot, stream] of [undefined, opened].entries()) {
        const [placed, result] = [slots[slot]!, results[slot]!]
        yield* setPoison(placed)
        yield* setPoison(result)
        const bytes = yield* fillHost(source, round * 2 + slot)
        yield* backend.submitH2d({ slot, destination: placed.tensor, source })
        yield* backend.waitCurrentStreamForReady(slot, stream)
        yield* offered.copy(stream, { dst: result.tensor, src: placed.tensor })
        yield* offered.finish(stream)
        yield* expectSlot(`Round ${round}, ${stream === undefined ? "own" : "other"} stream`, result, bytes)
        yield* backend.waitReady(slot)
        yield* backend.clearReady(slot)
      }
    }
  }),
  needsHook("streams", "the subject offers no streams")
)

/** Rows and columns arrive in their slot, bit by bit. */
export const replayMoveCases: ReadonlyArray<ReplayCase> = [
  moves,
  emptyTensors,
  rounds,
  otherTensors,
  addressReuse,
  slices,
  readyIsTrue,
  heldBack,
  deferredReadsLate,
  freedSource,
  freedSlots,
  unregistered,
  streams
]
