// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of submissions and registrations that must be refused, with nothing changed.
 */

import type { ReplayTransferBackendShape, ReplayTransferReason } from "@tensorferry/core/service/ReplayTransferBackend"
import { equalDevices } from "@tensorferry/core/tensor/Device"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { check, checkEqual, expectFailure } from "./Case.ts"
import { type Placed, viewOf } from "./memory.ts"
import { ReplaySubject } from "./ReplaySubject.ts"
import {
  build,
  deviceSlots,
  expectSlot,
  expectState,
  expectUntouched,
  fillHost,
  hostSlot,
  needsHook,
  type ReplayCase,
  replayCase
} from "./replayCase.ts"

const outOfRange = replayCase(
  "slots out of range are refused by every operation",
  Effect.gen(function* () {
    const backend = yield* build(3)
    const [slot] = yield* deviceSlots(backend, 1, [8])
    const source = yield* hostSlot([8])
    for (const index of [-1, 3, 0.5, Number.NaN, 2 ** 40]) {
      for (const [name, operation] of [
        ["submitH2d", Effect.asVoid(backend.submitH2d({ slot: index, destination: slot!.tensor, source }))],
        ["slotState", Effect.asVoid(backend.slotState(index))],
        ["isReady", Effect.asVoid(backend.isReady(index))],
        ["clearReady", backend.clearReady(index)],
        ["waitReady", backend.waitReady(index)],
        ["waitCurrentStreamForReady", backend.waitCurrentStreamForReady(index)],
        ["copySeconds", Effect.asVoid(backend.copySeconds(index))]
      ] as const) {
        const error = yield* expectFailure(`${name} of slot ${index}`, operation, ["SlotOutOfRange"])
        yield* check(
          error.reason.detail.includes(`${index}`) && error.reason.remedy.length > 0,
          () => `${name} does not name slot ${index}: ${error.message}`
        )
      }
    }
    yield* expectUntouched("The destination", slot!)
  })
)

/** A ready slot that a refused submission must leave alone. */
const makeReady = Effect.fnUntraced(function* (backend: ReplayTransferBackendShape) {
  const [slot] = yield* deviceSlots(backend, 1, [12], "float32")
  const source = yield* hostSlot([12], "float32")
  const bytes = yield* fillHost(source, 1)
  yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source })
  yield* backend.waitReady(0)
  return { slot: slot!, bytes }
})

const refuses = Effect.fnUntraced(function* (
  what: string,
  backend: ReplayTransferBackendShape,
  ready: { readonly slot: Placed; readonly bytes: Uint8Array },
  destination: Tensor,
  source: Tensor,
  reasons: ReadonlyArray<ReplayTransferReason["_tag"]>
) {
  const error = yield* expectFailure(what, backend.submitH2d({ slot: 0, destination, source }), reasons)
  yield* checkEqual(`${what}: the slot that the error names`, error.reason.slot, 0)
  yield* check(
    error.reason.detail.length > 0 && error.reason.remedy.length > 0,
    () => `${what}: the error must say what happened and what to do.`
  )
  yield* expectState(`${what}: the slot`, backend, 0, ["ready"])
  yield* expectSlot(`${what}: the slot`, ready.slot, ready.bytes)
})

