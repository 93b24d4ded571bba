// SPDX-License-Identifier: Apache-2.0
/**
 * What fills a rank's tensors from a checkpoint under other names: reads of the checkpoint's own tensors, straight to where
 * their elements belong, wherever these lie in boxes. What does not is read of a model that is made of the checkpoint.
 *
 * Invariant: the reads of a tensor and its zeros cover it once, and only what the rank holds is read.
 */
import { bitsOf, isSubByte } from "@tensorferry/core/base/DType"
import { fullRegion, type Region, regionShape, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import { type Tensor, tensorView, type ViewFault } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import type { Model } from "../../Model.ts"
import type { StreamRead } from "../../stream/CheckpointStream.ts"
import { assembledModel } from "../AssembledModel.ts"
import type { TypedAssembly } from "../materialize.ts"
import type { Loop, Strip } from "../Strips.ts"
import { turnedStrips } from "../turnedStrips.ts"

/** A tensor of a rank: what it is made of, and its memory, dense and of the same shape. Types may differ. */
export interface RankTensor {
  /** The tensor by the names of its system. */
  readonly made: TypedAssembly
  /** Its memory, of any device. */
  readonly into: Tensor
}

/** All that fills the tensors of a rank. */
export interface RankReads {
  /** Of the checkpoint. */
  readonly plain: ReadonlyArray<StreamRead>
  /** Of `assembled`: tensors whose elements change, or lie scattered in the checkpoint. */
  readonly scattered: ReadonlyArray<StreamRead>
  /** The model that scattered tensors are read of, under the rank's names. */
  readonly assembled: Model
  /** Padding, which is zero. */
  readonly zeros: ReadonlyArray<Tensor>
}

/** A box of the checkpoint's tensor, and where its first element belongs. */
interface Piece {
  readonly region: Region
  readonly offset: number
  /** Of the rank's tensor, by dimension of the checkpoint's. */
  readonly strides: ReadonlyArray<number>
}

/** More boxes of a strip are read together, and picked apart afterwards. */
const mostPieces = 256

/** A strip of the checkpoint's tensor as boxes; undefined where these are too many, or go backwards. */
const piecesOf = ({ at, offset, loops }: Strip): ReadonlyArray<Piece> | undefined => {
  const inner = at.map((_, dim): Loop | undefined => loops.find((loop) => loop.dim === dim && loop.step === 1))
  const outer = loops.filter((loop) => !inner.includes(loop))
  if (outer.reduce((product, { count }) => product * count, 1) > mostPieces) return undefined
  if (inner.some((loop) => loop !== undefined && loop.source < 0)) return undefined
  const strides = inner.map((loop) => loop?.source ?? 0)
  let corners: ReadonlyArray<{ readonly corner: ReadonlyArray<number>; readonly offset: number }> = [
    { corner: at, offset }
  ]
  for (const { dim, count, step, source } of outer)
    corners = corners.flatMap((one) =>
      Array.from({ length: count }, (_, index) => ({
        corner: one.corner.map((place, own) => (own === dim ? place + index * step : place)),
        offset: one.offset + index * source
      }))
    )
  return corners.map(({ corner, offset: first }) => ({
    region: corner.map((place, dim) => [place, place + (inner[dim]?.count ?? 1)] as const),
    offset: first,
    strides
  }))
}

const bytesOf = ({ dtype }: Tensor, elements: number): number => (elements * bitsOf(dtype)) / 8

/** Elements of a rank's tensor that are zero. */
const zerosOf = ({ at, loops }: Strip, into: Tensor): Result.Result<Tensor, ViewFault> => {
  const strides = rowMajorStrides(into.shape)
  const first = at.reduce((sum, place, dim) => sum + place * strides[dim]!, 0)
  return tensorView(
    into.storage,
    into.dtype,
    loops.map(({ count }) => count),
    {
      strides: loops.map(({ dim, step }) => step * strides[dim]!),
      byteOffset: into.byteOffset + bytesOf(into, first)
    }
  )
}

interface Filled {
  readonly plain: ReadonlyArray<StreamRead>
  readonly zeros: ReadonlyArray<Tensor>
}

/** Reads of the checkpoint that fill a tensor; undefined where its elements change or lie scattered. */
const filledBy = (
  { made, into }: RankTensor,
  sources: ReadonlyMap<string, Model["tensors"][number]>
): Result.Result<Filled, ViewFault> | undefined => {
  const plain: Array<StreamRead> = []
  const zeros: Array<Tensor> = []
  const shape: Shape = made.shape
  for (const strip of made.strips) {
    if (strip.source === undefined) {
      const zero = zerosOf(strip, into)
      if (Result.isFailure(zero)) return Result.fail(zero.failure)
      zeros.push(zero.success)
      continue
    }
    const source = sources.get(strip.source)
    if (source === undefined || strip.scalar !== undefined || isSubByte(source.dtype)) return undefined
    const pieces = turnedStrips(strip, { name: made.name, shape }, source.shape)?.map(piecesOf)
    if (pieces === undefined || pieces.includes(undefined)) return undefined
    for (const { offset, region, strides } of pieces.flatMap((some) => some!)) {
      const view = tensorView(into.storage, into.dtype, regionShape(region), {
        strides,
        byteOffset: into.byteOffset + bytesOf(into, offset)
      })
      if (Result.isFailure(view)) return Result.fail(view.failure)
      plain.push({ name: source.name, region, into: view.success, storedAs: source.dtype })
    }
  }
  return Result.succeed({ plain, zeros })
}

/** Plans the reads. Fails where the memory is smaller than its shape needs. */
export const rankReads = (model: Model, tensors: ReadonlyArray<RankTensor>): Result.Result<RankReads, ViewFault> =>
  Result.gen(function* () {
    const sources = new Map(model.tensors.map((tensor) => [tensor.name, tensor]))
    const plain: Array<StreamRead> = []
    const zeros: Array<Tensor> = []
    const scattered: Array<RankTensor> = []
    for (const tensor of tensors) {
      const filled = isSubByte(tensor.into.dtype) ? undefined : filledBy(tensor, sources)
      if (filled === undefined) {
        scattered.push(tensor)
        continue
      }
      const found = yield* filled
      for (const read of found.plain) plain.push(read)
      for (const zero of found.zeros) zeros.push(zero)
    }
    return {
      plain,
      zeros,
      assembled: assembledModel(
        model,
        scattered.map(({ made }) => made)
      ),
      scattered: scattered.map(({ made: { name, dtype, shape }, into }) => ({
        name,
        region: fullRegion(shape),
        into,
        storedAs: dtype
      }))
    }
  })
