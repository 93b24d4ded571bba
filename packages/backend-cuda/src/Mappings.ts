// SPDX-License-Identifier: Apache-2.0
/**
 * Memory of other ranks as this process sees it, by process and block; shared by all programs of a driver.
 *
 * Invariants: a block is opened once and closed once, when its owner revokes it or the driver closes, and after what runs
 * then. A closed mapping never opens again: who still holds it must ask for a new one.
 */

import type { Gpu } from "@tensorferry/gpu/Gpu"
import { describeFailure } from "@tensorferry/native/describeFailure"
import type { PublishedBlock } from "@tensorferry/native/driver/PeerList"
import { type ProcessIdentity, processKey } from "@tensorferry/native/driver/ProcessIdentity"
import * as Result from "effect/Result"

export interface Mapping {
  /** Where the block's first byte is here. */
  readonly address: number
  readonly isOpen: () => boolean
}

interface Held extends Mapping {
  readonly close: () => void
}

export const makeMappings = (gpu: Gpu) => {
  const held = new Map<string, Held>()

  const hold = (key: string, address: number, release: () => void): Mapping => {
    let isOpen = true
    const mapping: Held = {
      address,
      isOpen: () => isOpen,
      close: () => {
        isOpen = false
        held.delete(key)
        gpu.whenDone(release)
      }
    }
    held.set(key, mapping)
    return mapping
  }

  const keyOf = (owner: ProcessIdentity, number: number): string => `${processKey(owner)} ${number}`

  return {
    /** The block of another process. Fails in words. */
    open: (owner: ProcessIdentity, block: PublishedBlock): Result.Result<Mapping, string> => {
      const key = keyOf(owner, block.number)
      const known = held.get(key)
      if (known !== undefined) return Result.succeed(known)
      if (block.handle === "") return Result.fail(block.problem)
      const opened = gpu.addon.importMemory(gpu.native, Uint8Array.from(Buffer.from(block.handle, "hex")))
      if (opened.code !== "Ok") return Result.fail(describeFailure(opened))
      const { mapping, address } = opened.value
      return Result.succeed(
        hold(key, Number(address), () => {
          if (!gpu.isClosed()) gpu.addon.closeImport(mapping)
        })
      )
    },
    /** The block of another rank of this process, which is there already. */
    within: (owner: ProcessIdentity, block: PublishedBlock): Mapping => {
      const key = keyOf(owner, block.number)
      return held.get(key) ?? hold(key, block.address, () => {})
    },
    /** Lets go of blocks; numbers that are not held do nothing. */
    revoke: (owner: ProcessIdentity, numbers: ReadonlyArray<number>): void => {
      for (const number of numbers) held.get(keyOf(owner, number))?.close()
    },
    closeAll: (): void => {
      for (const mapping of [...held.values()]) mapping.close()
    }
  }
}

export type Mappings = ReturnType<typeof makeMappings>
