// SPDX-License-Identifier: Apache-2.0
/**
 * Replay copies by streams of copies and events behind them: one call into the addon starts a copy, one asks for it.
 *
 * Invariants: a start never keeps the JS thread waiting; pageable memory that the driver would read first is copied on a
 * thread. Host slots are unregistered only behind the copies that read them, and before their memory goes away.
 */

import { bitsOf, byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, formatShape, isRepresentable } from "@tensorferry/core/base/Region"
import type { ReplayCopy, ReplayDevice } from "@tensorferry/core/service/ReplayDevice"
import type { ReplayTransferError } from "@tensorferry/core/service/ReplayTransferBackend"
import { formatDevice } from "@tensorferry/core/tensor/Device"
import { type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import type { NativePin } from "@tensorferry/gpu/Addon"
import { makeChecks } from "@tensorferry/gpu/checks"
import type { DeviceMemory } from "@tensorferry/gpu/DeviceMemory"
import { DeviceRegion } from "@tensorferry/gpu/DeviceRegion"
import { runJob } from "@tensorferry/native/NativeJob"
import { ViewScan } from "@tensorferry/native/ViewScan"
import * as Effect from "effect/Effect"
import type * as EffectScope from "effect/Scope"
import { replayCopy } from "./ReplayCopy.ts"
import type { ReplayQueue } from "./ReplayQueue.ts"
import { allocationFailure, memoryObjection, refused, replayFailure } from "./replayErrors.ts"

const isDense = (tensor: Tensor): boolean => {
  const scan = new ViewScan()
  scan.read(tensor)
  return scan.elements === 0 || scan.isDense
}

/** A replay device over streams that are open, for device slots of this memory and of engines on the same device. */
export const makeReplayDevice = (queue: ReplayQueue, memory: DeviceMemory): ReplayDevice => {
  const { gpu, native } = queue
  const { addon } = gpu
  const checks = makeChecks(gpu)
  let registered = 0

  const hostObjection = (op: string, slot: number, tensor: Tensor): ReplayTransferError | undefined => {
    if (tensor.storage.isFreed()) return refused("FreedStorage", op, "The storage of the host slot was freed.", slot)
    if (tensor.storage.sharing instanceof DeviceRegion) {
      return refused("DeviceMismatch", op, `A host slot lies on ${formatDevice(tensor.device)}.`, slot)
    }
    const fault = checks.memoryFault(op, tensor)
    if (fault !== undefined) return memoryObjection(op, fault, slot)
    return isDense(tensor)
      ? undefined
      : refused("ShapeMismatch", op, `The host slot ${formatShape(tensor.shape)} is strided.`, slot)
  }

  const pin = (slot: Tensor, index: number): Effect.Effect<NativePin, ReplayTransferError> =>
    Effect.mapError(
      runJob<NativePin>(
        addon,
        (done) => {
          const address = slot.storage.address + BigInt(slot.byteOffset)
          return addon.startRegisterHostSlot(gpu.native, address, tensorByteLength(slot), done)
        },
        () => {}
      ),
      (failure) => replayFailure("registerHostSlots", failure, index, "RegistrationFailed")
    )

  const register = (slot: Tensor, index: number): Effect.Effect<void, ReplayTransferError, EffectScope.Scope> =>
    Effect.suspend(() => {
      const objection = hostObjection("registerHostSlots", index, slot)
      if (objection !== undefined) return Effect.fail(objection)
      if (slot.shape.includes(0)) return Effect.void
      const acquired = Effect.map(pin(slot, index), (held) => {
        let isHeld = true
        registered += 1
        const ended = (): boolean => {
          if (!isHeld) return false
          isHeld = false
          registered -= 1
          return !gpu.isClosed()
        }
        const forget = slot.storage.onRevoke(() => {
          if (ended()) addon.revokePin(native, held)
        })
        return { held, ended, forget }
      })
      const release = ({ held, ended, forget }: Effect.Success<typeof acquired>) =>
        Effect.andThen(
          queue.idle,
          Effect.suspend(() => {
            forget()
            if (!ended()) return Effect.void
            const unpin = runJob<undefined>(
              addon,
              (done) => addon.startUnpinHost(held, done),
              () => {}
            )
            return Effect.ignore(unpin)
          })
        )
      return Effect.asVoid(Effect.acquireRelease(acquired, release))
    })

  const prepare = (slot: number, destination: Tensor, source: Tensor): Effect.Effect<ReplayCopy, ReplayTransferError> =>
    Effect.suspend(() => {
      const op = "submitH2d"
      const region = destination.storage.sharing
      const isHere = region instanceof DeviceRegion && region.family === gpu.vendor && region.ordinal === gpu.ordinal
      if (!isHere) {
        const place = formatDevice(destination.device)
        return Effect.fail(
          refused(
            "DeviceMismatch",
            op,
            `The destination on ${place} is not memory of ${formatDevice(gpu.device)}.`,
            slot
          )
        )
      }
      const objection = hostObjection(op, slot, source)
      if (objection !== undefined) return Effect.fail(objection)
      if (!isDense(destination)) {
        return Effect.fail(
          refused("ShapeMismatch", op, `The device slot ${formatShape(destination.shape)} is strided.`, slot)
        )
      }
      const byteLength = tensorByteLength(source)
      const made = addon.prepareReplayCopy(
        native,
        slot,
        BigInt(region.address + destination.byteOffset),
        byteLength === 0 ? 0n : source.storage.address + BigInt(source.byteOffset),
        byteLength
      )
      return made.code === "Ok"
        ? Effect.succeed(replayCopy(queue, slot, source, made.value))
        : Effect.fail(replayFailure(op, made, slot))
    })

  return {
    attributes: () => ({
      device: gpu.device,
      deviceFamily: gpu.vendor,
      h2dSubmitter: "native_copy_stream",
      hostMemoryKind: "registered_pinned_shared",
      hostPinned: registered > 0,
      directPinnedShared: registered > 0,
      supportsAsyncSubmit: true,
      supportsTimingEvents: queue.way.isTimed
    }),
    register,
    allocate: (shape, dtype) =>
      Effect.suspend(() => {
        if (!isRepresentable(shape, bitsOf(dtype))) {
          return Effect.fail(
            refused("ShapeMismatch", "allocateDeviceSlots", `${dtype}${formatShape(shape)} exceeds 2^53 bits.`)
          )
        }
        return memory.allocate(byteLengthOf(dtype, elementCount(shape))).pipe(
          Effect.mapError(allocationFailure),
          Effect.flatMap((storage) =>
            Effect.mapError(Effect.fromResult(tensorView(storage, dtype, shape)), ({ detail }) =>
              refused("ShapeMismatch", "allocateDeviceSlots", `${detail}.`)
            )
          )
        )
      }),
    prepare
  }
}
