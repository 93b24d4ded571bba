// SPDX-License-Identifier: Apache-2.0
/**
 * Both sides of a transfer between conventions as rosters that can be planned: parameters are parts of the checkpoint's
 * tensors, and on every rank a part is a view of one of its own tensors. Every element travels once, from where it lies to
 * where it belongs; nothing is gathered.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount, type Interval, lengthOf, type Shape } from "@tensorferry/core/base/Region"
import { type ParameterMetadata, parameterMetadata } from "@tensorferry/core/layout/ParameterMetadata"
import type { Roster } from "@tensorferry/core/layout/Roster"
import * as Result from "effect/Result"
import { type LayoutError, type ModelTensor, rosterOf, worldSizeOf } from "../layout/ModelLayout.ts"
import { expertDegrees, placeOf, type RankPlace } from "../layout/ParallelConfig.ts"
import { type Part, type PartView, partsOf, refine, rowsOf } from "./atoms.ts"
import { type MappingError, mappingError } from "./MappingError.ts"
import { type MappedModelInput, type MappedRank, type MappedTensor, mapModel } from "./mapModel.ts"
import { haveCommon } from "./overlap.ts"
import { inverseScalar, type Scalar, type Strip, scalarAfter } from "./Strips.ts"
import { turnedStrips } from "./turnedStrips.ts"

/** A view of one of a rank's own tensors, in elements. Loops of equal steps; the first element is `offset`. */
export interface TensorView {
  readonly tensor: string
  readonly offset: number
  readonly shape: Shape
  readonly strides: ReadonlyArray<number>
}

/** A parameter of the plan on one rank. */
export interface MappedParameter {
  readonly metadata: ParameterMetadata
  readonly groups: "dense" | "expert"
  readonly view: TensorView
  /** What is done to each value between the checkpoint and this rank's tensor. */
  readonly scalar: Scalar | undefined
}

/** One side. */
export interface MappedLayout {
  readonly ranks: ReadonlyArray<Rank>
  readonly roster: Roster
  /** What the rank holds, under its own names. */
  readonly rankOf: (rank: Rank) => MappedRank
  readonly parametersOf: (rank: Rank) => ReadonlyArray<MappedParameter>
}

/** A side as a user states it. */
export interface MappedSide extends Omit<MappedModelInput, "tensors"> {
  readonly firstRank?: Rank
  /** The type of what is held at a place, where that is not the one of the mapping. */
  readonly dtypeOf?: (place: RankPlace, name: string) => DType | undefined
}

/** What a position of a side holds of a tensor of the checkpoint. */
interface Held {
  readonly position: number
  readonly strips: ReadonlyArray<Strip>
}

interface Side {
  readonly stated: MappedSide
  readonly places: ReadonlyArray<RankPlace>
  readonly ranks: ReadonlyArray<MappedRank>
  readonly positionOf: ReadonlyMap<string, number>
  /** Copies of each tensor of the checkpoint: a rank may hold it more than once. */
  readonly held: ReadonlyMap<string, ReadonlyArray<ReadonlyArray<Held>>>
  readonly dtypes: ReadonlyMap<string, ReadonlyMap<string, DType>>
}

const positionKey = ({ stage, tp, expertTp, expertEp }: RankPlace): string => `${stage}/${tp}/${expertTp}/${expertEp}`

const positionsOf = ({ config }: MappedSide) => {
  const places: Array<RankPlace> = []
  const positionOf = new Map<string, number>()
  for (let rank = 0; rank < worldSizeOf(config); rank++) {
    const place = placeOf(config, 0, rank)
    if (positionOf.has(positionKey(place))) continue
    positionOf.set(positionKey(place), places.push(place) - 1)
  }
  return { places, positionOf }
}

/** Turns a side's strips round: for each tensor of the checkpoint, which position has what of it. */
const openSide = (
  stated: MappedSide,
  tensors: ReadonlyArray<ModelTensor>
): Result.Result<Side, MappingError | LayoutError> =>
  Result.gen(function* () {
    const mapped = yield* mapModel({ ...stated, tensors })
    const shapes = new Map(tensors.map(({ name, shape }) => [name, shape]))
    const { places, positionOf } = positionsOf(stated)
    const ranks: Array<MappedRank> = []
    const held = new Map<string, Array<Array<Held>>>()
    const dtypes = new Map<string, Map<string, DType>>()
    for (const [position, place] of places.entries()) {
      const rank = heldAs(yield* mapped.rankAt(place), (name) => stated.dtypeOf?.(place, name))
      ranks.push(rank)
      dtypes.set(String(position), new Map(rank.tensors.map(({ name, dtype }) => [name, dtype])))
      for (const [name, copies] of yield* stripsBySource(rank.tensors, shapes)) {
        const known = held.get(name) ?? []
        held.set(name, known)
        for (const [copy, strips] of copies.entries()) {
          known[copy] ??= []
          known[copy].push({ position, strips })
        }
      }
    }
    return { stated, places, ranks, positionOf, held, dtypes }
  })

