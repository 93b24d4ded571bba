// SPDX-License-Identifier: Apache-2.0
/**
 * The parts that go one way between two ranks, as the addon takes them, and a digest by which both ends see that they mean the
 * same parts.
 *
 * Invariant: the bytes of a stream are those of its tensors in row-major order, one after the other, so both ends cut it
 * alike whatever their strides.
 */
import { createHash } from "node:crypto"
import { bitsOf, type DType, dtypes } from "@tensorferry/core/base/DType"
import type { Message } from "@tensorferry/core/ir/Message"
import { byteMove, type Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { addressOf, TableWriter } from "../MoveTable.ts"
import { inOrder } from "./MessageChecks.ts"

const dtypeNumbers: ReadonlyMap<DType, number> = new Map(dtypes.map((dtype, index) => [dtype, index]))

/** The messages that go one way between this rank and a peer, in the order of both. */
export const messagesWith = (
  messages: ReadonlyArray<Message>,
  peer: number,
  direction: Message["direction"]
): ReadonlyArray<Message> =>
  inOrder(
    messages.filter((message) => message.peer === peer),
    direction
  )

/** Equal where both ends have the same messages with the same parts, shapes and types; where they lie says nothing. */
export const streamDigest = (messages: ReadonlyArray<Message>): string => {
  const numbers: Array<number> = []
  for (const { index, parts } of messages) {
    numbers.push(index, parts.length)
    for (const { taskId, part, tensor } of parts) {
      numbers.push(taskId, part, dtypeNumbers.get(tensor.dtype)!, tensor.shape.length, ...tensor.shape)
    }
  }
  return createHash("sha256")
    .update(new Uint8Array(Float64Array.from(numbers).buffer))
    .digest("hex")
    .slice(0, 32)
}

/** Per part: dimensions and address, then length and bytes between neighbours of each, the last one being of bytes. */
export const streamTable = (tensors: ReadonlyArray<Tensor>): Result.Result<BigUint64Array, string> => {
  const writer = new TableWriter(6 * tensors.length)
  for (const tensor of tensors) {
    if (tensor.shape.includes(0)) continue
    const bytes = byteMove({ dst: tensor, src: tensor })
    if (Result.isFailure(bytes)) return Result.fail(bytes.failure.detail)
    const { dtype, shape, strides } = bytes.success.src
    const width = bitsOf(dtype) / 8
    writer.reserve(4 + 2 * shape.length)
    writer.put(shape.length + 1)
    writer.put(addressOf(tensor))
    for (const [dim, length] of shape.entries()) {
      writer.put(length)
      writer.put(strides[dim]! * width)
    }
    writer.put(width)
    writer.put(1)
  }
  return Result.succeed(writer.table)
}
