// SPDX-License-Identifier: Apache-2.0
/**
 * A model with deltas applied to it, one after the other, as a model: its tensors are made when they are read.
 *
 * Invariant: deltas follow one another and the base without a gap, which is known before a tensor is read; and bytes are given
 * out only after they had the digest that each delta states, before it and after it.
 */
import { tensorHash } from "@tensorferry/core/base/Digest"
import { equalShapes, formatShape, fullRegion } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import type { Model } from "../Model.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { type DeltaFile, deltaShapeOf } from "./DeltaFile.ts"
import { applyDelta } from "./DeltaPayload.ts"

/** A base and the deltas that lead from it to a later version. */
export interface DeltaChain {
  /** The version that the first delta was made from. */
  readonly base: Model
  /** In their order; each leads to the base of the next. */
  readonly deltas: readonly [DeltaFile, ...ReadonlyArray<DeltaFile>]
  /** The dense bytes of a tensor in the last version. */
  readonly readTensor: (tensor: ModelTensor) => Effect.Effect<Uint8Array, CheckpointError | ModelError>
}

const wrongBase = (file: string, detail: string, paramName?: string): ModelError =>
  modelError("WrongBase", {
    file,
    detail,
    remedy: "Apply deltas in their order, each to the version that it was made from; or take the full model.",
    ...(paramName === undefined ? {} : { paramName })
  })

/** Fails where a delta does not follow the one before it. */
const checkOrder = (deltas: ReadonlyArray<DeltaFile>): Effect.Effect<void, ModelError> => {
  for (const [at, delta] of deltas.slice(1).entries()) {
    const before = deltas[at]!
    if (delta.base === before.result) continue
    return Effect.fail(
      wrongBase(
        delta.path,
        `It was made from version ${delta.base.slice(0, 12)}, and ${before.path} leads to ${before.result.slice(0, 12)}.`
      )
    )
  }
  return Effect.void
}

/** Fails where the base has other tensors than the first delta was made from. */
const checkTensors = (base: Model, { path, tensors }: DeltaFile): Effect.Effect<void, ModelError> => {
  for (const { name, dtype, shape } of base.tensors) {
    const stated = tensors.get(name)
    if (stated === undefined) return Effect.fail(wrongBase(path, `It knows no such tensor of ${base.path}.`, name))
    if (stated.dtype === dtype && equalShapes(stated.shape, shape)) continue
    const types = `${stated.dtype}${formatShape(stated.shape)}, and ${base.path} has ${dtype}${formatShape(shape)}`
    return Effect.fail(wrongBase(path, `It was made from ${types}.`, name))
  }
  const names = new Set(base.tensors.map(({ name }) => name))
  const lost = [...tensors.keys()].find((name) => !names.has(name))
  return lost === undefined
    ? Effect.void
    : Effect.fail(wrongBase(path, `${base.path} lacks a tensor that it was made from.`, lost))
}

/** Deltas in the order in which they are applied. Fails with WrongBase where they do not fit the base or one another. */
export const chainDeltas = Effect.fn("chainDeltas")(function* (
  base: Model,
  deltas: readonly [DeltaFile, ...ReadonlyArray<DeltaFile>]
): Effect.fn.Return<DeltaChain, ModelError> {
  yield* checkOrder(deltas)
  yield* checkTensors(base, deltas[0])
  return {
    base,
    deltas,
    readTensor: Effect.fnUntraced(function* (tensor) {
      const { name, dtype, shape } = tensor
      const { elementBytes, elements } = deltaShapeOf(tensor)
      const bytes = new Uint8Array(elements * elementBytes)
      yield* base.readRegion(name, fullRegion(shape), bytes)
      const digest = () => tensorHash(dtype, shape).update(bytes).digest("hex")
      if (digest() !== deltas[0].tensors.get(name)!.base) {
        return yield* wrongBase(deltas[0].path, `${base.path} does not hold the version that it was made from.`, name)
      }
      for (const delta of deltas) {
        const stated = delta.tensors.get(name)!
        if (stated.base === stated.result) continue
        applyDelta(yield* delta.readChanges(name), bytes, elementBytes)
        if (digest() === stated.result) continue
        return yield* modelError("InvalidDelta", {
          file: delta.path,
          paramName: name,
          detail: "Its changes do not give the digest that it states of the result.",
          remedy: "Fetch the delta again, or take the full model."
        })
      }
      return bytes
    })
  }
})
