// SPDX-License-Identifier: Apache-2.0
/**
 * The slots of a replay backend against their model, under any order of submissions, completions, failures, clears, waits,
 * interruptions, frees and the end of the backend, for each way in which devices take submissions.
 */

import { assert, describe, it } from "@effect/vitest"
import { type DelayedReplayDevice, makeDelayedReplayDevice } from "@tensorferry/testing/DelayedReplayDevice"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import fc from "fast-check"
import { ReplayTransferBusyPoll, replayTransferLayer } from "../../src/replay/ReplayTransferLayer.ts"
import {
  ReplayTransferBackend,
  type ReplayTransferBackendShape,
  replayTransferError
} from "../../src/service/ReplayTransferBackend.ts"
import { type Tensor, tensorView } from "../../src/tensor/Tensor.ts"
import { type Mode, ReplayModel } from "./replayModel.ts"

const depth = 2
const sources = 2
const length = 5
const empty = 0xee

interface Source {
  readonly tensor: Tensor
  readonly scope: Scope.Closeable
}

/** The subject, and fibers under the numbers that the model gives them. */
interface Real {
  readonly device: DelayedReplayDevice
  readonly backend: ReplayTransferBackendShape
  readonly layerScope: Scope.Closeable
  readonly destinations: ReadonlyArray<Tensor>
  readonly sources: Array<Array<Source>>
  readonly fibers: Map<number, Fiber.Fiber<unknown, unknown>>
  closing: Fiber.Fiber<unknown, unknown> | undefined
}

const run = <A, E>(effect: Effect.Effect<A, E>): A => Effect.runSync(effect)

/** Lets everything that can go on do so. */
const quiet = async () => {
  for (let turn = 0; turn < 4; turn++) await new Promise((resolve) => setImmediate(resolve))
}

const newSource = (device: DelayedReplayDevice): Source => {
  const scope = run(Scope.make())
  const storage = run(Scope.provide(device.allocateHost(length), scope))
  return { tensor: Result.getOrThrow(tensorView(storage, "uint8", [length])), scope }
}

const makeReal = async (mode: Mode, busyPoll: Duration.Duration): Promise<Real> => {
  const device = makeDelayedReplayDevice({ mode })
  const layerScope = run(Scope.make())
  const layer = replayTransferLayer(Effect.succeed(device), { ringDepth: depth, deadline: Duration.minutes(5) })
  const polling = Effect.provideService(Layer.buildWithScope(layer, layerScope), ReplayTransferBusyPoll, busyPoll)
  const context = await Effect.runPromise(polling)
  const backend = Context.get(context, ReplayTransferBackend)
  const memory = run(Scope.make())
  const destinations = run(
    Scope.provide(backend.allocateDeviceSlots({ count: depth, shape: [length], dtype: "uint8" }), memory)
  )
  for (const { storage } of destinations) storage.bytes!.fill(empty)
  return {
    device,
    backend,
    layerScope,
    destinations,
    sources: Array.from({ length: depth }, () => Array.from({ length: sources }, () => newSource(device))),
    fibers: new Map(),
    closing: undefined
  }
}

/** Leaves nothing that polls: other tests share this process. */
const end = async ({ closing, device, fibers, layerScope }: Real): Promise<void> => {
  for (const fiber of fibers.values()) fiber.interruptUnsafe()
  const finishing = Effect.runFork(device.finishAlways)
  await Effect.runPromise(closing === undefined ? Scope.close(layerScope, Exit.void) : Fiber.await(closing))
  finishing.interruptUnsafe()
}

const outcomeOf = (fiber: Fiber.Fiber<unknown, unknown>): string => {
  const exit = fiber.pollUnsafe()
  if (exit === undefined) return "waits"
  if (Exit.isSuccess(exit)) return "done"
  return exit.cause.reasons.some((reason) => reason._tag === "Interrupt") ? "interrupted" : "failed"
}

/** All that can be observed is as the model says. */
const agree = async (model: ReplayModel, real: Real): Promise<void> => {
  await quiet()
  model.settle()
  for (const [index, slot] of model.slots.entries()) {
    assert.strictEqual(run(real.backend.slotState(index)), model.stateOf(slot), `state of slot ${index}`)
    const ready = run(Effect.result(real.backend.isReady(index)))
    const expected = slot.phase === "failed" ? "failed" : slot.phase === "ready"
    assert.strictEqual(Result.isFailure(ready) ? "failed" : ready.success, expected, `slot ${index} is ready`)
    const bytes = [...real.destinations[index]!.storage.bytes!]
    assert.deepStrictEqual(bytes, new Array(length).fill(slot.content), `bytes of slot ${index}`)
  }
  for (const [id, fiber] of model.fibers) {
    assert.strictEqual(outcomeOf(real.fibers.get(id)!), fiber.outcome, `${fiber.kind} ${id} of slot ${fiber.slot}`)
  }
  const running = model.slots.filter(({ phase }) => phase === "running").length
  assert.strictEqual(real.device.pending().length, running, "copies under way")
  if (real.closing !== undefined) assert.strictEqual(outcomeOf(real.closing), running > 0 ? "waits" : "done", "closing")
}

type Step = fc.AsyncCommand<ReplayModel, Real>

let lastId = 0

const step = (
  name: string,
  isPossible: (model: ReplayModel) => boolean,
  take: (model: ReplayModel, real: Real) => void | Promise<void>
): Step => ({
  check: isPossible,
  run: async (model, real) => {
    await take(model, real)
    await agree(model, real)
  },
  toString: () => name
})