/** The same with the types in which a rank holds its tensors. */
const heldAs = (rank: MappedRank, dtypeOf: (name: string) => DType | undefined): MappedRank => {
  const isSame = rank.tensors.every(({ name, dtype }) => (dtypeOf(name) ?? dtype) === dtype)
  return isSame
    ? rank
    : { ...rank, tensors: rank.tensors.map((one) => ({ ...one, dtype: dtypeOf(one.name) ?? one.dtype })) }
}

/** Ranks share strips; each is turned once under each name. */
const turnedOnce = new WeakMap<Strip, Map<string, ReadonlyArray<Strip>>>()

/** Strips of a rank's tensors by what they are made of; what two of its tensors both hold is two copies. */
const stripsBySource = (
  tensors: ReadonlyArray<MappedTensor>,
  shapes: ReadonlyMap<string, Shape>
): Result.Result<ReadonlyMap<string, ReadonlyArray<ReadonlyArray<Strip>>>, MappingError> => {
  const found = new Map<string, Array<{ readonly elements: number; readonly strips: Array<Strip> }>>()
  for (const tensor of tensors) {
    const own = new Map<string, Array<Strip>>()
    for (const strip of tensor.strips) {
      if (strip.source === undefined) continue
      const shape = shapes.get(strip.source)!
      const turned = turnedOnce.get(strip)?.get(tensor.name) ?? turnedStrips(strip, tensor, shape)
      if (turned === undefined)
        return mappingError(
          "unsupported",
          tensor.name,
          tensor.rule,
          `It is made of elements behind the end of ${strip.source}.`,
          "Check the shapes of the checkpoint."
        )
      turnedOnce.set(strip, (turnedOnce.get(strip) ?? new Map()).set(tensor.name, turned))
      const known = own.get(strip.source)
      if (known === undefined) own.set(strip.source, [...turned])
      else known.push(...turned)
    }
    for (const [source, strips] of own) {
      const copies = found.get(source) ?? []
      found.set(source, copies)
      const elements = strips.reduce((sum, { loops }) => sum + loops.reduce((all, { count }) => all * count, 1), 0)
      const total = elementCount(shapes.get(source)!)
      // Tensors that share one between them are parts of one copy; one that would hold it twice is another copy.
      const partial = copies.find((copy) => copy.elements + elements <= total && !haveCommon(copy.strips, strips))
      if (partial === undefined) copies.push({ elements, strips: [...strips] })
      else {
        copies.splice(copies.indexOf(partial), 1, {
          elements: partial.elements + elements,
          strips: [...partial.strips, ...strips]
        })
      }
    }
  }
  return Result.succeed(new Map([...found].map(([name, copies]) => [name, copies.map(({ strips }) => strips)])))
}

/** The group of positions that hold a tensor together: those of a stage, and of an expert's rank. */
const groupOf = (place: RankPlace, isExpert: boolean): string =>
  isExpert ? `${place.stage}/${place.expertEp}` : `${place.stage}`

/** What a part is called on all ranks. */
const partName = (name: string, copy: number, part: Part, shape: Shape): string => {
  const isWhole = part.from.every((at) => at === 0) && part.counts.every((count, dim) => count === shape[dim])
  const box = isWhole
    ? ""
    : `[${part.from.map((at, dim) => (part.counts[dim] === 1 ? at : `${at}:${at + part.counts[dim]!}`)).join(",")}]`
  return `${name}${box}${copy === 0 ? "" : `#${copy + 1}`}`
}

/** The whole interval, where a rank has all along the dimension by which others are cut. */
const intervalsOf = (view: PartView | undefined, dim: number | undefined, counts: ReadonlyArray<number>) =>
  view === undefined
    ? []
    : view.intervals.length > 0
      ? view.intervals
      : [[0, counts[dim ?? 0]!] as const satisfies Interval]

/** Which tensors of a side are experts, and how many there are. */
interface ExpertFacts {
  readonly count: number
  readonly number: number | undefined
  readonly dim: number | undefined
}

