// SPDX-License-Identifier: Apache-2.0
/**
 * Files of ranks whose tensors are made on a device: what they are made of is read into its memory once, the device moves the
 * elements, and files are written from there.
 *
 * Invariant: what is read, moved and written is compared by digests of the device. Elements whose type or value changes are
 * made where they are read, as without a device.
 */
import { bitsOf, byteLengthOf } from "@tensorferry/core/base/DType"
import { fullRegion } from "@tensorferry/core/base/Region"
import type { ProcessGroupError, ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { type Move, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { CheckpointError } from "../../checkpoint/CheckpointError.ts"
import type { FilePart } from "../../checkpoint/CheckpointWriter.ts"
import { allocateTensors, digestParts, type HeldTensor, loadTensors } from "../../HeldTensors.ts"
import type { LocalTensor, ModelTensor } from "../../layout/ModelLayout.ts"
import type { Model } from "../../Model.ts"
import { type ModelError, modelError } from "../../ModelError.ts"
import { writeVerified } from "../../outputs/outputFiles.ts"
import type { MappedTensor } from "../mapModel.ts"
import { linearStrip, type Strip } from "../Strips.ts"

/** Writes one file of a rank, which `own` reads as the rank has it. */
export type FileWriter = (
  own: Model,
  rank: number,
  file: string,
  part: FilePart<MappedTensor>,
  metadata: ReadonlyMap<string, string>
) => Effect.Effect<void, CheckpointError | ModelError | TensorError | ProcessGroupError>

/** Engines move boxes of at most so many dimensions. */
const mostDimensions = 8

const wholeLocal = ({ dtype, name, shape }: ModelTensor): LocalTensor => ({
  ...{ name, dtype, shape, storedAs: name, padding: undefined, aliasOf: undefined, isPrimary: true },
  pieces: [{ local: fullRegion(shape), global: fullRegion(shape) }]
})

/** Tensors of the model that others are made of, in the order of the model. */
export const sourcesOf = (model: Model, made: ReadonlyArray<MappedTensor>): ReadonlyArray<ModelTensor> => {
  const names = new Set(
    made.flatMap(({ strips }) => strips.flatMap(({ source }) => (source === undefined ? [] : [source])))
  )
  return model.tensors.filter(({ name }) => names.has(name))
}

const gridOf = (
  tensor: Tensor,
  at: number,
  counts: ReadonlyArray<number>,
  strides: ReadonlyArray<number>
): Tensor | undefined =>
  Result.getOrUndefined(
    tensorView(tensor.storage, tensor.dtype, counts, {
      strides,
      byteOffset: tensor.byteOffset + byteLengthOf(tensor.dtype, at)
    })
  )

/** A strip as a move of the device; undefined where it is more than that. */
const moveOf = (made: HeldTensor, strip: Strip, source: HeldTensor | undefined): Move | undefined => {
  if (source === undefined || strip.scalar !== undefined) return undefined
  const { dtype, shape } = made.local
  if (source.local.dtype !== dtype || bitsOf(dtype) % 8 !== 0) return undefined
  const { at, from, loops } = linearStrip(strip, shape)
  if (loops.length > mostDimensions) return undefined
  const counts = loops.map(([count]) => count)
  const [dst, src] = [
    gridOf(
      made.tensor,
      at,
      counts,
      loops.map(([, step]) => step)
    ),
    gridOf(
      source.tensor,
      from,
      counts,
      loops.map(([, , step]) => step)
    )
  ]
  return dst === undefined || src === undefined ? undefined : { dst, src }
}

/** Moves that make a tensor; undefined where it takes more than moves. */
const movesOf = (made: HeldTensor, { strips }: MappedTensor, sources: ReadonlyMap<string, HeldTensor>) => {
  const moves: Array<Move> = []
  for (const strip of strips) {
    if (strip.source === undefined) continue
    const move = moveOf(made, strip, sources.get(strip.source))
    if (move === undefined) return undefined
    moves.push(move)
  }
  return moves
}

const silent = () => Effect.void

/**
 * Reads the sources of all that is to be made, and gives what writes files from them. Memory is freed with the scope. Fails as
 * reading does, or with the engine's error.
 */
export const deviceFiles = Effect.fnUntraced(function* (
  model: Model,
  group: ProcessGroupShape,
  made: ReadonlyArray<MappedTensor>
): Effect.fn.Return<
  FileWriter,
  CheckpointError | ModelError | TensorError | ProcessGroupError,
  TensorEngine | Scope.Scope
> {
  const engine = yield* TensorEngine
  const held = yield* allocateTensors(sourcesOf(model, made).map(wholeLocal))
  yield* loadTensors(model, group, held, silent, true)
  const sources = new Map(held.map((one) => [one.local.name, one]))

  const make = Effect.fnUntraced(function* (own: Model, tensors: ReadonlyArray<MappedTensor>) {
    const into = yield* allocateTensors(tensors.map(wholeLocal))
    const moves: Array<Move & { readonly name: string }> = []
    const read: Array<HeldTensor> = []
    for (const [at, tensor] of tensors.entries()) {
      const one = into[at]!
      const own = movesOf(one, tensor, sources)
      if (own === undefined) read.push(one)
      else {
        if (tensor.strips.some(({ source }) => source === undefined)) yield* engine.fill(one.tensor, 0)
        moves.push(...own.map((move) => ({ ...move, name: tensor.name })))
      }
    }
    yield* engine.copy(moves.map(({ dst, src }) => ({ dst, src })))
    const digests = yield* digestParts(
      group,
      moves.flatMap(({ dst, src }) => [{ tensor: dst }, { tensor: src }])
    )
    const wrong = moves.find((_, at) => digests[2 * at] !== digests[2 * at + 1])
    if (wrong !== undefined)
      return yield* modelError("Different", {
        paramName: wrong.name,
        op: "convert",
        detail: "What the device moved is not what it was moved from.",
        remedy: "Run again; if it happens again, test the memory of the device."
      })
    yield* loadTensors(own, group, read, silent, true)
    return into
  })

  return (own, _, file, { tensors }, metadata) =>
    Effect.gen(function* () {
      yield* writeVerified(group, file, yield* make(own, tensors), metadata, new Map())
    }).pipe(Effect.scoped, Effect.provideService(TensorEngine, engine))
})
