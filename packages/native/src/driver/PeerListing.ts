// SPDX-License-Identifier: Apache-2.0
/**
 * Lists of parts for peers, as a rank publishes them before a transfer.
 *
 * Invariant: every storage is listed once per peer, whole; parts refer to it by its number in that peer's list.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import type { PublishedMessage } from "./PeerList.ts"

/** Values in the order in which their keys were first asked for. */
export interface Numbered<Key, Value> {
  /** By number. */
  readonly values: ReadonlyArray<Value>
  /** The number of a key; a new key gets the next one. */
  readonly numberOf: (key: Key) => number
}

/** Numbers keys from 0 on; `valueOf` makes the value of a new one. */
export const makeNumbered = <Key, Value>(valueOf: (key: Key) => Value): Numbered<Key, Value> => {
  const values: Array<Value> = []
  const numbers = new Map<Key, number>()
  return {
    values,
    numberOf: (key) => {
      const known = numbers.get(key)
      if (known !== undefined) return known
      const value = valueOf(key)
      numbers.set(key, values.length)
      return values.push(value) - 1
    }
  }
}

/** The messages that concern one peer, and the memories that their parts lie in. */
export interface Listed<Memory> {
  readonly memories: ReadonlyArray<Memory>
  readonly messages: ReadonlyArray<PublishedMessage>
}

const listedMessage = (
  { direction, index, parts }: Message,
  memories: Numbered<Storage, unknown>
): PublishedMessage => ({
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

/** What each peer needs to know of messages, by rank. `beginList` says how memory is described in the list of one peer. */
export const listByPeer = <Memory, List>(
  messages: ReadonlyArray<Message>,
  beginList: () => {
    readonly describe: (storage: Storage) => Memory
    readonly finish: (listed: Listed<Memory>) => List
  }
): ReadonlyMap<number, List> => {
  const begin = () => {
    const { describe, finish } = beginList()
    const memories = makeNumbered(describe)
    const listed: Array<PublishedMessage> = []
    return {
      add: (message: Message) => listed.push(listedMessage(message, memories)),
      list: () => finish({ memories: memories.values, messages: listed })
    }
  }
  const lists = new Map<number, ReturnType<typeof begin>>()
  for (const message of messages) {
    const list = lists.get(message.peer) ?? begin()
    lists.set(message.peer, list)
    list.add(message)
  }
  return new Map([...lists].map(([peer, { list }]) => [peer, list()]))
}