const expertsByName = ({ structure }: MappedSide): ReadonlyMap<string, ExpertFacts> => {
  const found = new Map<string, ExpertFacts>()
  const counts = new Map<string, number>()
  for (const { expert, expertsOf } of structure.modules)
    if (expert !== undefined) counts.set(expertsOf!, Math.max(counts.get(expertsOf!) ?? 0, expert + 1))
  for (const { kind, expert, expertsOf, tensors } of structure.modules) {
    if (expert !== undefined)
      for (const { name } of tensors)
        found.set(name, { count: counts.get(expertsOf!)!, number: expert, dim: undefined })
    else if (kind.expertDim !== undefined)
      for (const [at, { name, shape }] of tensors.entries()) {
        const dim = kind.form.parts[at]!.maps.findIndex((map) => map.dim === kind.expertDim)
        if (dim >= 0) found.set(name, { count: shape[dim]!, number: undefined, dim })
      }
  }
  return found
}

type Parameters = Array<Array<MappedParameter>>

/** Adds a tensor's parameters to both sides. */
const addTensor = (
  tensor: ModelTensor,
  sides: ReadonlyArray<Side>,
  copies: ReadonlyArray<ReadonlyArray<Held>>,
  copy: number,
  experts: ExpertFacts | undefined,
  into: ReadonlyArray<Parameters>
): Result.Result<undefined, MappingError> => {
  const refined = refine(
    tensor.shape,
    copies.map((held) => held.map(({ strips }) => strips))
  )
  // Experts of a stack are planned one by one: each has ranks of its own.
  const at = experts?.dim
  const begins =
    refined === undefined || at === undefined
      ? [undefined]
      : Array.from({ length: refined.shape[at]! }, (_, number) => ({
          from: refined.shape.map((_, dim) => (dim === at ? number : 0)),
          counts: refined.shape.map((length, dim) => (dim === at ? 1 : length))
        }))
  const rows = refined === undefined || at === undefined ? undefined : rowsOf(refined, at)
  for (const [row, begin] of begins.entries()) {
    const parts = refined === undefined ? undefined : partsOf(rows?.[row] ?? refined, begin)
    if (refined === undefined || parts === undefined)
      return mappingError(
        "unsupported",
        tensor.name,
        undefined,
        "Both sides cut it into more pieces than can be planned.",
        "Choose degrees that cut it at heads or experts."
      )
    const number = experts?.number ?? begin?.from[at!]
    for (const part of parts) {
      // Nobody wants it.
      if (part.views[1]!.every((view) => view === undefined)) continue
      const name = partName(tensor.name, copy, part, refined.shape)
      for (const [which, side] of sides.entries())
        addPart({ name, tensor, part, which, side, held: copies[which]!, experts, number }, into[which]!)
    }
  }
  return Result.succeed(undefined)
}

interface PartOnSide {
  readonly name: string
  readonly tensor: ModelTensor
  readonly part: Part
  readonly which: number
  readonly side: Side
  readonly held: ReadonlyArray<Held>
  readonly experts: ExpertFacts | undefined
  readonly number: number | undefined
}

/** Whether a rank's share of a dimension is the one at its place in the group, all shares being equal. */
const isShare = (
  { stated: { config }, places }: Side,
  position: number,
  isExpert: boolean,
  view: PartView | undefined,
  length: number
): boolean => {
  const place = places[position]!
  const [at, degree] = isExpert ? [place.expertTp, expertDegrees(config).etp] : [place.tp, config.tp]
  const share = length / degree
  const [own, ...others] = view?.intervals ?? []
  return Number.isInteger(share) && others.length === 0 && own?.[0] === at * share && own[1] === (at + 1) * share
}