const mismatches = replayCase(
  "tensors that do not fit are refused",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const ready = yield* makeReady(backend)
    const [slot] = yield* deviceSlots(backend, 1, [4, 6], "float32")
    const destination = slot!.tensor
    const source = yield* hostSlot([4, 6], "float32")
    yield* fillHost(source, 2)
    for (const shape of [[4, 5], [6, 4], [24], [4, 6, 1], [1, 6], []]) {
      const other = yield* hostSlot(shape, "float32")
      yield* refuses(`[${shape}] into [4,6]`, backend, ready, destination, other, ["ShapeMismatch"])
    }
    for (const dtype of ["int32", "bfloat16", "float64", "uint8"] as const) {
      const other = yield* hostSlot([4, 6], dtype)
      yield* refuses(`${dtype} into float32`, backend, ready, destination, other, ["DTypeMismatch"])
    }
    const wide = yield* hostSlot([4, 12], "float32")
    const columns = { ...wide, shape: [4, 6] }
    yield* refuses("A strided source", backend, ready, destination, columns, ["ShapeMismatch"])
    const turned = { ...destination, strides: [1, 4] }
    yield* refuses("A strided destination", backend, ready, turned, source, ["ShapeMismatch"])
    const shared = { ...destination, strides: [0, 1] }
    yield* refuses("A destination whose rows share memory", backend, ready, shared, source, ["ShapeMismatch"])
    const long = { ...source, byteOffset: source.storage.byteLength - 8 }
    yield* refuses("A source that leaves its storage", backend, ready, destination, long, ["ShapeMismatch"])
    const behind = { ...destination, byteOffset: destination.storage.byteLength }
    yield* refuses("A destination that leaves its storage", backend, ready, behind, source, ["ShapeMismatch"])
    yield* expectUntouched("The destination", slot!)
  })
)

const devices = replayCase(
  "tensors of other devices are refused",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const { device } = yield* backend.attributes
    const ready = yield* makeReady(backend)
    const [slot] = yield* deviceSlots(backend, 1, [12], "float32")
    const source = yield* hostSlot([12], "float32")
    yield* fillHost(source, 2)
    const elsewhere = { family: device.family, index: device.index + 1 }
    const moved = { ...slot!.tensor, device: elsewhere }
    yield* refuses("A destination of another device", backend, ready, moved, source, ["DeviceMismatch"])
    const foreign = { ...source, device: elsewhere }
    yield* refuses("A source of another device", backend, ready, slot!.tensor, foreign, ["DeviceMismatch"])
    const stored = { ...slot!.tensor, storage: { ...slot!.tensor.storage, device: elsewhere } }
    yield* refuses("Storage of another device", backend, ready, stored, source, ["DeviceMismatch"])
    if (!equalDevices(device, source.device)) {
      yield* refuses("A host destination", backend, ready, source, source, ["DeviceMismatch"])
      yield* refuses("A device source", backend, ready, slot!.tensor, slot!.tensor, ["DeviceMismatch"])
      yield* expectFailure("A device slot as host slot", Effect.scoped(backend.registerHostSlots([slot!.tensor])), [
        "DeviceMismatch"
      ])
    }
    const stream = { device: elsewhere, handle: 0n }
    yield* expectFailure("A stream of another device", backend.waitCurrentStreamForReady(0, stream), ["DeviceMismatch"])
    yield* expectUntouched("The destination", slot!)
  })
)

const freed = replayCase(
  "freed storage is refused",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const ready = yield* makeReady(backend)
    const [slot] = yield* deviceSlots(backend, 1, [12], "float32")
    const source = yield* hostSlot([12], "float32")
    yield* fillHost(source, 2)
    const scope = yield* Scope.fork(yield* Scope.Scope)
    const [[gone], lost] = yield* Scope.provide(
      Effect.all([deviceSlots(backend, 1, [12], "float32"), hostSlot([12], "float32")]),
      scope
    )
    // Known to the slot while they live, too: what was prepared must not outlive the memory.
    yield* backend.submitH2d({ slot: 0, destination: gone!.tensor, source: lost })
    yield* backend.waitReady(0)
    yield* Scope.close(scope, Exit.void)
    yield* refuses("A freed source", backend, ready, slot!.tensor, lost, ["FreedStorage"])
    yield* refuses("A freed destination", backend, ready, gone!.tensor, source, ["FreedStorage"])
    yield* refuses("Freed on both sides", backend, ready, gone!.tensor, lost, ["FreedStorage"])
    yield* expectFailure("A freed host slot", Effect.scoped(backend.registerHostSlots([source, lost])), [
      "FreedStorage"
    ])
    yield* expectUntouched("The destination", slot!)
  })
)

