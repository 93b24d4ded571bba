// SPDX-License-Identifier: Apache-2.0
/**
 * One run's operations in the order and form that ranks agree on. Pure.
 *
 * Invariant: both ends of a pair of ranks list their common operations in the same order, by identity; that order alone
 * decides which parts form which message.
 */

import { type Digest, digestOf } from "../../base/Digest.ts"
import type { DType } from "../../base/DType.ts"
import type { Rank } from "../../base/Ids.ts"
import { equalShapes, formatShape, type Shape } from "../../base/Region.ts"
import { type CopyError, type CopyOp, type CopyReason, copyError } from "../../service/CopyService.ts"
import { type Tensor, tensorByteLength } from "../../tensor/Tensor.ts"
import { remembered } from "./messages.ts"

/** A queued operation with its identity among those of its pair of ranks. */
export interface BatchOp {
  readonly peer: Rank
  readonly tensor: Tensor
  readonly taskId: number | undefined
  readonly part: number
  readonly paramName: string | undefined
  /** Counts operations without a task id; 0 for the others. */
  readonly sequence: number
}

export interface CopyBatch {
  readonly local: ReadonlyArray<{ readonly send: BatchOp; readonly recv: BatchOp }>
  /** By peer, ascending; operations in agreed order. */
  readonly sends: ReadonlyMap<Rank, ReadonlyArray<BatchOp>>
  readonly recvs: ReadonlyMap<Rank, ReadonlyArray<BatchOp>>
}

const compareOps = (a: BatchOp, b: BatchOp): number => {
  if ((a.taskId === undefined) !== (b.taskId === undefined)) return a.taskId === undefined ? -1 : 1
  return (a.taskId ?? a.sequence) - (b.taskId ?? b.sequence) || a.part - b.part
}

const isSame = (a: BatchOp, b: BatchOp): boolean => compareOps(a, b) === 0

export const nameOp = (op: BatchOp): string =>
  op.taskId === undefined
    ? `unnumbered operation ${op.sequence}`
    : op.part === 0
      ? `task ${op.taskId}`
      : `task ${op.taskId} part ${op.part}`

/** Groups a queue by peer and gives every operation its identity. */
export const groupQueue = (
  queue: ReadonlyArray<CopyOp>
): {
  readonly sends: ReadonlyMap<Rank, ReadonlyArray<BatchOp>>
  readonly recvs: ReadonlyMap<Rank, ReadonlyArray<BatchOp>>
} => {
  const collect = (tag: CopyOp["_tag"]): ReadonlyMap<Rank, ReadonlyArray<BatchOp>> => {
    const byPeer = new Map<Rank, Array<BatchOp>>()
    const unnumbered = new Map<Rank, number>()
    for (const op of queue) {
      if (op._tag !== tag) continue
      const peer = op._tag === "SendOp" ? op.destRank : op.srcRank
      const sequence = op.taskId === undefined ? (unnumbered.get(peer) ?? 0) : 0
      if (op.taskId === undefined) unnumbered.set(peer, sequence + 1)
      const list = byPeer.get(peer) ?? []
      list.push({ peer, tensor: op.tensor, taskId: op.taskId, part: op.part, paramName: op.paramName, sequence })
      byPeer.set(peer, list)
    }
    for (const list of byPeer.values()) list.sort(compareOps)
    return new Map([...byPeer].sort(([a], [b]) => a - b))
  }
  return { sends: collect("SendOp"), recvs: collect("RecvOp") }
}

/** The first two neighbours with one identity, in a list in agreed order. */
export const findDuplicate = (ops: ReadonlyArray<BatchOp>): BatchOp | undefined =>
  ops.find((op, at) => at > 0 && isSame(ops[at - 1]!, op))

/** What ranks exchange about an operation. */
export interface OpSummary {
  readonly taskId: number | null
  readonly part: number
  readonly sequence: number
  readonly shape: Shape
  readonly dtype: DType
  readonly paramName: string | null
}

export const summarize = (op: BatchOp): OpSummary => ({
  taskId: op.taskId ?? null,
  part: op.part,
  sequence: op.sequence,
  shape: op.tensor.shape,
  dtype: op.tensor.dtype,
  paramName: op.paramName ?? null
})

/** Digest of the operations of one direction of one pair; names are local and left out. */
export const pairDigest = remembered(
  (ops: ReadonlyArray<BatchOp>): Digest =>
    digestOf(ops.map((op) => [op.taskId ?? null, op.part, op.sequence, op.tensor.shape, op.tensor.dtype]))
)

/** Digest of everything that others must know of this rank's batch. */
export const batchDigest = remembered(
  (batch: CopyBatch): Digest =>
    digestOf([
      batch.local.length,
      [...batch.sends].map(([peer, ops]) => [peer, pairDigest(ops)]),
      [...batch.recvs].map(([peer, ops]) => [peer, pairDigest(ops)])
    ])
)

