// SPDX-License-Identifier: Apache-2.0
/**
 * What ranks hold of a random mapping, by brute force: every recipe is a function from places to elements, asked place by
 * place. Shares no code with strips.
 */
import { elementCount } from "@tensorferry/core/base/Region"
import type { RandomMapping, RandomRule, Sharing } from "@tensorferry/testing/names/randomMapping"
import type { RandomRecipe } from "@tensorferry/testing/names/recipe"

type Place = ReadonlyArray<number>

/** A tensor as a function; elements are texts as "7" and "-exp(7)", zeros of padding are "0". */
interface Field {
  readonly shape: ReadonlyArray<number>
  readonly at: (place: Place) => string
}

/** A tensor of the other side, element by element in row-major order. */
export interface Expected {
  readonly shape: ReadonlyArray<number>
  readonly elements: ReadonlyArray<string>
}

interface Site {
  readonly mapping: RandomMapping
  readonly tp: number
  readonly expertTp: number
  readonly expertEp: number
  readonly stage: number
  readonly layer: number | undefined
  readonly expert: number | undefined
  readonly isWhole: boolean
  readonly allExperts: boolean
}

const range = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, at) => at)

const put = (place: Place, dim: number, ...by: ReadonlyArray<number>): Place => [
  ...place.slice(0, dim),
  ...by,
  ...place.slice(dim + 1)
]

/** Number of the first element of each tensor, from 1. */
export const firstNumbers = ({ tensors }: RandomMapping): ReadonlyMap<string, number> => {
  let next = 1
  return new Map(
    tensors.map(({ name, shape }) => {
      next += elementCount(shape)
      return [name, next - elementCount(shape)]
    })
  )
}

const leaf = (name: string, site: Site): Field | undefined => {
  const { mapping } = site
  const tensor = mapping.tensors.find((one) => one.name === name)
  if (tensor === undefined) return undefined
  const { shape } = tensor
  const first = firstNumbers(mapping).get(name)!
  const whole: Field = {
    shape,
    at: (place) => String(first + place.reduce((sum, one, dim) => sum * shape[dim]! + one, 0))
  }
  return site.isWhole ? whole : share(whole, mapping.sharing.get(name)!, site)
}

/** What a rank holds of a tensor, in its order; undefined entries are padding. */
const share = (whole: Field, sharing: Sharing, site: Site): Field => {
  const { degrees } = site.mapping
  const [position, degree] = sharing.isExpert ? [site.expertTp, degrees.etp] : [site.tp, degrees.tp]
  const held = whole.shape.map((length, dim): ReadonlyArray<number | undefined> => {
    if (sharing.isStack && dim === 0 && !site.allExperts)
      return range(length / degrees.ep).map((at) => site.expertEp * (length / degrees.ep) + at)
    if (dim !== sharing.dim) return range(length)
    if (sharing.padded !== undefined) {
      const rows = sharing.padded / degree
      return range(rows).map((at) => (position * rows + at < length ? position * rows + at : undefined))
    }
    const block = length / sharing.units!.length
    return sharing.units!.flatMap((count, which) => {
      const unit = block / count
      const own = degree <= count ? count / degree : 1
      const from = degree <= count ? position * own : Math.floor((position * count) / degree)
      return range(own * unit).map((at) => which * block + from * unit + at)
    })
  })
  return {
    shape: held.map(({ length }) => length),
    at: (place) => {
      const global = place.map((at, dim) => held[dim]![at])
      return global.some((at) => at === undefined) ? "0" : whole.at(global.map((at) => at!))
    }
  }
}

const concat = (parts: ReadonlyArray<Field>, dim: number): Field => ({
  shape: put(
    parts[0]!.shape,
    dim,
    parts.reduce((sum, { shape }) => sum + shape[dim]!, 0)
  ),
  at: (place) => {
    let rest = place[dim]!
    for (const part of parts) {
      if (rest < part.shape[dim]!) return part.at(put(place, dim, rest))
      rest -= part.shape[dim]!
    }
    return "outside"
  }
})

