// SPDX-License-Identifier: Apache-2.0
/**
 * Which elements of a model a rank must hold, and where: element by element from what the structure says of heads, widths,
 * groups, experts and layers. Written apart from what lays models out, so that one can be held against the other.
 *
 * Invariant: nothing here looks at layouts, plans or cuts.
 */

import type { Run } from "../describe/DimLayout.ts"
import type { ModelStructure, Module, ModuleKind, Stack } from "../describe/ModelStructure.ts"
import type { DimMap } from "../forms/Form.ts"
import { expertDegrees, type ParallelConfig, type RankPlace } from "../layout/ParallelConfig.ts"
import type { Placement } from "../placement/Placement.ts"

/** What a rank must hold of one tensor. */
export interface TracedTensor {
  readonly name: string
  /** The tensor of the model whose elements these are. */
  readonly storedAs: string
  readonly shape: ReadonlyArray<number>
  /** Per dimension, the place in the whole of each place here, -1 for padding; undefined where they are the same. */
  readonly places: ReadonlyArray<ReadonlyArray<number> | undefined>
}

/** Whether a rank at `position` of `degree` works with unit `unit` of `count`. */
const needsUnit = (unit: number, count: number, position: number, degree: number): boolean =>
  count % degree === 0
    ? Math.floor((unit * degree) / count) === position
    : Math.floor((position * count) / degree) === unit

/** Places of the weight's dimension that a rank holds, in order. */
const weightPlaces = (
  runs: ReadonlyArray<Run>,
  position: number,
  degree: number,
  { vocabulary }: Placement
): ReadonlyArray<number> => {
  const [first] = runs
  if (first?.axis === "vocabulary" && runs.length === 1)
    return vocabularyPlaces(first.count, position, degree, vocabulary)
  const places: Array<number> = []
  let start = 0
  for (const { count, unit } of runs) {
    for (let at = 0; at < count; at++) {
      if (!needsUnit(at, count, position, degree)) continue
      for (let element = 0; element < unit; element++) places.push(start + at * unit + element)
    }
    start += count * unit
  }
  return places
}

/** Rows of the vocabulary in shares of the rounded-up length; without padding the last ranks hold what is left. */
const vocabularyPlaces = (
  rows: number,
  position: number,
  degree: number,
  padding: Placement["vocabulary"]
): ReadonlyArray<number> => {
  let total = rows
  const step = padding === undefined ? 1 : padding.of === "share" ? padding.multipleOf * degree : padding.multipleOf
  while (total % step !== 0) total++
  const share = Math.ceil(total / degree)
  const places: Array<number> = []
  for (let at = position * share; at < (position + 1) * share; at++) {
    if (at < rows) places.push(at)
    else if (padding !== undefined) places.push(-1)
  }
  return places
}

/** Places of a stored dimension that belong to places of the weight. */
const storedPlaces = (
  places: ReadonlyArray<number>,
  length: number,
  stored: number,
  { per, holds }: DimMap
): ReadonlyArray<number> => {
  if (per === 1 && holds === 1) return places
  const held: Array<number> = []
  let last = -1
  for (const place of places) {
    if (place < 0) continue
    const block = Math.floor(place / per)
    if (block === last) continue
    last = block
    for (let at = 0; at < holds; at++) if (block * holds + at < stored) held.push(block * holds + at)
  }
  const padding = places.filter((place) => place < 0).length
  for (let at = 0; at < Math.floor((padding * holds) / per); at++) held.push(-1)
  return length === 0 ? [] : held
}

/** Whether a rank has an expert. */
const hasExpert = (
  expert: number,
  count: number,
  rank: number,
  ranks: number,
  layer: number | undefined,
  choice: NonNullable<Placement["experts"]> = "linear"
): boolean => {
  if (ranks === 1) return true
  if (choice === "round_robin") return expert % ranks === rank
  if (choice === "ceil") return Math.floor(expert / Math.ceil(count / ranks)) === rank
  const maps = choice as { readonly [layer: string]: ReadonlyArray<ReadonlyArray<number>> }
  const map: ReadonlyArray<ReadonlyArray<number>> | undefined = Array.isArray(choice)
    ? choice
    : choice === "linear" || layer === undefined
      ? undefined
      : maps[String(layer)]
  if (map !== undefined) return map[rank]?.includes(expert) === true
  // The first ranks have one more where experts do not divide.
  let first = 0
  for (let at = 0; at < rank; at++) first += Math.floor(count / ranks) + (at < count % ranks ? 1 : 0)
  const own = Math.floor(count / ranks) + (rank < count % ranks ? 1 : 0)
  return expert >= first && expert < first + own
}

/** Experts of a stack on a rank, in the order in which it has them. */
const expertPlaces = (
  count: number,
  rank: number,
  ranks: number,
  layer: number | undefined,
  choice: Placement["experts"]
): ReadonlyArray<number> => {
  const stated =
    ranks === 1 || choice === undefined || typeof choice === "string"
      ? undefined
      : Array.isArray(choice)
        ? (choice[rank] as ReadonlyArray<number>)
        : (choice as { readonly [layer: string]: ReadonlyArray<ReadonlyArray<number>> })[String(layer)]?.[rank]
  if (stated !== undefined) return stated
  const held: Array<number> = []
  for (let expert = 0; expert < count; expert++)
    if (hasExpert(expert, count, rank, ranks, layer, choice)) held.push(expert)
  return held
}

