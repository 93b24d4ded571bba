// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of slot states: what is ready, what is busy, and how waits end.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { check, checkEqual, expectFailure } from "./Case.ts"
import { setPoison } from "./memory.ts"
import { ReplaySubject } from "./ReplaySubject.ts"
import {
  allOf,
  build,
  deviceSlots,
  eventually,
  expectHeld,
  expectSlot,
  expectState,
  expectUntouched,
  fillHost,
  hostSlot,
  isDeferred,
  needsDeferred,
  needsHold,
  needsHook,
  outcomeOf,
  type ReplayCase,
  replayCase,
  submitHeld,
  turns
} from "./replayCase.ts"

const notDeferred: ReplayCase["requires"] = (_, attributes) =>
  isDeferred(attributes) ? "submissions are deferred" : undefined

const sequence = replayCase(
  "slots go from idle by a submission to ready, and back by clearReady",
  Effect.gen(function* () {
    const backend = yield* build(3)
    const attributes = yield* backend.attributes
    const [slot] = yield* deviceSlots(backend, 1, [2000])
    const source = yield* hostSlot([2000])
    for (let round = 0; round < 3; round++) {
      for (const index of [0, 1, 2]) yield* expectState("Before a submission", backend, index, ["idle"])
      const bytes = yield* fillHost(source, round)
      yield* setPoison(slot!)
      yield* backend.submitH2d({ slot: round, destination: slot!.tensor, source })
      if (isDeferred(attributes)) yield* expectState("After the submission", backend, round, ["deferred"])
      else if (!attributes.supportsAsyncSubmit) yield* expectState("After the submission", backend, round, ["ready"])
      else yield* expectState("After the submission", backend, round, ["submitted", "ready"])
      yield* backend.waitReady(round)
      yield* expectState("After the wait", backend, round, ["ready"])
      yield* backend.waitReady(round)
      yield* expectSlot("The slot", slot!, bytes)
      const seconds = yield* backend.copySeconds(round)
      yield* check(
        seconds === undefined || (seconds >= 0 && seconds < 60),
        () => `The copy is said to have taken ${seconds} seconds.`
      )
      yield* checkEqual("The time of a copy is known", seconds !== undefined, attributes.supportsTimingEvents)
      yield* backend.clearReady(round)
    }
  })
)

const clearedReady = replayCase(
  "a cleared slot is not ready until the next copy",
  Effect.gen(function* () {
    const backend = yield* build(1, Duration.seconds(1))
    const [slot] = yield* deviceSlots(backend, 1, [2000])
    const source = yield* hostSlot([2000])
    yield* fillHost(source, 1)
    yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source })
    yield* backend.waitReady(0)
    yield* backend.clearReady(0)
    yield* backend.clearReady(0)
    yield* turns
    yield* expectState("After clearReady", backend, 0, ["idle"])
    const waits = yield* Effect.forEach([backend.waitReady(0), backend.waitCurrentStreamForReady(0)], (wait) =>
      Effect.forkScoped(wait, { startImmediately: true })
    )
    yield* turns
    for (const wait of waits) yield* checkEqual("A wait for a cleared slot", outcomeOf(wait), "nothing yet")
    const bytes = yield* fillHost(source, 2)
    yield* setPoison(slot!)
    yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source })
    yield* Effect.forEach(waits, Fiber.join)
    yield* backend.waitReady(0)
    yield* expectSlot("The next copy", slot!, bytes)
  })
)

const clearedDuring = replayCase(
  "a copy that was cleared while it ran does not count",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const [slot] = yield* deviceSlots(backend, 1, [60_000])
    const [source, next] = [yield* hostSlot([60_000]), yield* hostSlot([60_000])]
    yield* fillHost(source, 1)
    const held = yield* submitHeld(backend, 0, slot!.tensor, source)
    yield* backend.clearReady(0)
    yield* expectState("A cleared copy", backend, 0, ["submitted", "deferred"])
    const waiter = yield* Effect.forkScoped(backend.waitReady(0), { startImmediately: true })
    yield* turns
    yield* held.release
    yield* eventually(
      "The end of the copy",
      Effect.map(backend.slotState(0), (state) => state === "idle" || state === "ready")
    )
    yield* turns
    yield* expectState("After the copy", backend, 0, ["idle"])
    yield* checkEqual("A wait since before the end of a cleared copy", outcomeOf(waiter), "nothing yet")
    const bytes = yield* fillHost(next, 2)
    yield* setPoison(slot!)
    yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source: next })
    yield* backend.waitReady(0)
    yield* Fiber.join(waiter)
    yield* expectSlot("The next copy", slot!, bytes)
  }),
  needsHold
)