const slice = (part: Field, dim: number, from: number, to: number): Field => ({
  shape: put(part.shape, dim, to - from),
  at: (place) => part.at(put(place, dim, place[dim]! + from))
})

const mapValues = (part: Field, change: (value: string) => string): Field => ({
  shape: part.shape,
  at: (place) => {
    const value = part.at(place)
    return value === "0" ? "0" : change(value)
  }
})

const fill = (text: string, { layer, expert }: Site): string =>
  text.replace("{layer}", String(layer)).replace("{expert}", String(expert))

/** A recipe on a rank; undefined where the checkpoint has nothing of it. */
const evaluate = (recipe: RandomRecipe, site: Site): Field | undefined => {
  if (typeof recipe === "string") return leaf(fill(recipe, site), site)
  const { degrees, experts, counts } = site.mapping
  const of = (inner: RandomRecipe, more: Partial<Site> = {}): Field | undefined => evaluate(inner, { ...site, ...more })
  if ("either" in recipe) return recipe.either.map((one) => of(one)).find((one) => one !== undefined)
  if ("concat" in recipe || "interleave" in recipe) {
    const all = ("concat" in recipe ? recipe.concat : recipe.interleave).map((one) => of(one))
    if (all.some((one) => one === undefined)) return undefined
    const parts = all.map((one) => one!)
    if ("concat" in recipe) return concat(parts, recipe.dim ?? 0)
    const stated = recipe.groups === "kvHeads" ? counts.kvHeads : recipe.groups
    const groups = site.isWhole ? stated : Math.max(1, stated / degrees.tp)
    const shares = parts.map(({ shape }) => shape[0]! / groups)
    const rows = range(groups).flatMap((group) =>
      parts.flatMap((_, which) => range(shares[which]!).map((at) => [which, group * shares[which]! + at] as const))
    )
    return {
      shape: [rows.length, ...parts[0]!.shape.slice(1)],
      at: ([row, ...rest]) => parts[rows[row!]![0]]!.at([rows[row!]![1], ...rest])
    }
  }
  if ("stack" in recipe) {
    const count = site.isWhole ? experts : experts / degrees.ep
    const from = site.isWhole ? 0 : site.expertEp * count
    const parts = range(count).map((at) => of(recipe.stack, { expert: from + at }))
    if (parts[0] === undefined) return undefined
    return { shape: [count, ...parts[0].shape], at: ([at, ...rest]) => parts[at!]!.at(rest) }
  }
  if ("unstack" in recipe) {
    const all = of(recipe.unstack, { allExperts: true })
    return all && { shape: all.shape.slice(1), at: (place) => all.at([site.expert!, ...place]) }
  }
  return changed(recipe, of, site)
}

