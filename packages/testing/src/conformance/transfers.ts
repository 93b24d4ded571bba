// SPDX-License-Identifier: Apache-2.0
/**
 * Lists of transfers, the same text on every rank, and a rank's halves of them: memory, submission and judgement.
 */

import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import {
  type CopyError,
  type CopyReason,
  type CopyReport,
  CopyService,
  type RunOptions
} from "@tensorferry/core/service/CopyService"
import type { TensorEngine, TensorError } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import type * as EffectScope from "effect/Scope"
import { type CaseFailure, check, checkEqual, expectFailure } from "./Case.ts"
import {
  expectElements,
  expectPoison,
  type Form,
  type Placed,
  patternBytes,
  place,
  setElements,
  setPoison
} from "./memory.ts"

/** One tensor that goes from a rank to another, or stays on one. */
export interface Transfer {
  readonly from: Rank
  readonly to: Rank
  /** Left out, the transfer is matched by order. */
  readonly taskId?: number
  /** 0 by default. */
  readonly part?: number
  /** uint8 by default. */
  readonly dtype?: DType
  readonly shape: Shape
  /** How the source lies in memory, and the destination; dense by default. */
  readonly sendForm?: Form
  readonly recvForm?: Form
}

interface Half {
  readonly transfer: Transfer
  readonly seed: number
  readonly placed: Placed
}

/** One rank's memory for its halves of a list. */
export interface Halves {
  readonly sends: ReadonlyArray<Half>
  readonly recvs: ReadonlyArray<Half>
}

/** Bytes of the elements alone, whatever the form. */
export const transferBytes = ({ dtype, shape }: Transfer): number => byteLengthOf(dtype ?? "uint8", elementCount(shape))

const half = (transfer: Transfer, seed: number, form: Form | undefined) =>
  Effect.map(place(transfer.dtype ?? "uint8", transfer.shape, form), (placed): Half => ({ transfer, seed, placed }))

/** Memory for what this rank sends and receives of the list, poisoned, until the scope ends. */
export const allocateHalves = Effect.fnUntraced(function* (
  rank: Rank,
  transfers: ReadonlyArray<Transfer>
): Effect.fn.Return<Halves, TensorError | CaseFailure, TensorEngine | EffectScope.Scope> {
  const numbered = transfers.map((transfer, seed) => ({ transfer, seed }))
  return {
    sends: yield* Effect.forEach(
      numbered.filter(({ transfer }) => transfer.from === rank),
      ({ transfer, seed }) => half(transfer, seed, transfer.sendForm)
    ),
    recvs: yield* Effect.forEach(
      numbered.filter(({ transfer }) => transfer.to === rank),
      ({ transfer, seed }) => half(transfer, seed, transfer.recvForm)
    )
  }
})

const contents = ({ transfer, seed }: Half, round: number): Uint8Array =>
  patternBytes(transferBytes(transfer), seed * 37 + transfer.from * 5 + round * 101)

/** Fills what is sent with this round's contents and poisons what is received. */
export const fillHalves = Effect.fnUntraced(function* (halves: Halves, round: number) {
  yield* Effect.forEach(halves.sends, (send) => setElements(send.placed, contents(send, round)), { discard: true })
  yield* Effect.forEach(halves.recvs, (recv) => setPoison(recv.placed), { discard: true })
})

/** The order in which a rank queues its halves. */
export interface SubmitOrder {
  /** Submits in reverse order, to show that identity and not order decides. */
  readonly reverse?: boolean
}

/** Queues what this rank receives, then what it sends; nothing moves before the service runs. */
export const submitHalves = Effect.fnUntraced(function* (
  halves: Halves,
  { reverse = false }: SubmitOrder = {}
): Effect.fn.Return<void, CopyError, CopyService> {
  const service = yield* CopyService
  const ordered = (list: ReadonlyArray<Half>) => (reverse ? [...list].reverse() : list)
  for (const { transfer, placed } of ordered(halves.recvs)) {
    yield* service.submitRecv(placed.tensor, transfer.from, transfer.taskId, { part: transfer.part ?? 0 })
  }
  for (const { transfer, placed } of ordered(halves.sends)) {
    yield* service.submitSend(placed.tensor, transfer.to, transfer.taskId, { part: transfer.part ?? 0 })
  }
})

