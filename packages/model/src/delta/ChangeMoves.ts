// SPDX-License-Identifier: Apache-2.0
/**
 * The moves of an update of changes: what is queued at the copy service for each part of a region, whole or by its changes,
 * what is stated of it, and what completes it when it has arrived. Casts at either end are of lists where only changes travel.
 *
 * Invariant: a list that is not what its sender stated is not written.
 */

import type { DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount } from "@tensorferry/core/base/Region"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import { engineFailed } from "@tensorferry/core/reshard/Buffers"
import { type ReshardError, reshardError } from "@tensorferry/core/reshard/ReshardError"
import type { CopyOp } from "@tensorferry/core/service/CopyService"
import type { TensorEngineShape, TensorError } from "@tensorferry/core/service/TensorEngine"
import type { Changes } from "@tensorferry/core/tensor/Changes"
import { isContiguous, type Tensor, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { ArrivingPart } from "./Arrivals.ts"
import type { ScannedPart } from "./ChangeScan.ts"
import { writeGaps, writePositions } from "./Gaps.ts"
import { checksumOf, hostBytes } from "./hostBytes.ts"

/** In the place of a number of changes: the part is sent whole. */
export const wholePart = 2 ** 32 - 1

/**
 * What a sender states of a part: task, part, number of changes, bytes of a position in their list, the list's checksum, and
 * that of the part afterwards.
 */
export type ChangeRow = readonly [
  task: number,
  part: number,
  count: number,
  positionBytes: number,
  list: number,
  after: number
]

/** Numbers in a row. */
export const rowWords = 6

/** A part as it leaves: its changes, or all of it, with checksums. */
export interface FormedPart {
  readonly tensors: ReadonlyArray<Tensor>
  readonly count: number
  /** 2 where positions are gaps. */
  readonly positionBytes: number
  readonly list: number
  readonly after: number
}

/** A part that arrives. */
export interface Receipt {
  readonly ops: ReadonlyArray<CopyOp>
  /** Writes what arrived; false where it is not what was stated, and was not written. */
  readonly write: Effect.Effect<boolean, ReshardError>
}

/** What is checked. */
export interface ChangeChecks {
  /** Every list has a checksum. */
  readonly checksums: boolean
  /** Every part has one, of what the destination holds afterwards. */
  readonly verify: boolean
}

/** Moves of one rank. What they allocate lives in the scope. */
export interface ChangeMoves {
  /** A part as it leaves, in the type that travels, for any number of receivers. */
  readonly form: (scanned: ScannedPart, wire: DType) => Effect.Effect<FormedPart, ReshardError, Scope.Scope>
  /** A part for one of them, and what is stated of it; nothing is stated of a part that simply comes whole. */
  readonly send: (
    op: TransferOp,
    part: number,
    formed: FormedPart
  ) => { readonly ops: ReadonlyArray<CopyOp>; readonly row: ChangeRow | undefined }
  /** A part as it arrives. */
  readonly receive: (
    op: TransferOp,
    part: number,
    arriving: ArrivingPart,
    row: ChangeRow | undefined
  ) => Effect.Effect<Receipt, ReshardError, Scope.Scope>
}

const words16 = (bytes: Uint8Array) => new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / 2)
const words32 = (bytes: Uint8Array) => new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4)

