// SPDX-License-Identifier: Apache-2.0
/**
 * What goes from one rank to another in one preparation, as both ends know it: every part of this rank beside the peer's.
 *
 * Invariant: a flow exists only where both ends list the same messages, parts, shapes and types; parts of no elements are
 * left out.
 */
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import type { Message } from "@tensorferry/core/ir/Message"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import type { Checked, DriverErrors } from "./DriverErrors.ts"
import { inOrder, partDisagreement } from "./MessageChecks.ts"
import type { PeerList, PublishedPart } from "./PeerList.ts"

/** A part of this rank beside the same part at the peer. */
export interface Pair {
  readonly taskId: number
  readonly tensor: Tensor
  readonly theirs: PublishedPart
  readonly byteLength: number
  /** One run of bytes on the device that this rank works with. */
  readonly isDenseHere: boolean
  readonly isDenseThere: boolean
}

/** All parts that go one way between this rank and a peer. */
export interface Flow {
  readonly peer: number
  /** True where the peer sends. */
  readonly isReceiving: boolean
  readonly pairs: ReadonlyArray<Pair>
  readonly byteLength: number
}

const isDense = (shape: Shape, strides: ReadonlyArray<number>): boolean => {
  let run = 1
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    const length = shape[dim]!
    if (length !== 1 && strides[dim] !== run) return false
    run *= length
  }
  return true
}

/** Numbers of the devices that ranks work with. Their memory may lie on other devices too. */
export interface FlowDevices {
  /** Index of this rank's device. */
  readonly here: number
  /** Index of a peer's device. */
  readonly there: (peer: number) => number
}

const pairOf = (
  taskId: number,
  tensor: Tensor,
  theirs: PublishedPart,
  isNearHere: boolean,
  isNearThere: boolean
): Pair => {
  const { shape, dtype, strides } = tensor
  return {
    taskId,
    tensor,
    theirs,
    byteLength: byteLengthOf(dtype, elementCount(shape)),
    isDenseHere: isNearHere && isDense(shape, strides),
    isDenseThere: isNearThere && isDense(shape, theirs.strides)
  }
}

const flowOf = (
  errors: DriverErrors,
  messages: ReadonlyArray<Message>,
  peer: number,
  list: PeerList | undefined,
  isReceiving: boolean,
  devices: FlowDevices
): Checked<Flow> => {
  const disagree = (detail: string, taskId?: number) =>
    Result.fail(errors.fail("InvalidProgram", detail, { peer, taskId, op: "prepare", scope: "op" }))
  const mine = inOrder(
    messages.filter((message) => message.peer === peer),
    isReceiving ? "recv" : "send"
  )
  const theirs = (list?.messages ?? []).filter(({ direction }) => direction === (isReceiving ? "send" : "recv"))
  const extra = theirs.find((other) => !mine.some((message) => message.index === other.index))
  if (extra !== undefined) return disagree(`Only the peer has message ${extra.index}.`)
  const pairs: Array<Pair> = []
  for (const { index, parts } of mine) {
    const other = theirs.find((message) => message.index === index)
    if (other === undefined) return disagree(`The peer has no message ${index}.`)
    if (other.parts.length !== parts.length) {
      return disagree(`Message ${index} has ${parts.length} parts here and ${other.parts.length} there.`)
    }
    for (const [at, part] of parts.entries()) {
      const there = other.parts[at]!
      const disagreement = partDisagreement(part, there)
      if (disagreement !== undefined) return disagree(disagreement, part.taskId)
      const { taskId, tensor } = part
      if (tensor.shape.includes(0)) continue
      const isNearHere = tensor.storage.device.index === devices.here
      const isNearThere = list?.memories[there.memory]?.ordinal === devices.there(peer)
      pairs.push(pairOf(taskId, tensor, there, isNearHere, isNearThere))
    }
  }
  return Result.succeed({
    peer,
    isReceiving,
    pairs,
    byteLength: pairs.reduce((sum, pair) => sum + pair.byteLength, 0)
  })
}

/** All flows of this rank with bytes in them, by peer; of a peer, what is sent comes first. */
export const flowsOf = (
  errors: DriverErrors,
  messages: ReadonlyArray<Message>,
  lists: ReadonlyMap<number, PeerList>,
  devices: FlowDevices
): Checked<ReadonlyArray<Flow>> => {
  const flows: Array<Flow> = []
  const peers = new Set([...messages.map(({ peer }) => peer), ...lists.keys()])
  for (const peer of [...peers].sort((a, b) => a - b)) {
    for (const isReceiving of [false, true]) {
      const flow = flowOf(errors, messages, peer, lists.get(peer), isReceiving, devices)
      if (Result.isFailure(flow)) return Result.fail(flow.failure)
      if (flow.success.pairs.length > 0) flows.push(flow.success)
    }
  }
  return Result.succeed(flows)
}

/** Why memory of a list cannot be opened elsewhere, of what goes in one direction; undefined where all can. */
export const problemOf = (list: PeerList | undefined, direction: Message["direction"]): string | undefined => {
  for (const message of list?.messages ?? []) {
    if (message.direction !== direction) continue
    for (const part of message.parts) {
      if (part.shape.includes(0)) continue
      const memory = list!.memories[part.memory]
      const block = memory === undefined ? undefined : list!.blocks[memory.block]
      if (block === undefined) return "its owner did not publish where it lies"
      if (block.handle === "") return block.problem
    }
  }
  return undefined
}