const resubmitted = replayCase(
  "an earlier copy does not make a slot ready that was submitted into again",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const [slot] = yield* deviceSlots(backend, 1, [60_000])
    const source = yield* hostSlot([60_000])
    for (const isCleared of [true, false]) {
      yield* fillHost(source, 1)
      yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source })
      yield* backend.waitReady(0)
      if (isCleared) yield* backend.clearReady(0)
      const bytes = yield* fillHost(source, 2)
      yield* setPoison(slot!)
      const held = yield* submitHeld(backend, 0, slot!.tensor, source)
      const waiter = yield* expectHeld("The second copy", backend, slot!)
      yield* held.release
      yield* Fiber.join(waiter)
      yield* expectSlot("The second copy", slot!, bytes)
    }
  }),
  needsHold
)

const busy = replayCase(
  "a busy slot is refused and its copy goes on",
  Effect.gen(function* () {
    const backend = yield* build(2)
    const [slot, other] = yield* deviceSlots(backend, 2, [60_000])
    const [source, second] = [yield* hostSlot([60_000]), yield* hostSlot([60_000])]
    const bytes = yield* fillHost(source, 1)
    const more = yield* fillHost(second, 2)
    const held = yield* submitHeld(backend, 0, slot!.tensor, source)
    for (const submission of [
      { slot: 0, destination: other!.tensor, source: second },
      { slot: 0, destination: slot!.tensor, source }
    ]) {
      const error = yield* expectFailure("Submitting into a busy slot", backend.submitH2d(submission), ["SlotBusy"])
      yield* checkEqual("The slot that the error names", error.reason.slot, 0)
      yield* checkEqual("Whether it may be tried again", error.reason.isRetryable, true)
    }
    const free = yield* submitHeld(backend, 1, other!.tensor, second)
    yield* turns
    yield* expectUntouched("A refused destination", other!)
    yield* held.release
    yield* free.release
    yield* backend.waitReady(0)
    yield* expectSlot("The busy slot", slot!, bytes)
    yield* backend.waitReady(1)
    yield* expectSlot("Another slot", other!, more)
    yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source: second })
    yield* backend.waitReady(0)
    yield* expectSlot("The slot once it was free", slot!, more)
  }),
  needsHold
)

const recordedBusy = replayCase(
  "a slot whose submission waits for its consumer is busy",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const [slot] = yield* deviceSlots(backend, 1, [600])
    const source = yield* hostSlot([600])
    const bytes = yield* fillHost(source, 1)
    const submission = { slot: 0, destination: slot!.tensor, source }
    yield* backend.submitH2d(submission)
    yield* expectFailure("Submitting into a deferred slot", backend.submitH2d(submission), ["SlotBusy"])
    yield* backend.waitReady(0)
    yield* expectSlot("The slot", slot!, bytes)
  }),
  needsDeferred
)

const interruptedWait = replayCase(
  "an interrupted wait leaves slot and copy as they are",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const [slot] = yield* deviceSlots(backend, 1, [60_000])
    const source = yield* hostSlot([60_000])
    const bytes = yield* fillHost(source, 1)
    const held = yield* submitHeld(backend, 0, slot!.tensor, source)
    for (let round = 0; round < 3; round++) {
      const waiter = yield* Effect.forkScoped(backend.waitReady(0), { startImmediately: true })
      yield* turns
      yield* Fiber.interrupt(waiter)
      yield* expectState("After the interruption", backend, 0, ["submitted", "deferred"])
    }
    // Where the consumer's wait makes the copy, its interruption stops the copy, and the next wait makes it.
    if (isDeferred(yield* backend.attributes)) {
      yield* Fiber.interrupt(held.fiber)
      yield* expectState("After the interruption of its consumer", backend, 0, ["deferred"])
    }
    yield* held.release
    yield* backend.waitReady(0)
    yield* expectSlot("The slot", slot!, bytes)
  }),
  needsHold
)