/** Everything received is what was sent, nothing else was written, and sources are unchanged. */
export const judgeHalves = Effect.fnUntraced(function* (halves: Halves, round: number) {
  for (const recv of halves.recvs) {
    const { from, taskId } = recv.transfer
    yield* expectElements(`Round ${round}, task ${taskId ?? "-"} from rank ${from}`, recv.placed, contents(recv, round))
  }
  for (const send of halves.sends) {
    const { to, taskId } = send.transfer
    yield* expectElements(
      `Round ${round}, source of task ${taskId ?? "-"} to rank ${to}`,
      send.placed,
      contents(send, round)
    )
  }
})

/** One whole run of a list on one rank; gives its report. */
export const runTransfers = Effect.fnUntraced(function* (
  rank: Rank,
  transfers: ReadonlyArray<Transfer>,
  options: { readonly run?: RunOptions; readonly order?: SubmitOrder; readonly round?: number } = {}
): Effect.fn.Return<CopyReport, TensorError | CaseFailure | CopyError, CopyService | TensorEngine | EffectScope.Scope> {
  const service = yield* CopyService
  const round = options.round ?? 0
  const halves = yield* allocateHalves(rank, transfers)
  yield* fillHalves(halves, round)
  yield* submitHalves(halves, options.order)
  const report = yield* service.run(options.run)
  yield* judgeHalves(halves, round)
  return report
})

/** Every rank to every rank, itself included; sizes differ by pair. */
export const allToAll = (size: number, taskId = 0): ReadonlyArray<Transfer> =>
  Array.from({ length: size * size }, (_, at) => {
    const [from, to] = [Math.floor(at / size), at % size]
    return { from, to, taskId: taskId + at, shape: [3 + 2 * from, 5 + to] }
  })

/** The queue is empty and the service works: a run of other transfers moves these and nothing else. */
export const worksAfterwards = Effect.fnUntraced(function* (rank: Rank, size: number) {
  const transfers = allToAll(size, 1000)
  const report = yield* runTransfers(rank, transfers, { round: 7 })
  const remote = transfers.filter(({ from, to }) => from !== to && (from === rank || to === rank)).length
  yield* checkEqual("Remote operations of the next run", report.remoteOps, remote)
  yield* checkEqual("Local operations of the next run", report.localOps, 1)
})

/** This run fails on this rank with one of these reasons; destinations stay as they were; the next run works. */
export const refusedThenWorks = Effect.fnUntraced(function* (
  rank: Rank,
  size: number,
  reasons: ReadonlyArray<CopyReason["_tag"]>,
  submit: Effect.Effect<
    ReadonlyArray<Placed>,
    TensorError | CaseFailure | CopyError,
    CopyService | TensorEngine | EffectScope.Scope
  >,
  options: {
    readonly named?: ReadonlyArray<string>
    readonly ranks?: ReadonlyArray<Rank>
    readonly run?: RunOptions
  } = {}
) {
  const service = yield* CopyService
  const untouched = yield* submit
  const error = yield* expectFailure("The run", service.run(options.run), reasons)
  for (const text of options.named ?? []) {
    yield* check(error.message.includes(text), () => `The error does not mention "${text}": ${error.message}`)
  }
  for (const wanted of options.ranks ?? []) {
    yield* check(
      error.ranks.includes(wanted),
      () => `The error is about ranks [${error.ranks.join(",")}] and leaves out ${wanted}: ${error.message}`
    )
  }
  for (const placed of untouched) yield* expectPoison("A destination of a refused batch", placed)
  yield* worksAfterwards(rank, size)
  return error
})
