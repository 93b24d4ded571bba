// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank's queue must be before the others hear of it. Pure.
 *
 * Invariant: a batch made here has live tensors inside their storage, ranks of the group, one identity per operation, and
 * both halves of everything that the rank sends to itself.
 */
import * as Result from "effect/Result"
import type { Rank } from "../../base/Ids.ts"
import { equalShapes, formatShape } from "../../base/Region.ts"
import type { CopyDriverShape } from "../../service/CopyDriver.ts"
import { type CopyError, type CopyOp, copyError } from "../../service/CopyService.ts"
import type { Storage } from "../../tensor/Storage.ts"
import { byteMove, tensorFault } from "../../tensor/Tensor.ts"
import { matchLocalOpsByTaskId } from "../matchLocalOps.ts"
import { type BatchOp, type CopyBatch, findDuplicate, groupQueue, nameOp } from "./batch.ts"

const invalid = (
  rank: Rank,
  op: BatchOp,
  tag: "InvalidTensor" | "Unsupported" | "UnknownRank" | "DuplicateTask",
  detail: string,
  remedy: string
): CopyError =>
  copyError(tag, Number.isInteger(op.peer) ? [rank, op.peer] : [rank], {
    rank,
    ...(Number.isInteger(op.peer) ? { peer: op.peer } : {}),
    op: "run",
    ...(op.taskId === undefined ? {} : { taskId: op.taskId }),
    ...(op.paramName === undefined ? {} : { paramName: op.paramName }),
    detail,
    remedy
  })

const isNatural = (value: number): boolean => Number.isSafeInteger(value) && value >= 0

/** Checks one rank's queue by itself and separates what it sends to itself. */
export const makeBatch = (
  driver: CopyDriverShape,
  queue: ReadonlyArray<CopyOp>
): Result.Result<CopyBatch, CopyError> => {
  const { rank, worldSize, capabilities } = driver
  const unnamed = queue.find((op) => !(isNatural(op.taskId ?? 0) && isNatural(op.part)))
  if (unnamed !== undefined) {
    return Result.fail(
      copyError("Unsupported", [rank], {
        rank,
        op: "run",
        ...(unnamed.paramName === undefined ? {} : { paramName: unnamed.paramName }),
        detail: `Task id ${unnamed.taskId ?? "none"} with part ${unnamed.part} names no operation.`,
        remedy: "Give task ids and parts as natural numbers below 2^53."
      })
    )
  }
  const { sends, recvs } = groupQueue(queue)
  const received = [...recvs.values()]
  for (const ops of [...sends.values(), ...received]) {
    const duplicate = findDuplicate(ops)
    if (duplicate !== undefined) {
      return Result.fail(
        invalid(
          rank,
          duplicate,
          "DuplicateTask",
          `Two operations with rank ${duplicate.peer} are ${nameOp(duplicate)}.`,
          "Give every tensor of a task its own part number."
        )
      )
    }
    for (const op of ops) {
      if (!Number.isInteger(op.peer) || op.peer < 0 || op.peer >= worldSize) {
        return Result.fail(
          invalid(
            rank,
            op,
            "UnknownRank",
            `Rank ${op.peer} is not in 0 to ${worldSize - 1}.`,
            "Address ranks of the service's group."
          )
        )
      }
      if (op.tensor.storage.isFreed()) {
        return Result.fail(
          invalid(
            rank,
            op,
            "InvalidTensor",
            `The storage of ${nameOp(op)} was freed.`,
            "Keep the tensor's scope open until run has ended."
          )
        )
      }
      const fault = tensorFault(op.tensor, received.includes(ops))
      if (fault !== undefined) {
        return Result.fail(
          invalid(
            rank,
            op,
            "InvalidTensor",
            `The tensor of ${nameOp(op)} cannot be used: ${fault}.`,
            "Make views with tensorView or sliceTensor, and receive into memory of its own."
          )
        )
      }
      // A view that is cut inside a byte could not be split into messages either.
      const cut = byteMove({ src: op.tensor, dst: op.tensor })
      if (Result.isFailure(cut)) {
        return Result.fail(
          invalid(
            rank,
            op,
            "InvalidTensor",
            `${nameOp(op)}: ${cut.failure.detail}.`,
            "Choose regions of whole bytes along every dimension."
          )
        )
      }
      if (op.peer === rank) continue
      const family = op.tensor.device.family
      if (!capabilities.deviceFamilies.includes("*") && !capabilities.deviceFamilies.includes(family)) {
        return Result.fail(
          invalid(
            rank,
            op,
            "Unsupported",
            `Backend ${driver.name} does not move memory of device family ${family}.`,
            "Choose a backend that serves the device."
          )
        )
      }
      if (capabilities.requiresTaskId && op.taskId === undefined) {
        return Result.fail(
          invalid(
            rank,
            op,
            "Unsupported",
            `Backend ${driver.name} needs a task id for every operation.`,
            "Pass the plan's task id."
          )
        )
      }
    }
  }
  const match = matchLocalOpsByTaskId(sends.get(rank) ?? [], recvs.get(rank) ?? [])
  const [alone] = [...match.unmatchedSends, ...match.unmatchedRecvs]
  if (alone !== undefined) {
    const half = match.unmatchedSends.length > 0 ? "sends" : "receives"
    return Result.fail(
      copyError("PartnerMissing", [rank], {
        rank,
        peer: rank,
        op: "run",
        ...(alone.taskId === undefined ? {} : { taskId: alone.taskId }),
        ...(alone.paramName === undefined ? {} : { paramName: alone.paramName }),
        detail: `Rank ${rank} ${half} ${nameOp(alone)} with itself, without the other half.`,
        remedy: "Submit both halves of every transfer before run."
      })
    )
  }
  for (const { send, recv } of match.pairs) {
    if (send.tensor.dtype === recv.tensor.dtype && equalShapes(send.tensor.shape, recv.tensor.shape)) continue
    const name = send.paramName ?? recv.paramName
    return Result.fail(
      copyError("Mismatch", [rank], {
        rank,
        peer: rank,
        op: "run",
        ...(send.taskId === undefined ? {} : { taskId: send.taskId }),
        ...(name === undefined ? {} : { paramName: name }),
        detail: `${nameOp(send)}: sends ${send.tensor.dtype}${formatShape(send.tensor.shape)}, receives ${recv.tensor.dtype}${formatShape(recv.tensor.shape)}.`,
        remedy: "Submit equal shapes and element types on both ends."
      })
    )
  }
  const others = (ops: ReadonlyMap<Rank, ReadonlyArray<BatchOp>>) => new Map([...ops].filter(([peer]) => peer !== rank))
  return Result.succeed({ local: match.pairs, sends: others(sends), recvs: others(recvs) })
}

