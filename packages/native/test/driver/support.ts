// SPDX-License-Identifier: Apache-2.0
/** Tensors and messages of no backend: memory whose bytes are an array of the test. */
import type { Message } from "@tensorferry/core/ir/Message"
import { cpu } from "@tensorferry/core/tensor/Device"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"

let nextAddress = 4096n

export const storageOf = (byteLength: number): Storage => {
  const address = nextAddress
  nextAddress += BigInt(byteLength) + 4096n
  return makeStorage({ device: cpu, address, byteLength, bytes: new Uint8Array(byteLength), release: () => {} })
}

export const bytesAt = (storage: Storage, byteOffset: number, length: number): Tensor =>
  Result.getOrThrow(tensorView(storage, "uint8", [length], { byteOffset }))

export const messageOf = (
  peer: number,
  direction: Message["direction"],
  index: number,
  ...tensors: ReadonlyArray<Tensor>
): Message => ({
  peer,
  direction,
  index,
  parts: tensors.map((tensor, part) => ({ taskId: 10 * index, part, tensor })),
  byteLength: tensors.reduce((sum, { shape }) => sum + shape[0]!, 0)
})
