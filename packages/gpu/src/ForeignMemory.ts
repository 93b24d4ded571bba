// SPDX-License-Identifier: Apache-2.0
/**
 * Device memory that this package did not allocate: of somebody else in this process, or of another process.
 *
 * Invariants: it is never freed here. An allocation has one block as long as anything of this process lies in it; once
 * nothing does, whatever comes to lie at its address is another block.
 */
import type { TensorError } from "@tensorferry/core/service/TensorEngine"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { describeFailure } from "@tensorferry/native/describeFailure"
import * as Result from "effect/Result"
import type { ExportedMemory } from "./Addon.ts"
import { type Block, nextBlockNumber, type Sharing } from "./Block.ts"
import { DeviceRegion } from "./DeviceRegion.ts"
import { refusal, tensorFailure } from "./failures.ts"
import type { Gpu } from "./Gpu.ts"

/** An allocation of somebody else, and how many storages lie in it. */
interface BorrowedBlock {
  readonly block: Block
  users: number
}

/** Wraps memory by its address (`wrap`) or by the handle that another process exported (`open`). */
export const makeForeignMemory = (gpu: Gpu) => {
  const { addon, native, device } = gpu
  /** Blocks of others by the start of their allocation, while anything lies in them. */
  const foreign = new Map<bigint, BorrowedBlock>()

  /** A block that is not ours to free; empty when its last user left. */
  const borrow = (
    address: bigint,
    byteLength: number,
    exported: Result.Result<ExportedMemory, string>
  ): BorrowedBlock => {
    const borrowed: BorrowedBlock = {
      block: {
        number: nextBlockNumber(),
        address: Number(address),
        byteLength,
        sharings: new Set<Sharing>(),
        exported: () => exported,
        isEmpty: () => borrowed.users === 0,
        isSpare: () => false,
        retire: () => {},
        reclaim: () => {}
      },
      users: 0
    }
    return borrowed
  }

  const foreignBlock = (address: bigint, byteLength: number): { readonly block: Block; readonly leave: () => void } => {
    const asked = addon.exportMemory(native, address)
    const exported = asked.code === "Ok" ? Result.succeed(asked.value) : Result.fail(describeFailure(asked))
    const base = asked.code === "Ok" ? asked.value.base : undefined
    const known = base === undefined ? undefined : foreign.get(base)
    const borrowed =
      known ??
      (asked.code === "Ok"
        ? borrow(asked.value.base, asked.value.byteLength, exported)
        : borrow(address, byteLength, exported))
    borrowed.users += 1
    if (base !== undefined) foreign.set(base, borrowed)
    return {
      block: borrowed.block,
      leave: () => {
        borrowed.users -= 1
        // The owner may free the memory now; what comes to lie there later is another block.
        if (borrowed.users === 0 && base !== undefined) foreign.delete(base)
      }
    }
  }

  const wrap = (address: bigint, byteLength: number): Result.Result<Storage, TensorError> => {
    const op = "foreign storage"
    const isNumber = address >= 0n && address + BigInt(Math.max(0, byteLength)) <= BigInt(Number.MAX_SAFE_INTEGER)
    if (!Number.isSafeInteger(byteLength) || byteLength < 0 || !isNumber) {
      return Result.fail(
        refusal("InvalidRequest", op, `${byteLength} bytes at ${address} are not a valid range of memory.`)
      )
    }
    const on = addon.deviceOfAddress(native, address)
    if (on.code !== "Ok") return Result.fail(tensorFailure(op, on))
    const { block, leave } = foreignBlock(address, byteLength)
    const end = address + BigInt(byteLength)
    if (end > BigInt(block.address) + BigInt(block.byteLength)) {
      leave()
      return Result.fail(refusal("InvalidRequest", op, `${byteLength} bytes at ${address} leave their allocation.`))
    }
    return Result.succeed(
      makeStorage({
        device: { family: gpu.vendor, index: on.value },
        address,
        byteLength,
        sharing: new DeviceRegion(address, gpu.vendor, on.value, block),
        release: leave
      })
    )
  }

  const open = (handle: Uint8Array, byteOffset: number, byteLength: number) => {
    const op = "import storage"
    const isPiece = [byteOffset, byteLength, byteOffset + byteLength].every((n) => Number.isSafeInteger(n) && n >= 0)
    if (!isPiece) {
      return Result.fail(
        refusal("InvalidRequest", op, `${byteLength} bytes at ${byteOffset} are not a valid range of memory.`)
      )
    }
    const opened = addon.importMemory(native, handle)
    if (opened.code !== "Ok") return Result.fail(tensorFailure(op, opened))
    const { mapping } = opened.value
    const address = opened.value.address + BigInt(byteOffset)
    const borrowed = borrow(
      address,
      byteLength,
      Result.fail("memory of another process cannot be passed on to a third one")
    )
    borrowed.users = 1
    return Result.succeed(
      makeStorage({
        device,
        address,
        byteLength,
        sharing: new DeviceRegion(address, gpu.vendor, gpu.ordinal, borrowed.block),
        release: () => {
          borrowed.users = 0
          gpu.whenDone(() => {
            if (!gpu.isClosed()) addon.closeImport(mapping)
          })
        }
      })
    )
  }

  return { wrap, open }
}