/** The stage of a layer. */
const stageOfLayer = (
  { kind, layers }: Stack,
  layer: number,
  stages: number,
  { stages: choice = "first", virtual = 1 }: Placement
): number => {
  if (kind === "mtp") return stages - 1
  if (kind !== "language" && kind !== "encoder") return 0
  if (stages === 1) return 0
  if (typeof choice !== "string" && Array.isArray(choice[0]))
    return (choice as ReadonlyArray<ReadonlyArray<number>>).findIndex((own) => own.includes(layer))
  const parts = stages * virtual
  const more = layers.length % parts
  const sizeOf = (part: number): number => {
    if (typeof choice !== "string") return choice[part] as number
    const isLonger =
      choice === "first"
        ? part < more
        : choice === "last"
          ? parts - part <= more
          : part !== parts - 1 && parts - 1 - part <= more
    return Math.floor(layers.length / parts) + (isLonger ? 1 : 0)
  }
  let left = layers.indexOf(layer)
  for (let part = 0; ; part++) {
    if (left < sizeOf(part)) return part % stages
    left -= sizeOf(part)
  }
}

/** How many experts a list of named ones has. */
const countNamed = (modules: ReadonlyArray<Module>): ReadonlyMap<string, number> => {
  const counts = new Map<string, number>()
  for (const { expert, expertsOf } of modules)
    if (expert !== undefined) counts.set(expertsOf!, Math.max(expert + 1, counts.get(expertsOf!) ?? 0))
  return counts
}

interface Degrees {
  readonly config: ParallelConfig
  readonly placement: Placement
  readonly place: RankPlace
}

/** Places of each tensor of a kind of module along the dimension that is cut; the same for all modules of the kind. */
const cutPlaces = (
  kind: ModuleKind,
  tensors: Module["tensors"],
  { config, placement, place }: Degrees,
  isExpert: boolean
) => {
  const dim = kind.runs.findIndex((runs) => runs.length > 0)
  const degree = isExpert ? expertDegrees(config).etp : config.tp
  const isPadded = dim >= 0 && placement.vocabulary !== undefined && kind.runs[dim]![0]!.axis === "vocabulary"
  if (dim < 0 || (degree === 1 && !isPadded)) return tensors.map(() => undefined)
  const weight = weightPlaces(kind.runs[dim]!, isExpert ? place.expertTp : place.tp, degree, placement)
  return tensors.map(({ shape }, at) => {
    const own = kind.form.parts[at]!.maps.findIndex((map) => map.dim === dim)
    if (own < 0) return undefined
    return { own, places: storedPlaces(weight, kind.form.shape[dim]!, shape[own]!, kind.form.parts[at]!.maps[own]!) }
  })
}

/** Everything that the rank at a place must hold. Tensors that rules of a user cut are left out by the caller. */
export const traceRank = (
  structure: ModelStructure,
  config: ParallelConfig,
  placement: Placement,
  place: RankPlace
): ReadonlyArray<TracedTensor> => {
  const { ep } = expertDegrees(config)
  const named = countNamed(structure.modules)
  const known = new Map<ModuleKind, ReturnType<typeof cutPlaces>>()
  const traced: Array<TracedTensor> = []
  const trace = (module: Module, stage: number, nameOf: (name: string) => string): void => {
    if (stage !== place.stage) return
    const { kind, tensors, expert, layer } = module
    const isExpert = expert !== undefined || kind.expertDim !== undefined
    if (expert !== undefined) {
      const count = named.get(module.expertsOf!)!
      if (!hasExpert(expert, count, place.expertEp, ep, layer, placement.experts)) return
    }
    const cuts = known.get(kind) ?? cutPlaces(kind, tensors, { config, placement, place }, isExpert)
    known.set(kind, cuts)
    for (const [at, { name, shape }] of tensors.entries()) {
      const { maps } = kind.form.parts[at]!
      const expertAt = kind.expertDim === undefined ? -1 : maps.findIndex((map) => map.dim === kind.expertDim)
      const cut = cuts[at]
      const places = shape.map((length, dim) =>
        dim === expertAt && !shape.includes(0)
          ? expertPlaces(length, place.expertEp, ep, layer, placement.experts)
          : dim === cut?.own
            ? cut.places
            : undefined
      )
      if (expertAt >= 0 && places[expertAt]?.length === 0) continue
      const own = shape.map((length, dim) => places[dim]?.length ?? length)
      traced.push({ name: nameOf(name), storedAs: name, shape: own, places })
    }
  }
  const owners = new Map(structure.aliases.map(({ name, of }) => [of, name]))
  for (const module of structure.modules) {
    const { stack, layer } = module
    const isInLayer = stack !== undefined && layer !== undefined
    const outside = module.stage === "last" ? config.pp - 1 : 0
    trace(
      module,
      isInLayer ? stageOfLayer(structure.stacks[stack]!, layer, config.pp, placement) : outside,
      (name) => name
    )
    if (module.tensors.some(({ name }) => owners.has(name)))
      trace(module, config.pp - 1, (name) => owners.get(name) ?? name)
  }
  return traced
}