const registrations = replayCase(
  "registration is all or nothing",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const { registered } = yield* ReplaySubject
    const attributes = yield* backend.attributes
    const before = registered?.()
    const slots = yield* Effect.forEach([0, 1, 2], () => hostSlot([5000]))
    const scope = yield* Scope.fork(yield* Scope.Scope)
    const lost = yield* Scope.provide(hostSlot([5000]), scope)
    yield* Scope.close(scope, Exit.void)
    const strided = { ...slots[2]!, shape: [2500], strides: [2] }
    const overlapping = yield* viewOf(slots[0]!.storage, "uint8", [100], { byteOffset: 4950 - 100 })
    for (const [what, bad, reasons] of [
      ["A list with freed storage", lost, ["FreedStorage"]],
      ["A list with a strided slot", strided, ["ShapeMismatch"]],
      ["A list that names memory twice", overlapping, ["RegistrationFailed"]]
    ] as const) {
      const list = bad === strided ? [slots[0]!, slots[1]!, strided] : [...slots, bad]
      const error = yield* expectFailure(what, Effect.scoped(backend.registerHostSlots(list)), reasons)
      yield* checkEqual(`${what}: the slot that the error names`, error.reason.slot, list.length - 1)
      yield* checkEqual(`${what}: registered slots`, registered?.(), before)
      yield* checkEqual(`${what}: hostPinned`, (yield* backend.attributes).hostPinned, attributes.hostPinned)
    }
    // Drivers refuse to register memory twice, so this shows that nothing was left, and that scopes undo it.
    for (let round = 0; round < 3; round++) yield* Effect.scoped(backend.registerHostSlots(slots))
    yield* checkEqual("Registered slots in the end", registered?.(), before)
  })
)

const brokenRegistration = replayCase(
  "a registration that fails in the middle leaves nothing",
  Effect.gen(function* () {
    const backend = yield* build(1)
    const { failRegistration, registered } = yield* ReplaySubject
    const before = yield* backend.attributes
    const count = registered?.()
    const slots = yield* Effect.forEach([0, 1, 2], () => hostSlot([5000]))
    for (const nth of [0, 1, 2]) {
      yield* failRegistration?.(nth) ?? Effect.void
      const error = yield* expectFailure(`Slot ${nth} fails`, Effect.scoped(backend.registerHostSlots(slots)), [
        "RegistrationFailed"
      ])
      yield* checkEqual("The slot that the error names", error.reason.slot, nth)
      yield* checkEqual(`Registered slots after slot ${nth} failed`, registered?.(), count)
      yield* checkEqual("hostPinned", (yield* backend.attributes).hostPinned, before.hostPinned)
    }
    // Not even while the caller's scope stays open.
    yield* failRegistration?.(2) ?? Effect.void
    yield* expectFailure("Slot 2 fails", backend.registerHostSlots(slots), ["RegistrationFailed"])
    yield* checkEqual("Registered slots in an open scope", registered?.(), count)
    yield* backend.registerHostSlots(slots)
    if (registered !== undefined) yield* checkEqual("Registered slots", registered(), (count ?? 0) + slots.length)
    const [slot] = yield* deviceSlots(backend, 1, [5000])
    const bytes = yield* fillHost(slots[1]!, 4)
    yield* backend.submitH2d({ slot: 0, destination: slot!.tensor, source: slots[1]! })
    yield* backend.waitReady(0)
    yield* expectSlot("A slot of the list", slot!, bytes)
  }),
  needsHook("failRegistration", "the subject cannot make a registration fail")
)

/** What a replay backend refuses. */
export const replayRefusalCases: ReadonlyArray<ReplayCase> = [
  outOfRange,
  mismatches,
  devices,
  freed,
  registrations,
  brokenRegistration
]
