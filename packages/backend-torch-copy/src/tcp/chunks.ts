// SPDX-License-Identifier: Apache-2.0
/**
 * How the parts that one rank sends to another become a stream: chunks of about a megabyte, each with the copies between
 * its dense form and the tensors.
 *
 * Invariant: where chunks begin and end is a function of shapes and types alone, which both ends know alike.
 */

import { rowMajorStrides } from "@tensorferry/core/base/Region"
import { packParts, splitPart } from "@tensorferry/core/planner/Bucketing"
import { cpu } from "@tensorferry/core/tensor/Device"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { byteMove, type Move, sliceTensor, type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import { encodeMoves } from "@tensorferry/native/MoveTable"
import * as Result from "effect/Result"
import type { Addon } from "../Addon.ts"

const chunkBytes = 2 ** 20

export interface Chunk {
  readonly byteLength: number
  readonly table: BigUint64Array
}

export interface Chunked {
  readonly chunks: ReadonlyArray<Chunk>
  /** Where every chunk lies while it travels; one at a time. */
  readonly staging: Uint8Array
  readonly tensors: ReadonlyArray<Tensor>
}

const stagingStorage = (addon: Addon, bytes: Uint8Array): Result.Result<Storage, string> => {
  const address = addon.addressOf(bytes)
  return address.code === "Ok"
    ? Result.succeed(
        makeStorage({ device: cpu, address: address.value, byteLength: bytes.length, bytes, release: () => {} })
      )
    : Result.fail(address.detail)
}

/** Fails in words where a tensor cannot be cut at whole bytes. */
export const chunksOf = (
  addon: Addon,
  tensors: ReadonlyArray<Tensor>,
  direction: "send" | "recv"
): Result.Result<Chunked, string> => {
  const pieces: Array<Tensor> = []
  for (const tensor of tensors) {
    for (const region of splitPart(tensor, chunkBytes)) {
      const piece = sliceTensor(tensor, region)
      if (Result.isFailure(piece)) return Result.fail(piece.failure.detail)
      pieces.push(piece.success)
    }
  }
  const packed = packParts(pieces.map(tensorByteLength), chunkBytes)
  // Never smaller than this: short arrays may be moved about by the garbage collector.
  const staging = new Uint8Array(packed.reduce((most, { byteLength }) => Math.max(most, byteLength), 4096))
  const storage = stagingStorage(addon, staging)
  if (Result.isFailure(storage)) return Result.fail(storage.failure)
  const chunks: Array<Chunk> = []
  for (const { parts, byteLength } of packed) {
    const moves: Array<Move> = []
    for (const { index, byteOffset } of parts) {
      const piece = pieces[index]!
      const { dtype, shape } = piece
      const dense = { device: cpu, dtype, shape, strides: rowMajorStrides(shape), byteOffset, storage: storage.success }
      const move = byteMove(direction === "send" ? { dst: dense, src: piece } : { dst: piece, src: dense })
      if (Result.isFailure(move)) return Result.fail(move.failure.detail)
      moves.push(move.success)
    }
    chunks.push({ byteLength, table: encodeMoves(moves) })
  }
  return Result.succeed({ chunks, staging, tensors })
}
