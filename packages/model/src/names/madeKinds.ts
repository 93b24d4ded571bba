// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors that a mapping makes, by kinds: what one rule makes of tensors that are shaped and placed alike differs by names and
 * stages only, as layers do. A kind is assembled once, in the names of its first tensor.
 */
import type { Shape } from "@tensorferry/core/base/Region"
import type * as Result from "effect/Result"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import type { PlacedTensor } from "../layout/TensorPlacement.ts"
import type { MappingError } from "./MappingError.ts"
import { type MadeTensor, unstacked } from "./matchRules.ts"
import type { Assembly, Strip } from "./Strips.ts"

/** What a rank holds of a tensor; undefined where it holds none. */
export type Assembled = Result.Result<Assembly | undefined, MappingError>

/** Tensors that are made alike. */
export interface MadeKind {
  readonly number: number
  /** In its names the kind is assembled. */
  readonly first: MadeTensor
  /** The first one's sources, in the order in which every one of the kind has its own. */
  readonly sources: ReadonlyArray<string>
  readonly isExpert: boolean
  /** What ranks hold, by where they stand in the groups that cut it. */
  readonly assembled: Map<string, Assembled>
}

/** Numbers for values, equal for equal ones. */
const numbering = <A>() => {
  const known = new Map<A, number>()
  return (value: A): number => {
    const found = known.get(value) ?? known.size
    known.set(value, found)
    return found
  }
}

/** Finds the kind of each tensor that is made, where its sources lie being known. */
export const kindTable = (placed: ReadonlyMap<string, PlacedTensor>) => {
  const kinds = new Map<string, MadeKind>()
  const numberOf = numbering<unknown>()
  const texts = new Map<Shape, string>()
  const shapeText = (shape: Shape): string => {
    const found = texts.get(shape) ?? shape.join("x")
    texts.set(shape, found)
    return found
  }
  const placeText = (name: string): string => {
    const own = placed.get(name)
    if (own === undefined) return "-"
    const { dim, experts, rule, shape } = own
    const cut = `${numberOf(rule)}.${dim ?? "-"}.${shapeText(shape)}`
    if (experts === undefined) return cut
    const { _tag: tag, count, held } = experts
    return `${cut}.${tag}.${count}.${numberOf(held)}.${tag === "Fused" ? experts.dim : "-"}`
  }
  return (made: MadeTensor, sources: ReadonlyArray<ModelTensor>): MadeKind => {
    const { bindings, rule } = made
    // A rule that names a tensor and does nothing to it is like all others of that sort.
    const isPlain = typeof rule.from === "string"
    const key = [isPlain ? "" : `${numberOf(rule)}`, rule.dtype]
    for (const [at] of unstacked(rule.from)) key.push(bindings.get(at))
    // Two sources that are one tensor are one in all of the kind.
    const order = new Map<string, number>()
    for (const [leaf, of] of made.sources) {
      if (!isPlain) key.push(leaf)
      for (const [number, { dtype, name, shape }] of of) {
        const at = order.get(name) ?? order.size
        order.set(name, at)
        key.push(`${number}:${dtype}:${shapeText(shape)}:${placeText(name)}:${at}`)
      }
    }
    const text = key.join("|")
    const known = kinds.get(text)
    if (known !== undefined) return known
    const names = sources.map(({ name }) => name)
    const isExpert = names.some((name) => placed.get(name)?.experts !== undefined)
    const kind: MadeKind = { number: kinds.size, first: made, sources: names, isExpert, assembled: new Map() }
    kinds.set(text, kind)
    return kind
  }
}

/** The kind's strips in the names of another tensor of it. */
export const renamed = (
  strips: ReadonlyArray<Strip>,
  kind: MadeKind,
  sources: ReadonlyArray<string>
): ReadonlyArray<Strip> => {
  if (kind.sources.every((name, at) => name === sources[at])) return strips
  const names = new Map(kind.sources.map((name, at) => [name, sources[at]!]))
  return strips.map((strip) => (strip.source === undefined ? strip : { ...strip, source: names.get(strip.source)! }))
}
