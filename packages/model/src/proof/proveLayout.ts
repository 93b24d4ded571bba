// SPDX-License-Identifier: Apache-2.0
/**
 * Holds what a rank of a layout says that it has against what the structure says that it must have: every tensor, and of
 * its elements all edges and a sample, or all. With the bytes compared piece by piece, this makes "verified" mean the
 * layout too.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import { findRule } from "@tensorferry/core/layout/ShardingRules"
import * as Result from "effect/Result"
import type { Cutting } from "../Cutting.ts"
import type { LocalTensor, ModelLayout, ModelTensor } from "../layout/ModelLayout.ts"
import { placeOf } from "../layout/ParallelConfig.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { structureOf } from "../placement/cutModel.ts"
import { type TracedTensor, traceRank } from "./traceRank.ts"

/** How many elements are traced. */
export type ProofExtent = "sample" | "all"

/** What was traced. */
export interface LayoutProof {
  readonly tensors: number
  readonly elements: number
}

/** Tensors of fewer elements are traced whole. */
const smallTensor = 256
/** Elements of a larger one, beside its edges. */
const sampled = 24
/** Places at each end of a run. */
const edge = 1

/** Numbers that are the same on every run for the same name. */
const seeded = (name: string): (() => number) => {
  let state = 0x811c9dc5
  for (let at = 0; at < name.length; at++) state = Math.imul(state ^ name.charCodeAt(at), 0x01000193)
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) | 0
    return (state >>> 0) / 2 ** 32
  }
}

const fault = (rank: Rank, paramName: string, detail: string): ModelError =>
  modelError("Different", {
    rank,
    paramName,
    op: "prove",
    detail,
    remedy: "Do not use the result. Report this with the command line and config.json."
  })

/** Where an element of the local tensor lies in the whole one, as the layout says. */
const placeIn = ({ pieces }: LocalTensor, element: ReadonlyArray<number>): ReadonlyArray<number> | undefined => {
  for (const { local, global } of pieces) {
    if (element.every((at, dim) => at >= local[dim]![0] && at < local[dim]![1]))
      return element.map((at, dim) => at - local[dim]![0] + global[dim]![0])
  }
  return undefined
}

/** Places along one dimension that are looked at in a sample: both ends, and those beside every jump. */
const edgesOf = (places: ReadonlyArray<number> | undefined, length: number): ReadonlyArray<number> => {
  const found = new Set([0, length - 1])
  for (let at = 1; at < (places?.length ?? 0); at++) {
    if (places![at] === places![at - 1]! + 1) continue
    for (let near = at - edge; near < at + edge; near++) found.add(near)
  }
  return [...found].filter((at) => at >= 0 && at < length)
}

/** Elements of a tensor to trace. */
const elementsOf = function* (
  { name, shape, places }: TracedTensor,
  extent: ProofExtent
): Generator<ReadonlyArray<number>> {
  const total = shape.reduce((all, length) => all * length, 1)
  if (total === 0) return
  if (extent === "all" || total <= smallTensor) {
    const element = shape.map(() => 0)
    for (let count = 0; count < total; count++) {
      yield element
      for (let dim = shape.length - 1; dim >= 0; dim--) {
        if (++element[dim]! < shape[dim]!) break
        element[dim] = 0
      }
    }
    return
  }
  for (const [dim, own] of places.entries()) {
    for (const at of edgesOf(own, shape[dim]!)) {
      yield shape.map((_, other) => (other === dim ? at : 0))
      yield shape.map((length, other) => (other === dim ? at : length - 1))
    }
  }
  const random = seeded(name)
  for (let count = 0; count < sampled; count++) yield shape.map((length) => Math.floor(random() * length))
}

const checkTensor = (
  rank: Rank,
  traced: TracedTensor,
  local: LocalTensor | undefined,
  extent: ProofExtent
): Result.Result<number, ModelError> => {
  const { name, storedAs, shape, places } = traced
  if (local === undefined) return Result.fail(fault(rank, name, `Rank ${rank} must hold it and does not.`))
  if (local.storedAs !== storedAs || local.shape.join() !== shape.join()) {
    return Result.fail(
      fault(
        rank,
        name,
        `Rank ${rank} holds [${local.shape.join(",")}] of ${local.storedAs}; by the structure it is [${shape.join(",")}] of ${storedAs}.`
      )
    )
  }
  let count = 0
  for (const element of elementsOf(traced, extent)) {
    const wanted = element.map((at, dim) => (places[dim] === undefined ? at : places[dim]![at]!))
    const isPadding = wanted.includes(-1)
    const found = placeIn(local, element)
    count++
    if (isPadding ? found === undefined : found !== undefined && wanted.every((at, dim) => at === found[dim])) continue
    const [theirs, ours] = [
      isPadding ? "padding" : `element [${wanted.join(",")}]`,
      found === undefined ? "padding" : `element [${found.join(",")}]`
    ]
    return Result.fail(
      fault(rank, name, `Rank ${rank} has ${ours} at [${element.join(",")}]; by the structure it is ${theirs}.`)
    )
  }
  return Result.succeed(count)
}

/**
 * Proves one rank of a layout. Undefined where no family says what its tensors mean. Tensors that a user's rules cut are
 * the user's word and are left out.
 */
export const proveLayout = (
  layout: ModelLayout,
  tensors: ReadonlyArray<ModelTensor>,
  rules: Cutting,
  rank: Rank,
  extent: ProofExtent
): Result.Result<LayoutProof | undefined, ModelError> => {
  const { family } = rules
  if (family === undefined) return Result.succeed(undefined)
  const described = structureOf(tensors, family)
  if (Result.isFailure(described)) return Result.succeed(undefined)
  const structure = described.success
  const stated = { rules: rules.rules }
  const isRuled = (name: string): boolean => rules.rules.length > 0 && findRule(stated, name) !== undefined
  const place = placeOf(layout.config, layout.ranks[0]!, rank)
  const locals = new Map(layout.tensorsOf(rank).map((local) => [local.name, local]))
  const left = new Set(locals.keys())
  let elements = 0
  let count = 0
  for (const traced of traceRank(structure, layout.config, family.placement, place)) {
    left.delete(traced.name)
    if (isRuled(traced.storedAs)) continue
    const checked = checkTensor(rank, traced, locals.get(traced.name), extent)
    if (Result.isFailure(checked)) return Result.fail(checked.failure)
    elements += checked.success
    count += 1
  }
  const unknown = new Set(structure.unknown.map(({ tensor }) => tensor))
  const aliases = new Set((rules.aliases ?? []).map(({ name }) => name))
  for (const name of left) {
    if (isRuled(name) || unknown.has(name) || aliases.has(name)) continue
    return Result.fail(fault(rank, name, `Rank ${rank} holds it; by the structure it is on other ranks.`))
  }
  return Result.succeed({ tensors: count, elements })
}