const submit = (slot: number, source: number, value: number): Step =>
  step(
    `submit ${value} from ${source} into ${slot}`,
    () => true,
    async (model, real) => {
      const { tensor } = real.sources[slot]![source]!
      const submission = real.backend.submitH2d({ slot, destination: real.destinations[slot]!, source: tensor })
      const isFreed = tensor.storage.isFreed()
      const refusal = model.isClosed ? "DeviceFailure" : model.isBusy(slot) ? "SlotBusy" : isFreed ? "FreedStorage" : ""
      if (refusal !== "") {
        const error = await Effect.runPromise(Effect.flip(submission))
        assert.strictEqual(error.reason._tag, refusal)
        assert.strictEqual(error.reason.slot, slot)
        return
      }
      tensor.storage.bytes!.fill(value)
      const id = ++lastId
      real.fibers.set(id, Effect.runFork(submission))
      model.submit(slot, source, value, id)
    }
  )

const finish = (nth: number, isFailing: boolean): Step =>
  step(
    `${isFailing ? "fail" : "finish"} copy ${nth}`,
    (model) => model.slots.some(({ phase }) => phase === "running"),
    async (model, real) => {
      const pending = real.device.pending()
      const chosen = pending[nth % pending.length]!
      const failure = replayTransferError("DeviceFailure", { detail: "The test has it fail.", remedy: "None." })
      run(chosen.finish(isFailing ? failure : undefined))
      model.finish(chosen.slot, isFailing)
    }
  )

const clear = (slot: number): Step =>
  step(
    `clear ${slot}`,
    () => true,
    (model, real) => {
      run(real.backend.clearReady(slot))
      model.clear(slot)
    }
  )

const wait = (slot: number, isStream: boolean): Step =>
  // While the device has the copy a wait of a stream ends at once; elsewhere both waits are the same.
  step(
    `wait for ${slot}`,
    () => true,
    (model, real) => {
      const { phase, isCleared } = model.slots[slot]!
      const atOnce = isStream && model.mode === "asynchronous" && phase === "running" && !isCleared
      const { backend } = real
      const id = ++lastId
      real.fibers.set(id, Effect.runFork(atOnce ? backend.waitCurrentStreamForReady(slot) : backend.waitReady(slot)))
      model.fibers.set(id, { slot, kind: "wait", outcome: atOnce ? "done" : "waits" })
    }
  )

const interrupt = (nth: number): Step =>
  step(
    `interrupt fiber ${nth}`,
    (model) => [...model.fibers.values()].some(({ outcome }) => outcome === "waits"),
    (model, real) => {
      const waiting = [...model.fibers].filter(([, { outcome }]) => outcome === "waits")
      const [id] = waiting[nth % waiting.length]!
      real.fibers.get(id)!.interruptUnsafe()
      model.interrupt(id)
    }
  )

const free = (slot: number, source: number): Step =>
  step(
    `free source ${source} of ${slot}`,
    () => true,
    (model, real) => {
      const known = real.sources[slot]![source]!
      if (!known.tensor.storage.isFreed()) {
        run(Scope.close(known.scope, Exit.void))
        const target = model.slots[slot]!
        if (target.phase === "recorded" && target.source === source) target.isSourceFreed = true
        // A copy that was recorded again because its maker went away would read freed memory, too.
        if (target.phase === "running" && target.source === source) target.isSourceFreed = true
      } else real.sources[slot]![source] = newSource(real.device)
    }
  )

const close: Step = step(
  "close",
  (model) => !model.isClosed,
  (model, real) => {
    real.closing = Effect.runFork(Scope.close(real.layerScope, Exit.void))
    model.isClosed = true
  }
)

const slot = fc.nat({ max: depth - 1 })
const source = fc.nat({ max: sources - 1 })
const nth = fc.nat({ max: 5 })

const commands = fc.commands(
  [
    fc.tuple(slot, source, fc.nat({ max: 200 })).map((given) => submit(...given)),
    fc.tuple(slot, source, fc.nat({ max: 200 })).map((given) => submit(...given)),
    fc.tuple(nth, fc.constant(false)).map((given) => finish(...given)),
    fc.tuple(nth, fc.boolean()).map((given) => finish(...given)),
    slot.map(clear),
    fc.tuple(slot, fc.boolean()).map((given) => wait(...given)),
    nth.map(interrupt),
    nth.map(interrupt),
    fc.tuple(slot, source).map((given) => free(...given)),
    fc.constant(close)
  ],
  { maxCommands: 40, size: "max" }
)

describe("slots follow their model", () => {
  for (const [mode, busyPoll] of [
    ["asynchronous", Duration.zero],
    ["asynchronous", Duration.minutes(5)],
    ["synchronous", Duration.zero],
    ["deferred", Duration.zero],
    ["deferred", Duration.minutes(5)]
  ] as const) {
    it(
      `${mode}, ${Duration.toMillis(busyPoll) > 0 ? "polled" : "not polled"}`,
      () =>
        fc.assert(
          fc.asyncProperty(commands, async (steps) => {
            const real = await makeReal(mode, busyPoll)
            await fc.asyncModelRun(() => ({ model: new ReplayModel(mode, depth, empty), real }), steps)
            await end(real)
          }),
          { numRuns: isSoak ? 3000 : 150, ...(isSoak ? {} : { seed: 5 }) }
        ),
      300_000
    )
  }
})
