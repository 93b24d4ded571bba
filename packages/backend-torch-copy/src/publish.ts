/**
 * The sender's half of a preparation: says for every peer where the parts lie that it will fetch.
 *
 * Invariant: every storage is listed once per peer, whole; parts refer to it by index.
 */

import type { Message } from "@tensorferry/core/ir/Message"
import { type CopyDriverError, copyDriverError } from "@tensorferry/core/service/CopyDriver"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import * as Result from "effect/Result"
import { backendName, type NativeIdentity } from "./Addon.ts"
import { HostRegion } from "./HostRegion.ts"
import type { PeerList, PublishedFile, PublishedMemory, PublishedProcess } from "./Publication.ts"

const fileOf = (storage: Storage): PublishedFile | undefined => {
  const origin = storage.sharing instanceof HostRegion ? storage.sharing.origin : undefined
  const inode = Number(origin?.inode)
  if (origin === undefined || !Number.isSafeInteger(inode)) return undefined
  return { descriptor: origin.descriptor, inode, byteOffset: origin.byteOffset }
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
export const publishedLists = (messages: ReadonlyArray<Message>): ReadonlyMap<number, PeerList> => {
  const lists = new Map<number, ReturnType<typeof makeList>>()
  for (const { peer, direction, index, parts } of messages) {
    if (direction !== "send") continue
    const list = lists.get(peer) ?? makeList()
    lists.set(peer, list)
    list.messages.push({
      index,
      parts: parts.map(({ taskId, part, tensor }) => ({
        taskId,
        part,
        dtype: tensor.dtype,
        shape: tensor.shape,
        strides: tensor.strides,
        memory: list.indexOf(tensor.storage),
        byteOffset: tensor.byteOffset
      }))
    })
  }
  return lists
}

const makeList = () => {
  const memories: Array<PublishedMemory> = []
  const messages: Array<PeerList["messages"][number]> = []
  const indices = new Map<Storage, number>()
  return {
    memories,
    messages,
    indexOf: (storage: Storage): number => {
      const known = indices.get(storage)
      if (known !== undefined) return known
      indices.set(storage, memories.length)
      return (
        memories.push({ address: Number(storage.address), byteLength: storage.byteLength, file: fileOf(storage) }) - 1
      )
    }
  }
}
