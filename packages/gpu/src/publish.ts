/**
 * This rank's half of a publication: says for every peer where the parts lie that go to it and come from it.
 *
 * Invariant: every storage is listed once per peer, whole, with the block it lies in; what is listed with a block counts as
 * known to peers from then on.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import { formatDevice } from "@tensorferry/core/tensor/Device"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import type { PeerList, PublishedBlock, PublishedMemory, PublishedMessage } from "@tensorferry/native/driver/PeerList"
import * as Result from "effect/Result"
import type { Block } from "./Block.ts"
import { DeviceRegion } from "./DeviceRegion.ts"
import type { Gpu } from "./Gpu.ts"
import type { Sharing } from "./Sharing.ts"

/** Fails with InvalidProgram, naming the task, for memory that was freed or is of other devices than this driver's. */
export const checkMessage = (
  errors: DriverErrors,
  gpu: Gpu,
  rank: number,
  worldSize: number,
  { peer, parts }: Message
): Checked<void> => {
  const family = gpu.vendor
  const fail = (detail: string, taskId?: number) =>
    Result.fail(errors.fail("InvalidProgram", detail, { peer, taskId, op: "prepare", scope: "op" }))
  if (!Number.isInteger(peer) || peer < 0 || peer >= worldSize || peer === rank) {
    return fail(`Rank ${peer} is not another rank of a group of ${worldSize}.`)
  }
  for (const { taskId, tensor } of parts) {
    if (tensor.storage.isFreed()) return fail("The storage of a part was freed.", taskId)
    const region = tensor.storage.sharing
    if (!(region instanceof DeviceRegion) || region.family !== family || tensor.device.family !== family) {
      return fail(`A part on ${formatDevice(tensor.device)} is not memory of this backend's ${family} engine.`, taskId)
    }
    const reached = gpu.reachPeer(region.ordinal)
    if (Result.isFailure(reached)) return fail(`A part cannot be reached: ${reached.failure}.`, taskId)
  }
  return Result.succeed(undefined)
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

/** Storages and blocks by the number under which a list has them. */
const makeNumbered = <Key, Value>(valueOf: (key: Key) => Value) => {
  const values: Array<Value> = []
  const numbers = new Map<Key, number>()
  return {
    values,
    numberOf: (key: Key): number => {
      const known = numbers.get(key)
      if (known !== undefined) return known
      const value = valueOf(key)
      numbers.set(key, values.length)
      return values.push(value) - 1
    }
  }
}

const makeList = (sharing: Sharing | undefined) => {
  const messages: Array<PublishedMessage> = []
  const blocks = makeNumbered((block: Block): PublishedBlock => {
    sharing?.share(block)
    return published(block)
  })
  const memories = makeNumbered((storage: Storage): PublishedMemory => {
    const region = storage.sharing as DeviceRegion
    return {
      address: region.address,
      byteLength: storage.byteLength,
      ordinal: region.ordinal,
      block: sharing === undefined ? 0 : blocks.numberOf(region.block)
    }
  })
  return {
    add: ({ direction, index, parts }: Message): void => {
      messages.push({
        direction,
        index,
        parts: parts.map(({ taskId, part, tensor }) => ({
          taskId,
          part,
          dtype: tensor.dtype,
          shape: tensor.shape,
          strides: tensor.strides,
          memory: memories.numberOf(tensor.storage),
          byteOffset: tensor.byteOffset
        }))
      })
    },
    list: { blocks: blocks.values, memories: memories.values, messages } satisfies PeerList
  }
}

/** What each peer needs to know, by rank. Without `sharing`, nothing is told by which memory could be opened. */
export const publishedLists = (
  messages: ReadonlyArray<Message>,
  sharing: Sharing | undefined
): ReadonlyMap<number, PeerList> => {
  const lists = new Map<number, ReturnType<typeof makeList>>()
  for (const message of messages) {
    const list = lists.get(message.peer) ?? makeList(sharing)
    lists.set(message.peer, list)
    list.add(message)
  }
  return new Map([...lists].map(([peer, { list }]) => [peer, list]))
}
