// SPDX-License-Identifier: Apache-2.0
/**
 * How the tests of the addon speak with it: answers unwrapped, jobs as promises, devices and memory that end with a scope,
 * tables by hand.
 */
import { assert } from "@effect/vitest"
import {
  type Addon,
  type AllocatedMemory,
  type DeviceOptions,
  loadAddon,
  type NativeCommunicator,
  type NativeDevice,
  type SpanTimes
} from "@tensorferry/gpu/Addon"
import type { Done, NativeAnswer, NativeFailure } from "@tensorferry/native/NativeAddon"
import type { NativeJobHandle } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { leaks, openSimulated, simulator, violations } from "./gpu.ts"

/** The value of an answer; throws its failure. */
export const value = <A>(answer: NativeAnswer<A>): A => {
  if (answer.code === "Ok") return answer.value
  return assert.fail(`${answer.code} of ${answer.op}: ${answer.detail} ${violations().join("; ")}`)
}

/** Why it failed; a value fails the test. */
export const problem = (answer: NativeAnswer<unknown>): NativeFailure =>
  answer.code === "Ok" ? assert.fail("it should have failed") : answer

/** Work of the addon that was begun, and the promise of its end. */
export interface Started<A> {
  readonly handle: NativeJobHandle
  readonly answer: Promise<NativeAnswer<A>>
}

/** Begins work of the addon. */
export const start = <A>(begin: (done: Done<A>) => NativeAnswer<NativeJobHandle>): Started<A> => {
  let settle: (answer: NativeAnswer<A>) => void = () => undefined
  const answer = new Promise<NativeAnswer<A>>((resolve) => {
    settle = resolve
  })
  return { handle: value(begin((answered) => settle(answered))), answer }
}

/** Begins work of the addon and waits for its end. */
export const run = async <A>(begin: (done: Done<A>) => NativeAnswer<NativeJobHandle>): Promise<A> =>
  value(await start(begin).answer)

/** Opens the simulated libraries. */
export const librariesOf = (addon: Addon) => {
  const { libraries } = value(openSimulated(addon))
  return libraries ?? assert.fail("the simulated libraries were not found")
}

/** A device that is closed at the end of the scope, if it is still open. */
export const openDevice = (addon: Addon, ordinal = 0, options: DeviceOptions = {}) =>
  Effect.acquireRelease(
    Effect.promise(() =>
      run<NativeDevice>((done) => addon.startOpenDevice(librariesOf(addon), ordinal, options, done))
    ),
    (device) => Effect.sync(() => void addon.closeDevice(device))
  )

/** What was made on a device lives as long as the device's handle: an engine may forget variables after their last use. */
const held = new WeakMap<NativeDevice, Array<unknown>>()

const hold =
  (device: NativeDevice) =>
  <A>(made: A): A => {
    held.set(device, [...(held.get(device) ?? []), made])
    return made
  }

/** New memory of a simulated device. */
export const allocate = (addon: Addon, device: NativeDevice, byteLength: number) =>
  Effect.map(
    Effect.promise(() => run<AllocatedMemory>((done) => addon.startAllocate(device, byteLength, done))),
    hold(device)
  )

/** New pinned memory of the host. */
export const allocateHost = (addon: Addon, device: NativeDevice, byteLength: number) =>
  Effect.map(
    Effect.promise(() =>
      run<AllocatedMemory & { readonly buffer: ArrayBuffer }>((done) =>
        addon.startAllocateHost(device, byteLength, done)
      )
    ),
    hold(device)
  )

/** Runs the body over a fresh simulated driver; afterwards nothing may be left or objected to. */
export const simulated = <A, E>(settings: string, body: Effect.Effect<A, E, never>) =>
  Effect.gen(function* () {
    simulator.reset()
    assert.strictEqual(simulator.configure(`pace=1 ${settings}`), 0)
    const result = yield* body
    assert.deepStrictEqual(violations(), [])
    assert.deepStrictEqual(leaks(), [])
    return result
  })

/** Runs the body with the addon and an open device over a fresh simulated driver, as `simulated` does. */
export const onDevice = (
  settings: string,
  body: (addon: Addon, device: NativeDevice) => Generator<Effect.Effect<unknown, unknown, Scope.Scope>, void, never>
) =>
  simulated(
    settings,
    Effect.scoped(
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const device = yield* openDevice(addon)
        yield* Effect.gen(() => body(addon, device))
      })
    )
  )

const words = (head: number, ...values: ReadonlyArray<number>): ReadonlyArray<bigint> => [head, ...values].map(BigInt)

/** A copy of bytes in rows: `rows` of `length` bytes, with these distances between rows. */
export const rowsMove = (
  destination: bigint,
  source: bigint,
  rows: number,
  length: number,
  destinationStep: number,
  sourceStep: number
): BigUint64Array =>
  BigUint64Array.from([
    ...words((1 << 8) | (1 << 16) | (2 << 24)),
    destination,
    source,
    ...words(rows, length, destinationStep, 1, sourceStep, 1)
  ])

/** Runs steps once over one kind of everything and answers its spans. */
export const runSteps = async (
  addon: Addon,
  device: NativeDevice,
  steps: BigUint64Array,
  moves: ReadonlyArray<BigUint64Array> = [],
  communicator?: NativeCommunicator
): Promise<SpanTimes> => {
  const program = value(addon.createProgram(device, steps, moves, communicator))
  const times = await run<SpanTimes>((done) => addon.startProgram(program, done))
  value(addon.closeProgram(program))
  return times
}

/** One communicator over these devices, a rank each. */
export const connectAll = (addon: Addon, devices: ReadonlyArray<NativeDevice>) =>
  Effect.promise(() => {
    const id = value(addon.createUniqueId(librariesOf(addon)))
    return Promise.all(
      devices.map((device, rank) =>
        run<NativeCommunicator>((done) => addon.startConnect(device, id, rank, devices.length, done))
      )
    )
  })