const addPart = (one: PartOnSide, into: Parameters): void => {
  const { name, tensor, part, which, side, held, experts, number } = one
  const isExpert = experts !== undefined
  const views = new Map<number, PartView>()
  for (const [at, { position }] of held.entries()) {
    const view = part.views[which]![at]
    if (view !== undefined) views.set(position, view)
  }
  if (views.size === 0) return
  const groups = new Set([...views.keys()].map((position) => groupOf(side.places[position]!, isExpert)))
  const members = side.places.flatMap((place, position) => (groups.has(groupOf(place, isExpert)) ? [position] : []))
  const isCut = part.cutDims[which] !== undefined || members.some((position) => !views.has(position))
  const dim = part.cutDims[which] ?? 0
  const isEven =
    isCut && members.every((position) => isShare(side, position, isExpert, views.get(position), part.counts[dim]!))
  for (const position of members) {
    const view = views.get(position)
    const intervals = intervalsOf(view, dim, part.counts)
    const shape = isCut
      ? part.counts.map((count, at) => (at === dim ? intervals.reduce((sum, run) => sum + lengthOf(run), 0) : count))
      : part.counts
    const local = view?.local ?? side.ranks[position]!.tensors[0]?.name ?? ""
    // Who has nothing of a part says of its type what the others say.
    const [from, own] = view === undefined ? [...views][0]! : [position, view]
    const dtype = side.dtypes.get(String(from))!.get(own.local) ?? tensor.dtype
    into[position]!.push({
      groups: isExpert ? "expert" : "dense",
      view: { tensor: local, offset: view?.offset ?? 0, shape, strides: view?.strides ?? shape.map(() => 0) },
      scalar: view?.scalar,
      metadata: parameterMetadata({
        name,
        shape,
        dtype,
        ownerRank: 0,
        isTp: isCut,
        partitionDim: isCut ? dim : 0,
        // Even shares in the order of the group need no list: then all ranks say the same of it.
        partitionOffsets: isCut && !isEven ? intervals : null,
        numExperts: experts?.count ?? null,
        globalExpertIndex: number ?? null
      })
    })
  }
}

const layoutOf = (side: Side, parameters: Parameters): MappedLayout => {
  const { stated, positionOf, ranks: held } = side
  const firstRank = stated.firstRank ?? 0
  const ranks = Array.from({ length: worldSizeOf(stated.config) }, (_, at) => firstRank + at)
  const positionAt = (place: RankPlace): number => positionOf.get(positionKey(place))!
  const placeAt = (rank: Rank): RankPlace => placeOf(stated.config, firstRank, rank)
  const isHeld = (rank: Rank): boolean => rank >= firstRank && rank < firstRank + ranks.length
  return {
    ranks,
    roster: rosterOf(stated.config, firstRank, ranks, positionKey, (place, visit) => {
      for (const one of parameters[positionAt(place)]!) visit(one)
    }),
    rankOf: (rank) => (isHeld(rank) ? held[positionAt(placeAt(rank))]! : { tensors: [], aliases: new Map() }),
    parametersOf: (rank) => (isHeld(rank) ? parameters[positionAt(placeAt(rank))]! : [])
  }
}

/** Both sides of a transfer. */
export interface MappedLayouts {
  readonly source: MappedLayout
  readonly destination: MappedLayout
  /** What is done to the values of a parameter on its way; undefined where it travels as it is. */
  readonly scalarOf: (paramName: string) => Scalar | undefined
}

/** Lays out both sides of a transfer of a model's tensors. Fails with what one of them cannot be made of. */
export const mappedLayouts = (
  tensors: ReadonlyArray<ModelTensor>,
  source: MappedSide,
  destination: MappedSide
): Result.Result<MappedLayouts, MappingError | LayoutError> =>
  Result.gen(function* () {
    const sides = [yield* openSide(source, tensors), yield* openSide(destination, tensors)] as const
    const experts = expertsByName(destination)
    const into: ReadonlyArray<Parameters> = sides.map(({ places }) => places.map(() => []))
    for (const tensor of tensors) {
      const wanted = sides[1].held.get(tensor.name) ?? []
      const [own] = sides[0].held.get(tensor.name) ?? []
      // What nobody wants stays where it is; what nobody has is the planner's to refuse.
      for (const [copy, held] of wanted.entries())
        yield* addTensor(tensor, sides, [own ?? [], held], copy, experts.get(tensor.name), into)
    }
    return {
      source: layoutOf(sides[0], into[0]!),
      destination: layoutOf(sides[1], into[1]!),
      scalarOf: yield* scalars(into)
    }
  })

/** Functions by parameter: back to the checkpoint's value, then on to the destination's. */
const scalars = (
  into: ReadonlyArray<Parameters>
): Result.Result<(paramName: string) => Scalar | undefined, MappingError> => {
  const [source, destination] = into.map((positions) => {
    const found = new Map<string, Scalar>()
    for (const { metadata, scalar } of positions.flat()) if (scalar !== undefined) found.set(metadata.name, scalar)
    return found
  })
  const all = new Map<string, Scalar>()
  for (const name of new Set([...source!.keys(), ...destination!.keys()])) {
    const joined = scalarAfter(inverseScalar(source!.get(name)), destination!.get(name))
    if (joined === null)
      return mappingError(
        "unsupported",
        name,
        undefined,
        "The two sides change its values in ways that have no common name.",
        "Go through the checkpoint's names."
      )
    if (joined !== undefined) all.set(name, joined)
  }
  return Result.succeed((name) => all.get(name))
}
