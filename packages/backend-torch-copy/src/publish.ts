/**
 * The sender's half of a preparation: says for every peer where the parts lie that it will fetch.
 *
 * Invariant: every storage is listed once per peer, whole; parts refer to it by index.
 */

import type { Message } from "@tensorferry/core/ir/Message"
import { type CopyDriverError, copyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { HostMemoryHandle } from "@tensorferry/core/service/HostMemory"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import * as Result from "effect/Result"
import { backendName, type NativeIdentity } from "./Addon.ts"
import { HostRegion } from "./HostRegion.ts"
import type { PeerList, PublishedMemory, PublishedProcess } from "./Publication.ts"

const handleOf = (identity: NativeIdentity, storage: Storage): HostMemoryHandle | null => {
  const origin = storage.sharing instanceof HostRegion ? storage.sharing.origin : undefined
  if (origin === undefined) return null
  return {
    version: 1,
    pid: identity.pid,
    processStart: String(identity.processStart),
    descriptor: origin.descriptor,
    inode: String(origin.inode),
    byteOffset: origin.byteOffset,
    byteLength: storage.byteLength,
    generation: storage.generation
  }
}

/** Fails with InvalidProgram, naming the task, for memory that was freed or is not on the host. */
export const checkMessage = (
  rank: number,
  worldSize: number,
  message: Message
): Result.Result<void, CopyDriverError> => {
  const fail = (detail: string, taskId?: number) =>
    Result.fail(
      copyDriverError("InvalidProgram", {
        backend: backendName,
        rank,
        peer: message.peer,
        op: "prepare",
        detail,
        remedy: "Keep the storage open until the transfer is done, on the host, and name ranks of the group.",
        ...(taskId === undefined ? {} : { taskId })
      })
    )
  if (message.peer < 0 || message.peer >= worldSize || message.peer === rank) {
    return fail(`Rank ${message.peer} is not another rank of a group of ${worldSize}.`)
  }
  for (const { taskId, tensor } of message.parts) {
    if (tensor.storage.isFreed()) return fail("The storage of a part was freed.", taskId)
    if (tensor.device.family !== "cpu") return fail("A part does not lie in host memory.", taskId)
  }
  return Result.succeed(undefined)
}

export const publishedProcess = (identity: NativeIdentity): PublishedProcess => ({
  pid: identity.pid,
  processStart: String(identity.processStart),
  space: identity.space,
  cookieAddress: String(identity.cookieAddress),
  cookie: Buffer.from(identity.cookie).toString("hex")
})

/** What each peer needs to know, by rank. */
export const publishedLists = (
  identity: NativeIdentity,
  messages: ReadonlyArray<Message>
): Record<string, PeerList> => {
  const lists: Record<string, { memories: Array<PublishedMemory>; messages: Array<PeerList["messages"][number]> }> = {}
  const indices = new Map<string, number>()
  for (const message of messages) {
    if (message.direction !== "send") continue
    lists[message.peer] ??= { memories: [], messages: [] }
    const list = lists[message.peer]!
    const indexOf = (storage: Storage): number => {
      const key = `${message.peer}:${storage.generation}`
      const known = indices.get(key)
      if (known !== undefined) return known
      list.memories.push({
        address: Number(storage.address),
        byteLength: storage.byteLength,
        handle: handleOf(identity, storage)
      })
      indices.set(key, list.memories.length - 1)
      return list.memories.length - 1
    }
    const parts = message.parts.map(({ taskId, part, tensor }) => ({
      taskId,
      part,
      dtype: tensor.dtype,
      shape: tensor.shape,
      strides: tensor.strides,
      memory: indexOf(tensor.storage),
      byteOffset: tensor.byteOffset
    }))
    list.messages.push({ index: message.index, parts })
  }
  return lists
}