const interruptedSubmission = replayCase(
  "an interrupted submission stops its copy and leaves the slot idle",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const [slot] = yield* deviceSlots(backend, 1, [60_000])
    const source = yield* hostSlot([60_000])
    yield* fillHost(source, 1)
    const held = yield* submitHeld(backend, 0, slot!.tensor, source)
    yield* Fiber.interrupt(held.fiber)
    yield* expectState("After the interruption", backend, 0, ["idle"])
    yield* held.release
    yield* turns
    yield* expectUntouched("An interrupted copy", slot!)
    const bytes = yield* fillHost(source, 2)
    yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source })
    yield* backend.waitReady(0)
    yield* expectSlot("The next copy", slot!, bytes)
  }),
  allOf(needsHold!, notDeferred!, (_, { supportsAsyncSubmit }) =>
    supportsAsyncSubmit ? "submissions end at once" : undefined
  )
)

const deadlines = replayCase(
  "waits end at their deadline and name the slot",
  Effect.gen(function* () {
    const backend = yield* build(2, Duration.millis(50))
    for (const wait of [backend.waitReady(1), backend.waitCurrentStreamForReady(1)]) {
      const error = yield* expectFailure("Waiting for an idle slot", wait, ["DeadlineExceeded"])
      yield* checkEqual("The slot that the error names", error.reason.slot, 1)
      yield* check(error.reason.detail.includes("slot 1 of"), () => `The error says only: ${error.message}`)
    }
    const { hold } = yield* ReplaySubject
    if (hold === undefined || !(yield* backend.attributes).supportsAsyncSubmit) return
    const [slot] = yield* deviceSlots(backend, 1, [60_000])
    const source = yield* hostSlot([60_000])
    const bytes = yield* fillHost(source, 1)
    const held = yield* submitHeld(backend, 0, slot!.tensor, source)
    yield* expectFailure("Waiting for a held copy", backend.waitReady(0), ["DeadlineExceeded"])
    yield* expectState("After the deadline", backend, 0, ["submitted"])
    yield* held.release
    yield* eventually("The copy", backend.isReady(0))
    yield* expectSlot("The slot", slot!, bytes)
  })
)

const failures = replayCase(
  "a copy that fails is told and does not make the slot ready",
  Effect.gen(function* () {
    const subject = yield* ReplaySubject
    const backend = yield* build(2)
    const [slot] = yield* deviceSlots(backend, 1, [6000])
    const source = yield* hostSlot([6000])
    yield* fillHost(source, 1)
    const submission = { slot: 1, destination: slot!.tensor, source }
    yield* backend.submitH2d(submission)
    yield* backend.waitReady(1)
    yield* subject.failCopy ?? Effect.void
    const submitted = yield* Effect.result(backend.submitH2d(submission))
    const waited = submitted._tag === "Failure" ? submitted : yield* Effect.result(backend.waitReady(1))
    yield* check(
      waited._tag === "Failure" && waited.failure.reason._tag === "DeviceFailure",
      () => "A copy failed, and neither its submission nor the wait said so."
    )
    yield* checkEqual("The state after a failure", yield* backend.slotState(1), "idle")
    yield* expectFailure("Asking after a failure", backend.isReady(1), ["DeviceFailure"])
    yield* expectFailure("Waiting after a failure", backend.waitReady(1), ["DeviceFailure"])
    yield* backend.clearReady(1)
    yield* expectState("After clearReady", backend, 1, ["idle"])
    const bytes = yield* fillHost(source, 3)
    yield* backend.submitH2d(submission)
    yield* backend.waitReady(1)
    yield* expectSlot("The next copy", slot!, bytes)
  }),
  needsHook("failCopy", "the subject cannot make a copy fail")
)

/** Which slots may be written and read when. */
export const replayStateCases: ReadonlyArray<ReplayCase> = [
  sequence,
  clearedReady,
  clearedDuring,
  resubmitted,
  busy,
  recordedBusy,
  interruptedWait,
  interruptedSubmission,
  deadlines,
  failures
]
