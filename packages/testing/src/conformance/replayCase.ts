// SPDX-License-Identifier: Apache-2.0
/**
 * What a replay case is, and what most of them do: make slots, submit, hold copies back, look at the bytes.
 */

import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import type { HostMemoryError } from "@tensorferry/core/service/HostMemory"
import type {
  ReplayTransferAttributes,
  ReplayTransferBackendShape,
  ReplayTransferError
} from "@tensorferry/core/service/ReplayTransferBackend"
import type { TensorEngine, TensorError } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { type CaseFailure, check, checkEqual, failed } from "./Case.ts"
import { loadBytes, type Placed, patternBytes, poison, setPoison, viewOf } from "./memory.ts"
import { ReplaySubject, type ReplaySubjectShape } from "./ReplaySubject.ts"

/** How a replay case may fail: by its own judgement, or by an operation that should have worked. */
export type ReplayCaseError = CaseFailure | ReplayTransferError | TensorError | BackendError | HostMemoryError
/** Services that a replay case has; the engine reaches the device slots. */
export type ReplayCaseServices = ReplaySubject | TensorEngine | Scope.Scope

/** One case of the replay kit: a name, and an Effect that fails with what is wrong. */
export interface ReplayCase {
  /** Unique among all cases. */
  readonly name: string
  /** Why the case does not apply; undefined where it does. */
  readonly requires?: (subject: ReplaySubjectShape, attributes: ReplayTransferAttributes) => string | undefined
  /** Fails where the contract is broken. */
  readonly program: Effect.Effect<void, ReplayCaseError, ReplayCaseServices>
}

/** Makes a case. */
export const replayCase = (
  name: string,
  program: Effect.Effect<void, ReplayCaseError, ReplayCaseServices>,
  requires?: ReplayCase["requires"]
): ReplayCase => ({ name, program: Effect.scoped(program), ...(requires === undefined ? {} : { requires }) })

/** The subject has the hook; otherwise its own reason, or this one. */
export const needsHook =
  (hook: "hold" | "streams" | "failRegistration" | "failCopy", otherwise: string): ReplayCase["requires"] =>
  (subject) =>
    subject[hook] === undefined ? (subject.lacks?.[hook] ?? otherwise) : undefined

/** Skips the case where the subject has no hook `hold`. */
export const needsHold = needsHook("hold", "the subject cannot hold copies back")

/** All of them must hold. */
export const allOf =
  (...requirements: ReadonlyArray<NonNullable<ReplayCase["requires"]>>): NonNullable<ReplayCase["requires"]> =>
  (subject, attributes) => {
    for (const requirement of requirements) {
      const lacking = requirement(subject, attributes)
      if (lacking !== undefined) return lacking
    }
    return undefined
  }

/** True where a submission is only recorded, and the wait of a consumer makes the copy. */
export const isDeferred = ({ h2dSubmitter }: ReplayTransferAttributes): boolean =>
  h2dSubmitter === "torch_copy_deferred"

/** Skips the case where submissions are not deferred. */
export const needsDeferred: ReplayCase["requires"] = ({ lacks }, attributes) =>
  isDeferred(attributes) ? undefined : (lacks?.deferred ?? "submissions are not deferred")

/** Bytes before and after a device slot that nobody may write. */
const guardBytes = 64

/** A backend of the subject. */
export const build = Effect.fnUntraced(function* (ringDepth: number, deadline?: Duration.Duration) {
  const subject = yield* ReplaySubject
  return yield* subject.build({ ringDepth, ...(deadline === undefined ? {} : { deadline }) })
})

/** Dense device slots in the middle of poison. */
export const deviceSlots = Effect.fnUntraced(function* (
  backend: ReplayTransferBackendShape,
  count: number,
  shape: Shape,
  dtype: DType = "uint8"
) {
  const length = byteLengthOf(dtype, elementCount(shape))
  const wholes = yield* backend.allocateDeviceSlots({ count, shape: [length + 2 * guardBytes], dtype: "uint8" })
  return yield* Effect.forEach(
    wholes,
    Effect.fnUntraced(function* (whole) {
      const placed: Placed = {
        tensor: yield* viewOf(whole.storage, dtype, shape, { byteOffset: whole.byteOffset + guardBytes }),
        whole
      }
      yield* setPoison(placed)
      return placed
    })
  )
})

/** Bytes into storage; named, because a declaration of an unnamed default would show `any`. */
type Offset = number

/** A dense host tensor, `byteOffset` bytes into memory of its own. */
export const hostSlot = Effect.fnUntraced(function* (shape: Shape, dtype: DType = "uint8", byteOffset: Offset = 0) {
  const subject = yield* ReplaySubject
  const storage = yield* subject.allocateHost(byteOffset + byteLengthOf(dtype, elementCount(shape)))
  return yield* viewOf(storage, dtype, shape, { byteOffset })
})

const blockBytes = 65_521

/** Bytes that differ between seeds, neighbours and blocks; made fast, since batches are large. */
const patternOf = (length: number, seed: number): Uint8Array => {
  const block = patternBytes(Math.min(length, blockBytes), seed)
  if (length <= blockBytes) return block
  const bytes = new Uint8Array(length)
  for (let at = 0; at < length; at += blockBytes) {
    bytes.set(block.subarray(0, length - at), at)
    bytes[at] = (at / blockBytes + seed) & 0xff
  }
  return bytes
}

