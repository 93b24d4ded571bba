// SPDX-License-Identifier: Apache-2.0
/**
 * Random batches of messages between all ranks, the same text on every rank, and their judgement byte by byte.
 */
import { bitsOf, byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import type { Message, MessagePart } from "@tensorferry/core/ir/Message"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"

/** A small generator of numbers that is the same on every run. */
export const makeRandom = (seed: number) => {
  let state = (seed * 2_654_435_761 + 12_345) >>> 0
  const next = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return (state >>> 8) / 2 ** 24
  }
  return {
    next,
    below: (limit: number) => Math.floor(next() * limit),
    pick: <A>(values: ReadonlyArray<A>): A => values[Math.floor(next() * values.length)]!
  }
}
type Random = ReturnType<typeof makeRandom>

/** A view of a storage of its own, in which elements do not overlap. */
interface View {
  readonly dtype: DType
  readonly shape: Shape
  readonly strides: ReadonlyArray<number>
  readonly byteOffset: number
  readonly byteLength: number
}

const viewOf = (random: Random, dtype: DType, shape: Shape): View => {
  const size = bitsOf(dtype) / 8
  const order = shape.map((_, dim) => dim)
  if (random.next() < 0.3) order.sort(() => random.next() - 0.5)
  const isPadded = random.next() < 0.5
  const strides = new Array<number>(shape.length).fill(0)
  let step = isPadded && random.next() < 0.3 ? 2 : 1
  for (const dim of order.reverse()) {
    strides[dim] = step
    step *= shape[dim]! + (isPadded ? random.below(3) : 0)
  }
  const byteOffset = random.below(5) * (random.next() < 0.5 ? 1 : size)
  return { dtype, shape, strides, byteOffset, byteLength: byteOffset + (step + 1) * size + random.below(40) }
}

/** One tensor that goes from a rank to another, with a view of its own at either end. */
export interface Transfer {
  readonly taskId: number
  readonly from: number
  readonly to: number
  readonly source: View
  readonly destination: View
}

const sizes = [0, 1, 2, 3, 7, 16, 31, 64, 127, 128, 129, 251]

const shapeOf = (random: Random): Shape => {
  const form = random.next()
  if (form < 0.1) return []
  // Now and then something large enough to be sent by itself or cut into windows.
  if (form < 0.2) return [40 + random.below(60), 257 + random.below(600)]
  if (form < 0.25) return [16_384 + random.below(70_000)]
  return Array.from({ length: 1 + random.below(3) }, (_, dim) => (dim === 0 ? random.pick(sizes) : 1 + random.below(9)))
}

/** A transfer of this form between views whose padding depends on the task. */
export const randomTransfer = (taskId: number, from: number, to: number, dtype: DType, shape: Shape): Transfer => {
  const random = makeRandom(taskId + 1)
  return { taskId, from, to, source: viewOf(random, dtype, shape), destination: viewOf(random, dtype, shape) }
}

/** What all ranks send to each other. */
export const makeTransfers = (seed: number, ranks: number): ReadonlyArray<Transfer> => {
  const random = makeRandom(seed)
  const transfers: Array<Transfer> = []
  const count = 1 + random.below(14)
  for (let taskId = 0; taskId < count; taskId++) {
    const from = random.below(ranks)
    const to = (from + 1 + random.below(ranks - 1)) % ranks
    const shape = shapeOf(random)
    const dtype = random.pick<DType>(["uint8", "bfloat16", "float32", "int64"])
    transfers.push({
      taskId,
      from,
      to,
      source: viewOf(random, dtype, shape),
      destination: viewOf(random, dtype, shape)
    })
  }
  return transfers
}

const viewIn = ({ storage }: Tensor, view: View): Tensor =>
  Result.getOrThrow(tensorView(storage, view.dtype, view.shape, view))

const allocate = (engine: TensorEngineShape, view: View) =>
  Effect.map(engine.allocate("uint8", [view.byteLength]), (tensor) => viewIn(tensor, view))

/** One rank's memory for its share of the transfers. */
export interface Share {
  readonly sends: ReadonlyArray<readonly [Transfer, Tensor]>
  readonly recvs: ReadonlyArray<readonly [Transfer, Tensor]>
  readonly messages: ReadonlyArray<Message>
}

/** `destinations` gives memory of a transfer that is not the engine's. */
export const makeShare = (
  engine: TensorEngineShape,
  transfers: ReadonlyArray<Transfer>,
  rank: number,
  destinations: ReadonlyMap<number, Tensor> = new Map()
) =>
  Effect.gen(function* () {
    const sends: Array<readonly [Transfer, Tensor]> = []
    const recvs: Array<readonly [Transfer, Tensor]> = []
    for (const transfer of transfers) {
      if (transfer.from === rank) sends.push([transfer, yield* allocate(engine, transfer.source)])
      const given = destinations.get(transfer.taskId)
      if (transfer.to === rank) {
        const tensor = given === undefined ? undefined : viewIn(given, transfer.destination)
        recvs.push([transfer, tensor ?? (yield* allocate(engine, transfer.destination))])
      }
    }
    const messagesOf = (
      direction: Message["direction"],
      peerOf: (transfer: Transfer) => number,
      list: Share["sends"]
    ) => {
      const byPeer = new Map<number, Array<MessagePart>>()
      for (const [transfer, tensor] of list) {
        const parts = byPeer.get(peerOf(transfer)) ?? []
        byPeer.set(peerOf(transfer), parts)
        parts.push({ taskId: transfer.taskId, part: 0, tensor })
      }
      return [...byPeer].map(
        ([peer, parts]): Message => ({
          peer,
          direction,
          index: 0,
          parts,
          byteLength: parts.reduce((sum, { tensor }) => sum + byteLengthOf(tensor.dtype, elementCount(tensor.shape)), 0)
        })
      )
    }
    const messages = [...messagesOf("send", ({ to }) => to, sends), ...messagesOf("recv", ({ from }) => from, recvs)]
    return { sends, recvs, messages } satisfies Share
  })