/** The same operation on the same view of the same memory. */
const isSameOp = (a: CopyOp, b: CopyOp): boolean =>
  a.tensor === b.tensor &&
  a._tag === b._tag &&
  a.taskId === b.taskId &&
  a.part === b.part &&
  a.paramName === b.paramName &&
  (a._tag === "SendOp" ? a.destRank : a.srcRank) === (b._tag === "SendOp" ? b.destRank : b.srcRank)

const isSameQueue = (a: ReadonlyArray<CopyOp>, b: ReadonlyArray<CopyOp>): boolean => {
  if (a === b) return true
  if (a.length !== b.length) return false
  for (let at = 0; at < a.length; at++) if (!isSameOp(a[at]!, b[at]!)) return false
  return true
}

/**
 * `makeBatch` that knows the queue of the run before again. Tensors are values that nobody changes, so all that can have
 * become wrong with them is that their memory was freed.
 */
export const makeBatchMemory = () => {
  let last:
    | {
        readonly queue: ReadonlyArray<CopyOp>
        readonly storages: ReadonlyArray<Storage>
        readonly batch: CopyBatch
      }
    | undefined
  return (driver: CopyDriverShape, queue: ReadonlyArray<CopyOp>): Result.Result<CopyBatch, CopyError> => {
    if (last !== undefined && isSameQueue(last.queue, queue)) {
      if (!last.storages.some((storage) => storage.isFreed())) return Result.succeed(last.batch)
    }
    last = undefined
    return Result.map(makeBatch(driver, queue), (batch) => {
      last = { queue, storages: [...new Set(queue.map((op) => op.tensor.storage))], batch }
      return batch
    })
  }
}

export const emptyBatch: CopyBatch = { local: [], sends: new Map(), recvs: new Map() }