const changed = (
  recipe: Exclude<
    RandomRecipe,
    | string
    | { concat: unknown }
    | { interleave: unknown }
    | { either: unknown }
    | { stack: unknown }
    | { unstack: unknown }
  >,
  of: (inner: RandomRecipe, more?: Partial<Site>) => Field | undefined,
  { mapping, tp }: Site
): Field | undefined => {
  if ("cut" in recipe) {
    const part = of(recipe.cut, { isWhole: true })
    if (part === undefined) return undefined
    const dim = recipe.dim ?? 0
    const length = part.shape[dim]!
    const rows = Math.ceil(length / mapping.degrees.tp)
    return slice(part, dim, Math.min(length, tp * rows), Math.min(length, (tp + 1) * rows))
  }
  const [inner] = Object.values(recipe).filter(
    (value): value is RandomRecipe => (typeof value === "object" && !Array.isArray(value)) || typeof value === "string"
  )
  const part = of(inner!)
  if (part === undefined) return undefined
  const { shape } = part
  if ("part" in recipe) {
    const from = recipe.index === 0 ? 0 : recipe.lengths[0]!
    return slice(part, 0, from, from + recipe.lengths[recipe.index]!)
  }
  if ("transpose" in recipe) {
    const { axes } = recipe
    return {
      shape: axes.map((axis) => shape[axis]!),
      at: (place) => part.at(shape.map((_, dim) => place[axes.indexOf(dim)]!))
    }
  }
  if ("split" in recipe) {
    const { dim, inner: width } = recipe
    return {
      shape: put(shape, dim, shape[dim]! / width, width),
      at: (place) => part.at([...place.slice(0, dim), place[dim]! * width + place[dim + 1]!, ...place.slice(dim + 2)])
    }
  }
  if ("merge" in recipe) {
    const { dim } = recipe
    const width = shape[dim + 1]!
    return {
      shape: [...shape.slice(0, dim), shape[dim]! * width, ...shape.slice(dim + 2)],
      at: (place) => part.at(put(place, dim, Math.floor(place[dim]! / width), place[dim]! % width))
    }
  }
  if ("squeeze" in recipe) {
    const { dim } = recipe
    return { shape: put(shape, dim), at: (place) => part.at([...place.slice(0, dim), 0, ...place.slice(dim)]) }
  }
  if ("expand" in recipe) {
    const { dim } = recipe
    return { shape: [...shape.slice(0, dim), 1, ...shape.slice(dim)], at: (place) => part.at(put(place, dim)) }
  }
  if ("pad" in recipe) {
    const dim = recipe.dim ?? 0
    const length = Math.ceil(shape[dim]! / recipe.multipleOf) * recipe.multipleOf
    return { shape: put(shape, dim, length), at: (place) => (place[dim]! < shape[dim]! ? part.at(place) : "0") }
  }
  if ("onFirst" in recipe) return tp === 0 ? part : { shape, at: () => "0" }
  if ("add" in recipe) return mapValues(part, (value) => `${value}+${recipe.add}`)
  return mapValues(part, (value) => `-exp(${value})`)
}

const elementsOf = ({ shape, at }: Field): Expected => {
  const places = shape.reduce<ReadonlyArray<Place>>(
    (all, length) => all.flatMap((place) => range(length).map((next) => [...place, next])),
    [[]]
  )
  return { shape, elements: places.map(at) }
}

/** All that a rank holds, by name. */
export const expectedOn = (mapping: RandomMapping, rank: number): ReadonlyMap<string, Expected> => {
  const { degrees, layers, experts, rules } = mapping
  const { tp, dp, pp, ep, etp } = degrees
  const inStage = rank % (tp * dp)
  const stage = Math.floor(rank / (tp * dp))
  const here = { mapping, stage, tp: inStage % tp, expertTp: inStage % etp, expertEp: Math.floor(inStage / etp) % ep }
  const perStage = layers / pp
  const found = new Map<string, Expected>()
  for (const rule of rules) {
    if ("ignore" in rule) continue
    const isLayered = rule.name.includes("{layer")
    const perExpert = rule.name.includes("{expert")
    if (!isLayered && !isOnStage(rule, stage, pp)) continue
    for (const layer of isLayered ? range(perStage).map((at) => stage * perStage + at) : [undefined]) {
      const held = experts / ep
      for (const expert of perExpert ? range(held).map((at) => here.expertEp * held + at) : [undefined]) {
        const field = evaluate(rule.from, { ...here, layer, expert, isWhole: false, allExperts: false })
        const name = fill(rule.name, { ...here, layer, expert, isWhole: false, allExperts: false })
          .replace("{layer.local}", String((layer ?? 0) - stage * perStage))
          .replace("{expert.local}", String((expert ?? 0) - here.expertEp * held))
        if (field !== undefined) found.set(name, elementsOf(field))
      }
    }
  }
  return found
}

const isOnStage = ({ from, stages }: RandomRule, stage: number, pp: number): boolean => {
  if (stages === "all") return true
  if (stages === "ends") return stage === 0 || stage === pp - 1
  return JSON.stringify(from).includes("embed_tokens") ? stage === 0 : stage === pp - 1
}
