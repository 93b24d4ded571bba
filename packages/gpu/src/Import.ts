// SPDX-License-Identifier: Apache-2.0
/**
 * Device memory that other processes share, as frameworks do with their tensors: a handle of the allocation, where in it the
 * memory lies, and an event behind which its contents are complete.
 *
 * Invariants: an allocation is mapped once, however many pieces of it are in use, and let go with the last of them, behind
 * what runs then. Peers of a copy driver get the owner's own handle, since a mapping cannot be shared on; they reach the
 * memory as this process does.
 */

import type { TensorEngineShape, TensorError } from "@tensorferry/core/service/TensorEngine"
import { tensorError } from "@tensorferry/core/service/TensorEngine"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { describeFailure } from "@tensorferry/native/describeFailure"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { packageName } from "./Addon.ts"
import { type Block, nextBlockNumber } from "./Block.ts"
import { DeviceRegion } from "./DeviceRegion.ts"
import { refusal, tensorFailure } from "./failures.ts"
import type { Gpu } from "./Gpu.ts"
import { deviceOf } from "./TensorEngine.ts"

/** What the owner of device memory says about it, so that this process can open it. */
export interface ImportRequest {
  /** The 64 bytes that the owner's driver made for the allocation. */
  readonly handle: Uint8Array
  /** Where the memory begins in the allocation. */
  readonly byteOffset: number
  readonly byteLength: number
  /** The 64 bytes of an event behind the owner's work on the memory. */
  readonly event?: Uint8Array
  /** How long that work may take; 60 seconds by default. */
  readonly deadline?: Duration.Input
}

/** Opens memory that other processes share, on one device. */
export interface MemoryImport {
  /**
   * Waits for the event and answers the memory, which is let go with the scope. The scope's end waits until an allocation
   * that nothing else uses is unmapped, so that the owner may free it then; so does a refusal.
   */
  readonly open: (request: ImportRequest) => Effect.Effect<Storage, TensorError, Scope.Scope>
  /** Allocations that are mapped at present. */
  readonly mapped: () => number
}

/** An allocation that is mapped here. */
interface Mapped {
  readonly block: Block
  /** One piece less; the last one closes the mapping. */
  readonly leave: () => void
  users: number
}

const op = "import memory"

/** Where a driver does not say how far a mapping reaches, what owners state has to be believed. */
const unknownBytes = 2 ** 47

const refused = (failure: NativeFailure): TensorError =>
  failure.code === "InvalidArgument" || failure.code === "DeadlineExceeded"
    ? tensorError("InvalidRequest", {
        backend: packageName,
        op,
        detail: describeFailure(failure),
        remedy: "Share the memory again, keep it alive while it is in use, and let both processes use one device."
      })
    : tensorFailure(op, failure)

const ofGpu = (gpu: Gpu): MemoryImport => {
  const { addon, native } = gpu
  /** By handle, in hexadecimal digits. */
  const allocations = new Map<string, Mapped>()

  const map = (key: string, handle: Uint8Array): Result.Result<Mapped, TensorError> => {
    const opened = addon.importMemory(native, handle)
    if (opened.code !== "Ok") return Result.fail(refused(opened))
    const { mapping, address } = opened.value
    const known = addon.mappedBytes(mapping)
    const byteLength = known.code === "Ok" ? known.value : unknownBytes
    const mapped: Mapped = {
      users: 0,
      block: {
        number: nextBlockNumber(),
        address: Number(address),
        byteLength,
        sharings: new Set(),
        exported: () => Result.succeed({ handle, base: address, byteLength }),
        isEmpty: () => mapped.users === 0,
        isSpare: () => false,
        retire: () => {},
        reclaim: () => {}
      },
      leave: () => {
        mapped.users -= 1
        if (mapped.users > 0) return
        if (allocations.get(key) === mapped) allocations.delete(key)
        gpu.whenDone(() => {
          if (!gpu.isClosed()) addon.closeImport(mapping)
        })
      }
    }
    return Result.succeed(mapped)
  }

  const take = (request: ImportRequest): Result.Result<Storage, TensorError> => {
    const { byteOffset, byteLength } = request
    const end = byteOffset + byteLength
    if (![byteOffset, byteLength, end].every((value) => Number.isSafeInteger(value) && value >= 0)) {
      return Result.fail(
        refusal("InvalidRequest", op, `${byteLength} bytes at ${byteOffset} are not a valid range of memory.`)
      )
    }
    const key = Buffer.from(request.handle).toString("hex")
    const known = allocations.get(key)
    const mapped = known === undefined ? map(key, request.handle.slice()) : Result.succeed(known)
    if (Result.isFailure(mapped)) return Result.fail(mapped.failure)
    const { block, leave } = mapped.success
    mapped.success.users += 1
    if (end > block.byteLength) {
      leave()
      return Result.fail(
        refusal(
          "InvalidRequest",
          op,
          `${byteLength} bytes at ${byteOffset} leave an allocation of ${block.byteLength} bytes.`
        )
      )
    }
    allocations.set(key, mapped.success)
    const address = BigInt(block.address) + BigInt(byteOffset)
    return Result.succeed(
      makeStorage({
        device: gpu.device,
        address,
        byteLength,
        sharing: new DeviceRegion(address, gpu.vendor, gpu.ordinal, block),
        release: leave
      })
    )
  }

  const awaitEvent = (event: Uint8Array, deadline: Duration.Input): Effect.Effect<void, TensorError> => {
    const milliseconds = Math.ceil(Duration.toMillis(Duration.fromInputUnsafe(deadline)))
    return Effect.mapError(
      gpu.run<undefined>((done) => addon.startAwaitEvent(native, event, milliseconds, done)),
      refused
    )
  }

  /** A device that does not answer is not waited for. */
  const closed = Effect.callback<void>((resume) => gpu.whenDone(() => resume(Effect.void))).pipe(
    Effect.andThen(Effect.ignore(gpu.run<undefined>((done) => addon.startAwaitReleases(native, done)))),
    Effect.timeoutOption("5 seconds")
  )

  const letGo = (storage: Storage): Effect.Effect<unknown> =>
    Effect.suspend(() => {
      const before = allocations.size
      storage.free()
      return allocations.size < before ? closed : Effect.void
    })

  return {
    open: (request) =>
      Effect.andThen(
        request.event === undefined ? Effect.void : awaitEvent(request.event, request.deadline ?? "60 seconds"),
        Effect.acquireRelease(
          Effect.tapError(
            Effect.suspend(() => Effect.fromResult(take(request))),
            () => closed
          ),
          letGo
        )
      ),
    mapped: () => allocations.size
  }
}

/** For memory of the device that an engine of this package works on; none for other engines. */
export const makeMemoryImport = (engine: TensorEngineShape): Option.Option<MemoryImport> =>
  Option.map(Option.fromUndefinedOr(deviceOf(engine)), ({ gpu }) => ofGpu(gpu))
