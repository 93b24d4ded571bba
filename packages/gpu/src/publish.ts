// SPDX-License-Identifier: Apache-2.0
/**
 * This rank's half of a publication: says for every peer where the parts lie that go to it and come from it.
 *
 * Invariant: every storage is listed once per peer, whole, with the block it lies in; what is listed with a block counts as
 * known to peers from then on.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import { formatDevice } from "@tensorferry/core/tensor/Device"
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import { checkMessages } from "@tensorferry/native/driver/MessageChecks"
import type { PeerList, PublishedBlock, PublishedMemory } from "@tensorferry/native/driver/PeerList"
import { listByPeer, makeNumbered } from "@tensorferry/native/driver/PeerListing"
import * as Result from "effect/Result"
import type { Block, Sharing } from "./Block.ts"
import { DeviceRegion } from "./DeviceRegion.ts"
import type { Gpu } from "./Gpu.ts"

/** Fails with InvalidProgram, naming the task, for memory that was freed or is of other devices than this driver's. */
export const checkDeviceMessages = (
  errors: DriverErrors,
  gpu: Gpu,
  worldSize: number,
  messages: ReadonlyArray<Message>
): Checked<void> => {
  const family = gpu.vendor
  return checkMessages(messages, {
    errors,
    worldSize,
    partFault: ({ storage, device }) => {
      const region = storage.sharing
      if (!(region instanceof DeviceRegion) || region.family !== family || device.family !== family) {
        return `A part on ${formatDevice(device)} is not memory of this backend's ${family} engine.`
      }
      const access = gpu.enablePeerAccess(region.ordinal)
      return Result.isFailure(access) ? `A part cannot be reached: ${access.failure}.` : undefined
    }
  })
}

const published = (block: Block): PublishedBlock => {
  const exported = block.exported()
  if (Result.isFailure(exported)) {
    const { number, address, byteLength } = block
    return { number, address, byteLength, handle: "", problem: exported.failure }
  }
  const { handle, base, byteLength } = exported.success
  return {
    number: block.number,
    address: Number(base),
    byteLength,
    handle: Buffer.from(handle).toString("hex"),
    problem: ""
  }
}

/** What each peer needs to know, by rank. Without `sharing`, lists do not say by which memory could be opened. */
export const publishedLists = (
  messages: ReadonlyArray<Message>,
  sharing: Sharing | undefined
): ReadonlyMap<number, PeerList> =>
  listByPeer(messages, () => {
    const blocks = makeNumbered((block: Block): PublishedBlock => {
      sharing?.share(block)
      return published(block)
    })
    return {
      describe: (storage): PublishedMemory => {
        const region = storage.sharing as DeviceRegion
        return {
          address: region.address,
          byteLength: storage.byteLength,
          ordinal: region.ordinal,
          block: sharing === undefined ? 0 : blocks.numberOf(region.block)
        }
      },
      finish: (listed): PeerList => ({ blocks: blocks.values, ...listed })
    }
  })