const poison = 0xa5

const contents = (transfer: Transfer, round: number): Uint8Array => {
  const bytes = new Uint8Array(transfer.source.byteLength)
  const salt = transfer.taskId * 59 + transfer.from * 7 + round * 101
  for (let at = 0; at < bytes.length; at++) bytes[at] = (at * 167 + (at >> 8) * 13 + salt) & 0xff
  return bytes
}

/** First byte of every element, in logical order. */
const elementStarts = ({ dtype, shape, strides, byteOffset }: View): ReadonlyArray<number> => {
  const size = bitsOf(dtype) / 8
  let starts = shape.includes(0) ? [] : [byteOffset]
  for (let dim = 0; dim < shape.length; dim++) {
    starts = starts.flatMap((start) =>
      Array.from({ length: shape[dim]! }, (_, at) => start + at * strides[dim]! * size)
    )
  }
  return starts
}

const expected = (transfer: Transfer, round: number): Uint8Array => {
  const bytes = new Uint8Array(transfer.destination.byteLength).fill(poison)
  const sent = contents(transfer, round)
  const size = bitsOf(transfer.source.dtype) / 8
  const to = elementStarts(transfer.destination)
  for (const [at, from] of elementStarts(transfer.source).entries())
    bytes.set(sent.subarray(from, from + size), to[at]!)
  return bytes
}

const hostView = (engine: TensorEngineShape, bytes: Uint8Array) =>
  Effect.map(engine.wrapHost(bytes), (storage) => Result.getOrThrow(tensorView(storage, "uint8", [bytes.length])))

const whole = ({ storage }: Tensor): Tensor => Result.getOrThrow(tensorView(storage, "uint8", [storage.byteLength]))

const store = (engine: TensorEngineShape, all: ReadonlyArray<readonly [Tensor, Uint8Array]>) =>
  Effect.scoped(
    Effect.gen(function* () {
      const moves = []
      for (const [tensor, bytes] of all) moves.push({ dst: whole(tensor), src: yield* hostView(engine, bytes) })
      yield* engine.copy(moves)
    })
  )

/** Gives sources this round's contents and poisons destinations. */
export const fillShare = (engine: TensorEngineShape, { sends, recvs }: Share, round: number) =>
  store(engine, [
    ...sends.map(([transfer, tensor]) => [tensor, contents(transfer, round)] as const),
    ...recvs.map(
      ([transfer, tensor]) => [tensor, new Uint8Array(transfer.destination.byteLength).fill(poison)] as const
    )
  ])

/** What is wrong with what was received, or with what was sent. */
export const judgeShare = (engine: TensorEngineShape, { sends, recvs }: Share, round: number) =>
  Effect.scoped(
    Effect.gen(function* () {
      const wanted = [
        ...recvs.map(([transfer, tensor]) => [transfer, tensor, expected(transfer, round)] as const),
        ...sends.map(([transfer, tensor]) => [transfer, tensor, contents(transfer, round)] as const)
      ]
      const seen = wanted.map(([, , bytes]) => new Uint8Array(bytes.length))
      const moves = []
      for (const [at, [, tensor]] of wanted.entries()) {
        moves.push({ dst: yield* hostView(engine, seen[at]!), src: whole(tensor) })
      }
      yield* engine.copy(moves)
      return wanted.flatMap(([{ taskId, from, to }, , bytes], at) => {
        const place = seen[at]!.findIndex((byte, index) => byte !== bytes[index])
        return place < 0
          ? []
          : [`round ${round}, task ${taskId} from ${from} to ${to}: byte ${place} of ${bytes.length}`]
      })
    })
  )

/** This rank's share of the transfers, filled on all ranks, and its program: to be started. */
export const readyShare = Effect.fnUntraced(function* (
  rank: number,
  transfers: ReadonlyArray<Transfer>,
  round: number
) {
  const [driver, engine, group] = [yield* CopyDriver, yield* TensorEngine, yield* ProcessGroup]
  const share = yield* makeShare(engine, transfers, rank)
  const program = yield* driver.prepare(share.messages)
  yield* fillShare(engine, share, round)
  yield* group.barrier("filled")
  return { driver, engine, group, share, program }
})

/** Carries the transfers out once, in a scope of their own: what is wrong, and the program. */
export const carryOut = (rank: number, transfers: ReadonlyArray<Transfer>, round: number) =>
  Effect.scoped(
    Effect.gen(function* () {
      const { driver, engine, group, share, program } = yield* readyShare(rank, transfers, round)
      yield* (yield* driver.start(program)).await
      yield* group.barrier("done")
      return { wrong: yield* judgeShare(engine, share, round), program }
    })
  )