/** The slot holds these bytes, and every other byte of its storage is still poison. */
export const expectSlot = Effect.fnUntraced(function* (what: string, { tensor, whole }: Placed, bytes: Uint8Array) {
  const actual = yield* loadBytes(whole)
  const expected = new Uint8Array(actual.byteLength).fill(poison)
  expected.set(bytes, tensor.byteOffset)
  if (Buffer.compare(actual, expected) === 0) return
  const at = actual.findIndex((byte, position) => byte !== expected[position])
  return yield* failed(
    `${what}: byte ${at - tensor.byteOffset} of ${bytes.byteLength} is ${actual[at]} instead of ${expected[at]}.`
  )
})

/** Nothing was written into the slot or around it. */
export const expectUntouched = (what: string, placed: Placed) => expectSlot(what, placed, new Uint8Array(0))

/** Writes the pattern of a seed into a host tensor; answers the bytes. */
export const fillHost = (tensor: Tensor, seed: number): Effect.Effect<Uint8Array> =>
  Effect.sync(() => {
    const bytes = patternOf(tensorByteLength(tensor), seed)
    tensor.storage.bytes!.set(bytes, tensor.byteOffset)
    return bytes
  })

/** Everything that can go on has gone on a little. */
export const turns: Effect.Effect<void> = Effect.repeat(
  Effect.callback<void>((resume) => {
    const handle = setImmediate(() => resume(Effect.void))
    return Effect.sync(() => clearImmediate(handle))
  }),
  { times: 5 }
).pipe(Effect.asVoid)

/** Waits until something holds, for 20 seconds. */
export const eventually = <E, R>(
  what: string,
  condition: Effect.Effect<boolean, E, R>
): Effect.Effect<void, E | CaseFailure, R> =>
  Effect.gen(function* () {
    while (!(yield* condition)) yield* Effect.sleep(1)
  }).pipe(Effect.timeoutOrElse({ duration: "20 seconds", orElse: () => failed(`${what} did not happen in 20 s.`) }))

/** A copy that cannot end before `release`. */
export interface HeldCopy {
  /** Lets the copy go on. */
  readonly release: Effect.Effect<void>
  /** Whoever makes the copy: the submission itself, or the wait of a consumer. */
  readonly fiber: Fiber.Fiber<unknown, ReplayTransferError>
}

/**
 * Submits while copies are held. Where submissions are deferred a consumer waits, so that the copy is under way all the
 * same.
 */
export const submitHeld = Effect.fnUntraced(function* (
  backend: ReplayTransferBackendShape,
  slot: number,
  destination: Tensor,
  source: Tensor
) {
  const subject = yield* ReplaySubject
  const scope = yield* Scope.fork(yield* Scope.Scope)
  yield* Scope.provide(subject.hold ?? Effect.void, scope)
  const submission = backend.submitH2d({ slot, destination, source })
  const work = isDeferred(yield* backend.attributes) ? Effect.andThen(submission, backend.waitReady(slot)) : submission
  const fiber = yield* Effect.forkScoped(work, { startImmediately: true })
  yield* turns
  const held: HeldCopy = { release: Scope.close(scope, Exit.void), fiber }
  return held
})

/** What a fiber has come to: nothing yet, success, or the tag of its reason. */
export const outcomeOf = (fiber: Fiber.Fiber<unknown, ReplayTransferError>): string => {
  const exit = fiber.pollUnsafe()
  if (exit === undefined) return "nothing yet"
  if (Exit.isSuccess(exit)) return "success"
  const [reason] = exit.cause.reasons
  return reason?._tag === "Fail" ? reason.error.reason._tag : (reason?._tag ?? "failure")
}

/** Fails the case unless the slot is in one of these states, and `isReady` says the same. */
export const expectState = Effect.fnUntraced(function* (
  what: string,
  backend: ReplayTransferBackendShape,
  slot: number,
  expected: ReadonlyArray<string>
) {
  const state = yield* backend.slotState(slot)
  const isReady = yield* backend.isReady(slot)
  yield* check(expected.includes(state), () => `${what}: slot ${slot} is ${state} instead of ${expected.join(" or ")}.`)
  // A copy may end between the two questions.
  const agrees = isReady === (state === "ready") || expected.includes("ready")
  yield* check(agrees, () => `${what}: slot ${slot} is ${state}, and isReady says ${isReady}.`)
})

/** Fails the case unless nothing of a held copy shows; the fiber waits for it. */
export const expectHeld = Effect.fnUntraced(function* (
  what: string,
  backend: ReplayTransferBackendShape,
  placed: Placed
) {
  const waiter = yield* Effect.forkScoped(backend.waitReady(0), { startImmediately: true })
  yield* turns
  yield* expectState(what, backend, 0, ["submitted", "deferred"])
  yield* checkEqual(`${what}: a wait for it`, outcomeOf(waiter), "nothing yet")
  yield* expectUntouched(what, placed)
  return waiter
})

/** Closes the scope that holds the slot while a copy into it is held: that must wait for the copy. */
export const expectCloseWaits = Effect.fnUntraced(function* (
  scope: Scope.Closeable,
  { whole }: Placed,
  release: Effect.Effect<void>
) {
  const closing = yield* Effect.forkScoped(Scope.close(scope, Exit.void), { startImmediately: true })
  yield* turns
  const isThere = closing.pollUnsafe() === undefined && !whole.storage.isFreed()
  yield* check(isThere, () => "The scope of a device slot was closed while a copy into it was under way.")
  yield* release
  yield* eventually(
    "Closing",
    Effect.sync(() => closing.pollUnsafe() !== undefined)
  )
})