/** Where the memory of a batch is, so that a compiled program is used again only for the same memory. */
export const memoryKey = remembered((batch: CopyBatch): string => {
  const where = (op: BatchOp) =>
    `${op.tensor.storage.generation}+${op.tensor.byteOffset}*${op.tensor.strides.join(",")}`
  return [
    ...batch.local.map(({ send, recv }) => `${where(send)}>${where(recv)}`),
    ...[...batch.sends.values()].flat().map(where),
    ...[...batch.recvs.values()].flat().map(where)
  ].join(";")
})

/** Payload bytes and operations of a batch. */
export interface BatchTotals {
  readonly localBytes: number
  readonly sentBytes: number
  readonly receivedBytes: number
  readonly remoteOps: number
  /** By peer, ascending. */
  readonly peers: ReadonlyArray<{ readonly peer: Rank; readonly bytesSent: number; readonly bytesReceived: number }>
}

const sumBytes = (ops: Iterable<BatchOp>): number => {
  let total = 0
  for (const op of ops) total += tensorByteLength(op.tensor)
  return total
}

export const totalsOf = remembered((batch: CopyBatch): BatchTotals => {
  const ranks = [...new Set([...batch.sends.keys(), ...batch.recvs.keys()])].sort((a, b) => a - b)
  const peers = ranks.map((peer) => ({
    peer,
    bytesSent: sumBytes(batch.sends.get(peer) ?? []),
    bytesReceived: sumBytes(batch.recvs.get(peer) ?? [])
  }))
  return {
    localBytes: sumBytes(batch.local.map(({ send }) => send)),
    sentBytes: peers.reduce((sum, { bytesSent }) => sum + bytesSent, 0),
    receivedBytes: peers.reduce((sum, { bytesReceived }) => sum + bytesReceived, 0),
    remoteOps: [...batch.sends.values(), ...batch.recvs.values()].reduce((sum, ops) => sum + ops.length, 0),
    peers
  }
})

const describeSummary = (op: OpSummary): string => {
  const name =
    op.taskId === null
      ? `unnumbered operation ${op.sequence}`
      : op.part === 0
        ? `task ${op.taskId}`
        : `task ${op.taskId} part ${op.part}`
  return `${name}${op.paramName === null ? "" : ` (${op.paramName})`}`
}

const summaryKey = (op: OpSummary): string => `${op.taskId ?? "#"}/${op.part}/${op.sequence}`

/** How many disagreements an error lists. */
const listed = 8

/**
 * The error for a pair of ranks whose lists differ: operations without partner first, then unequal shapes or types.
 * Undefined where the lists agree.
 */
export const comparePair = (
  from: Rank,
  to: Rank,
  sends: ReadonlyArray<OpSummary>,
  recvs: ReadonlyArray<OpSummary>
): CopyError | undefined => {
  const byKey = new Map(recvs.map((op) => [summaryKey(op), op]))
  const sent = new Set(sends.map(summaryKey))
  const missing = [
    ...sends
      .filter((op) => !byKey.has(summaryKey(op)))
      .map((op) => ({
        op,
        text: `rank ${from} sends ${describeSummary(op)} to rank ${to}, which does not receive it`
      })),
    ...recvs
      .filter((op) => !sent.has(summaryKey(op)))
      .map((op) => ({
        op,
        text: `rank ${to} receives ${describeSummary(op)} from rank ${from}, which does not send it`
      }))
  ]
  const differing = sends.flatMap((send) => {
    const recv = byKey.get(summaryKey(send))
    if (recv === undefined || (recv.dtype === send.dtype && equalShapes(recv.shape, send.shape))) return []
    return [
      {
        op: { ...send, paramName: send.paramName ?? recv.paramName },
        text: `${describeSummary(send)}: rank ${from} sends ${send.dtype}${formatShape(send.shape)}, rank ${to} receives ${recv.dtype}${formatShape(recv.shape)}`
      }
    ]
  })
  const [tag, faults, remedy]: [CopyReason["_tag"], typeof missing, string] =
    missing.length > 0
      ? ["PartnerMissing", missing, "Submit both halves of every transfer before run."]
      : ["Mismatch", differing, "Submit equal shapes and element types on both ends; cast before or after."]
  const [first] = faults
  if (first === undefined) return undefined
  const more = faults.length > listed ? `; and ${faults.length - listed} more` : ""
  return copyError(tag, [from, to], {
    rank: from,
    peer: to,
    op: "run",
    ...(first.op.taskId === null ? {} : { taskId: first.op.taskId }),
    ...(first.op.paramName === null ? {} : { paramName: first.op.paramName }),
    detail: `${faults
      .slice(0, listed)
      .map((fault) => fault.text)
      .join("; ")}${more}.`,
    remedy
  })
}
