// SPDX-License-Identifier: Apache-2.0
/**
 * The way back: from what ranks hold of a model under the names of the other side to the checkpoint's tensors, made of strips
 * over those. Every strip is turned round.
 *
 * Invariant: an element that is held several times comes from the first that holds it; padding comes from nobody. No element
 * of a checkpoint's tensor is left out.
 */

import * as Result from "effect/Result"
import { type ModelTensor, worldSizeOf } from "../layout/ModelLayout.ts"
import { placeOf } from "../layout/ParallelConfig.ts"
import { type MappingError, mappingError } from "./MappingError.ts"
import type { MappedModel } from "./mapModel.ts"
import { firstHole, type Spread, spread, without } from "./overlap.ts"
import { type Assembly, inverseScalar, type Strip } from "./Strips.ts"
import { turnedStrips } from "./turnedStrips.ts"

/** A tensor that somebody holds, made of strips of the checkpoint's. */
export interface HeldTensor extends Assembly {
  /** By which the strips of the way back name it. */
  readonly name: string
}

/** A tensor of the checkpoint, made of strips of tensors that are held. */
export interface ReturnedTensor extends ModelTensor, Assembly {}

/** The name of what a rank holds of a tensor. */
export const shardName = (rank: number, name: string): string => `${rank}:${name}`

/** The rank and the tensor of such a name. */
export const parseShardName = (name: string): { readonly rank: number; readonly name: string } => {
  const at = name.indexOf(":")
  return { rank: Number(name.slice(0, at)), name: name.slice(at + 1) }
}

/** The same with the function that leads back. */
const undone = ({ scalar, ...strip }: Strip): Strip => {
  const back = inverseScalar(scalar)
  return back === undefined ? strip : { ...strip, scalar: back }
}

/** What is written of a tensor: strips in the order in which they came, without what earlier ones have. */
const writtenStrips = () => {
  const kept: Array<Spread> = []
  const keys = new Set<string>()
  return {
    kept,
    add: (strip: Strip): void => {
      const own = spread(strip)
      if (keys.has(own.key)) return
      let parts: ReadonlyArray<Spread> = [own]
      for (const other of kept) {
        parts = parts.flatMap((part) => without(part, other))
        if (parts.length === 0) return
      }
      for (const part of parts) {
        keys.add(part.key)
        kept.push(part)
      }
    }
  }
}

/** As much of the tensors of a checkpoint as is held; elements that nobody holds are in no strip. */
export const heldPart = (
  held: ReadonlyArray<HeldTensor>,
  wanted: ReadonlyArray<ModelTensor>
): Result.Result<ReadonlyArray<ReturnedTensor>, MappingError> => {
  const tensors = new Map(wanted.map((tensor) => [tensor.name, { tensor, written: writtenStrips() }]))
  for (const one of held) {
    for (const strip of one.strips) {
      const target = strip.source === undefined ? undefined : tensors.get(strip.source)
      if (target === undefined) continue
      const strips = turnedStrips(strip, one, target.tensor.shape)
      if (strips === undefined) {
        return mappingError(
          "out_of_bounds",
          target.tensor.name,
          undefined,
          `${one.name} is made of elements behind its end.`,
          "Check the shapes of the checkpoint."
        )
      }
      for (const back of strips) target.written.add(undone(back))
    }
  }
  return Result.succeed(
    [...tensors.values()].map(({ tensor, written }) => ({ ...tensor, strips: written.kept.map(({ strip }) => strip) }))
  )
}

/** The tensors of a checkpoint from what is held. Fails where nobody holds an element of one of them. */
export const inverse = (
  held: ReadonlyArray<HeldTensor>,
  wanted: ReadonlyArray<ModelTensor>
): Result.Result<ReadonlyArray<ReturnedTensor>, MappingError> => {
  const made = heldPart(held, wanted)
  if (Result.isFailure(made)) return made
  for (const tensor of made.success) {
    const hole = firstHole(tensor.shape, tensor.strips)
    if (hole !== undefined) {
      return mappingError(
        "unwritten",
        tensor.name,
        undefined,
        `Nobody holds ${hole.count} of its elements, the first at ${hole.first}.`,
        "Name all ranks of the layout, or leave the tensor out."
      )
    }
  }
  return made
}

/** What all ranks of a layout hold, rank by rank, under names of shards. Replicas of a rank are left out. */
export const shardsOf = ({ config, rankAt }: MappedModel): Result.Result<ReadonlyArray<HeldTensor>, MappingError> => {
  const shards: Array<HeldTensor> = []
  const seen = new Set<string>()
  for (let rank = 0; rank < worldSizeOf(config); rank++) {
    const place = placeOf(config, 0, rank)
    const { stage, tp, expertTp, expertEp } = place
    const key = [stage, tp, expertTp, expertEp].join()
    if (seen.has(key)) continue
    seen.add(key)
    const mapped = rankAt(place)
    if (Result.isFailure(mapped)) return Result.fail(mapped.failure)
    for (const { name, shape, strips } of mapped.success.tensors)
      shards.push({ name: shardName(rank, name), shape, strips })
  }
  return Result.succeed(shards)
}

/** The checkpoint from what is held of a mapped model. Tensors that the mapping ignores are not made. */
export const wayBackOf = (
  { matched }: MappedModel,
  held: ReadonlyArray<HeldTensor>,
  tensors: ReadonlyArray<ModelTensor>
): Result.Result<ReadonlyArray<ReturnedTensor>, MappingError> => {
  const ignored = new Set(matched.ignored)
  return inverse(
    held,
    tensors.filter(({ name }) => !ignored.has(name))
  )
}

/** The checkpoint from what all ranks of a layout hold. */
export const wayBack = (
  model: MappedModel,
  tensors: ReadonlyArray<ModelTensor>
): Result.Result<ReadonlyArray<ReturnedTensor>, MappingError> =>
  Result.flatMap(shardsOf(model), (shards) => wayBackOf(model, shards, tensors))
