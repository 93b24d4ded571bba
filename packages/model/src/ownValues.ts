// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors that say something of their weight's shape or groups, as `weight_shape` and `g_idx` do: a shard's file has the
 * values of the shard, as who reads it by itself expects, and the manifest says by how much those of the whole differ.
 *
 * Invariant: what a rank holds in memory, and what travels, are the whole's values; only files have the shard's.
 */
import type { Interval } from "@tensorferry/core/base/Region"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Cutting } from "./Cutting.ts"
import type { ModelStructure, Module } from "./describe/ModelStructure.ts"
import { listValues, type StatedValues, statedValues } from "./forms/statedValues.ts"
import type { HeldTensor } from "./HeldTensors.ts"
import type { LocalTensor } from "./layout/ModelLayout.ts"
import type { Model } from "./Model.ts"
import { type ModelError, modelError } from "./ModelError.ts"
import { structureOf } from "./placement/cutModel.ts"
import { mapIntegers, type Shift } from "./Shift.ts"

/** The one interval of a weight that a rank's part of its words is of; undefined where it has several, or all. */
const heldCut = (
  { kind: { form }, tensors }: Module,
  locals: ReadonlyMap<string, LocalTensor>
): { readonly dim: number; readonly interval: Interval } | undefined => {
  const at = form.parts.findIndex(({ kind }) => kind === "packed")
  const local = at < 0 ? undefined : locals.get(tensors[at]!.name)
  if (local?.pieces.length !== 1) return undefined
  const { shape } = tensors[at]!
  const { global } = local.pieces[0]!
  for (const [own, { dim, holds, per }] of form.parts[at]!.maps.entries()) {
    const [from, to] = global[own]!
    if (dim === undefined || (from === 0 && to === shape[own])) continue
    const place = (stored: number): number => (stored === shape[own] ? form.shape[dim]! : (stored / holds) * per)
    return { dim, interval: [place(from), place(to)] }
  }
  return undefined
}

/** What files of a rank must have, and what the whole has. */
interface Stated {
  readonly values: StatedValues
  readonly whole: StatedValues
}

/** What the tensors of this rank state of shards that they belong to, by name. */
const statedOf = (structure: ModelStructure, locals: ReadonlyMap<string, LocalTensor>): ReadonlyMap<string, Stated> => {
  const found = new Map<string, Stated>()
  for (const module of structure.modules) {
    const { form } = module.kind
    if (!form.parts.some(({ kind }) => kind === "weightShape" || kind === "groupIndex")) continue
    const cut = heldCut(module, locals)
    if (cut === undefined) continue
    for (const [part, { name }] of module.tensors.entries()) {
      const [values, whole] = [statedValues(form, part, cut), statedValues(form, part, undefined)]
      if (values !== undefined && whole !== undefined && locals.has(name)) found.set(name, { values, whole })
    }
  }
  return found
}

/** What is taken off the integers of a tensor, whose bytes are changed; nothing where they are the shard's already. */
const takeOff = (
  rank: number,
  { dtype, name }: LocalTensor,
  bytes: Uint8Array,
  { values, whole }: Stated
): Result.Result<Shift | undefined, ModelError> => {
  const before: Array<number> = []
  mapIntegers(dtype, bytes, (value) => {
    before.push(value)
    return value
  })
  const own = listValues(values)
  const isShape = values._tag === "Shape"
  if (isShape && before.join() !== listValues(whole).join()) {
    return Result.fail(
      modelError("InvalidLayout", {
        rank,
        paramName: name,
        detail: `It states a weight of [${before.join(",")}], which was cut as one of [${listValues(whole).join(",")}].`,
        remedy: "Take the checkpoint and the config.json of one model, or leave the weight whole."
      })
    )
  }
  const differences = before.map((value, at) => value - (own[at] ?? 0))
  // Groups that are not in order say nothing of the shard, and no engine asks them.
  const isOne = differences.every((one) => one === differences[0])
  if (own.length !== before.length || differences.every((one) => one === 0) || !(isShape || isOne)) {
    return Result.succeed(undefined)
  }
  const shift = isOne ? differences.slice(0, 1) : differences
  mapIntegers(dtype, bytes, (value, at) => value - shift[isOne ? 0 : at]!)
  return Result.succeed(shift)
}

/**
 * Gives tensors in memory the values that the files of this rank must have; by name what was taken off. Fails with
 * InvalidLayout where a weight is not of the shape by which it was cut, or as the engine does.
 */
export const takeOwnValues = Effect.fnUntraced(function* (
  model: Model,
  { family }: Cutting,
  rank: number,
  held: ReadonlyArray<HeldTensor>
) {
  const shifts = new Map<string, Shift>()
  const structure = family === undefined ? undefined : structureOf(model.tensors, family)
  if (structure === undefined || Result.isFailure(structure)) return shifts
  const engine = yield* TensorEngine
  const stated = statedOf(structure.success, new Map(held.map(({ local }) => [local.name, local])))
  for (const { bytes, local, tensor } of held) {
    const found = stated.get(local.name)
    if (found === undefined || (local.dtype !== "int64" && local.dtype !== "int32")) continue
    const change = Effect.gen(function* () {
      if (bytes !== undefined) return yield* Effect.fromResult(takeOff(rank, local, bytes, found))
      const copy = new Uint8Array(tensorByteLength(tensor))
      const view = Result.getOrThrow(tensorView(yield* engine.wrapHost(copy), tensor.dtype, tensor.shape))
      yield* engine.copy([{ dst: view, src: tensor }])
      const shift = yield* Effect.fromResult(takeOff(rank, local, copy, found))
      if (shift !== undefined) yield* engine.copy([{ dst: tensor, src: view }])
      return shift
    })
    const shift = yield* Effect.scoped(change)
    if (shift !== undefined) shifts.set(local.name, shift)
  }
  return shifts
})