/** Moves of a rank on an engine. */
export const makeChangeMoves = (
  rank: Rank,
  engine: TensorEngineShape,
  { checksums, verify }: ChangeChecks
): ChangeMoves => {
  const failed =
    (op: string) =>
    <A, R>(effect: Effect.Effect<A, TensorError, R>) =>
      Effect.mapError(effect, (error) => engineFailed(rank, op, error))

  const allocate = (like: Tensor, dtype: DType, shape = like.shape) =>
    failed("allocate")(engine.allocate(dtype, shape, like.device))

  /** A tensor in another type; itself where it has that type. */
  const cast = Effect.fnUntraced(function* (tensor: Tensor, dtype: DType) {
    if (tensor.dtype === dtype) return tensor
    const made = yield* allocate(tensor, dtype)
    yield* failed("cast")(engine.copy([{ dst: made, src: tensor }]))
    return made
  })

  const checksum = (tensors: ReadonlyArray<Tensor>) => failed("checksum")(checksumOf(engine, tensors))

  /** The checksum of a part in the type that travels. */
  const afterOf = Effect.fnUntraced(function* (view: Tensor, wire: DType) {
    if (view.dtype === wire && isContiguous(view)) return yield* checksum([view])
    const dense = yield* allocate(view, wire)
    yield* failed("cast")(engine.copy([{ dst: dense, src: view }]))
    return yield* checksum([dense])
  }, Effect.scoped)

  const sendOp = ({ paramName, peerRank: destRank, taskId }: TransferOp, part: number, tensor: Tensor): CopyOp => ({
    _tag: "SendOp",
    tensor,
    destRank,
    taskId,
    part,
    paramName
  })
  const recvOp = ({ paramName, peerRank: srcRank, taskId }: TransferOp, part: number, tensor: Tensor): CopyOp => ({
    _tag: "RecvOp",
    tensor,
    srcRank,
    taskId,
    part,
    paramName
  })

  /** Positions as gaps where the host sees them and they fit; on a device they stay as they are. */
  const packed = Effect.fnUntraced(function* (positions: Tensor) {
    const bytes = tensorBytes(positions)
    if (bytes === undefined) return positions
    const made = yield* allocate(positions, "uint16")
    return writeGaps(words32(bytes), words16(tensorBytes(made)!)) ? made : positions
  })

  /** Positions from gaps, wherever these are. */
  const unpacked = Effect.fnUntraced(function* (gaps: Tensor) {
    if (gaps.dtype !== "uint16") return gaps
    const made = yield* allocate(gaps, "uint32")
    const own = tensorBytes(made)
    const positions = own === undefined ? new Uint32Array(gaps.shape[0]!) : words32(own)
    writePositions(words16(yield* failed("unpack")(hostBytes(engine, gaps))), positions)
    if (own === undefined) {
      const storage = yield* failed("unpack")(engine.wrapHost(new Uint8Array(positions.buffer)))
      const src = Result.getOrThrow(tensorView(storage, "uint32", made.shape))
      yield* failed("unpack")(engine.copy([{ dst: made, src }]))
    }
    return made
  })

  const form: ChangeMoves["form"] = Effect.fnUntraced(function* ({ sent, view }, wire) {
    const after = verify ? yield* afterOf(view, wire) : 0
    const nothing = { positionBytes: 0, list: 0, after }
    if (sent === undefined) return { ...nothing, tensors: [yield* cast(view, wire)], count: wholePart }
    const count = sent.positions.shape[0]!
    if (count === 0) return { ...nothing, tensors: [], count }
    const positions = yield* packed(sent.positions)
    const tensors = [positions, yield* cast(sent.values, wire)]
    const list = checksums ? yield* checksum(tensors) : 0
    return { tensors, count, positionBytes: positions.dtype === "uint16" ? 2 : 4, list, after }
  })

  const send: ChangeMoves["send"] = (op, part, { after, count, list, positionBytes, tensors }) => ({
    ops: tensors.map((tensor, at) => sendOp(op, 2 * part + at, tensor)),
    row: count === wholePart && !verify ? undefined : [op.taskId, part, count, positionBytes, list, after]
  })

  /** Whether a part holds what was stated. Where it has another type than what travelled, nobody can tell. */
  const isRight = ({ into, wire }: ArrivingPart, row: ChangeRow | undefined) =>
    !verify || row === undefined || into.dtype !== wire
      ? Effect.succeed(true)
      : Effect.map(afterOf(into, wire), (after) => after === row[5])

  const receiveWhole = Effect.fnUntraced(function* (
    op: TransferOp,
    part: number,
    arriving: ArrivingPart,
    row: ChangeRow | undefined
  ) {
    const { into, wire } = arriving
    const isCast = into.dtype !== wire
    const travels = isCast ? yield* allocate(into, wire) : into
    const casting = isCast ? failed("cast")(engine.copy([{ dst: into, src: travels }])) : Effect.void
    return { ops: [recvOp(op, 2 * part, travels)], write: Effect.andThen(casting, isRight(arriving, row)) }
  })

  const applied = (into: Tensor, changes: Changes) =>
    engine.apply(into, changes).pipe(
      Effect.as(true),
      // Positions that are none were never found.
      Effect.catch((error) =>
        error.reason._tag === "InvalidRequest" ? Effect.succeed(false) : Effect.fail(engineFailed(rank, "apply", error))
      )
    )

  const receive: ChangeMoves["receive"] = Effect.fnUntraced(function* (op, part, arriving, row) {
    const { into, need, wire } = arriving
    if (row === undefined || row[2] === wholePart) return yield* receiveWhole(op, part, arriving, row)
    const [, , count, positionBytes, list] = row
    if (count === 0) return { ops: [], write: isRight(arriving, row) }
    if (need !== "changes" || count > elementCount(into.shape)) {
      return yield* reshardError("TensorMismatch", {
        rank,
        paramName: op.paramName,
        taskId: op.taskId,
        detail: `Rank ${op.peerRank} states ${count} changes of part ${part}, which cannot be.`,
        remedy: "Plan again on all ranks, with the same transform."
      })
    }
    const where = yield* allocate(into, positionBytes === 2 ? "uint16" : "uint32", [count])
    const values = yield* allocate(into, wire, [count])
    const write = Effect.scoped(
      Effect.gen(function* () {
        if (checksums && (yield* checksum([where, values])) !== list) return false
        const own = yield* cast(values, into.dtype)
        const positions = yield* unpacked(where)
        return (yield* applied(into, { positions, values: own })) && (yield* isRight(arriving, row))
      })
    )
    return { ops: [recvOp(op, 2 * part, where), recvOp(op, 2 * part + 1, values)], write }
  })

  return { form, send, receive }
}
