// SPDX-License-Identifier: Apache-2.0
/**
 * Parameters of a plan by tensor of the checkpoint: the parts that both sides can be planned by, and what each rank has of
 * them. Names of ranks' tensors do not matter here, so that all tensors that lie alike share what is found for one.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { elementCount, type Interval, lengthOf, type Shape } from "@tensorferry/core/base/Region"
import { type ParameterMetadata, parameterMetadata } from "@tensorferry/core/layout/ParameterMetadata"
import * as Result from "effect/Result"
import type { ModelTensor, ParallelConfig } from "../layout/ModelLayout.ts"
import { expertDegrees, type RankPlace } from "../layout/ParallelConfig.ts"
import { type Part, type PartView, partsOf, refine, rowsOf } from "./atoms.ts"
import { type MappingError, mappingError } from "./MappingError.ts"
import { haveCommon } from "./overlap.ts"
import { inverseScalar, type Scalar, type Strip, scalarAfter, stripSize } from "./Strips.ts"

/** What a position of a side holds of a tensor of the checkpoint: strips of that tensor, whose sources are what it holds. */
export interface Held {
  readonly position: number
  readonly strips: ReadonlyArray<Strip>
}

/** Which tensors are experts, and how many there are: each by a number, or all along a dimension. */
export interface ExpertFacts {
  readonly count: number
  readonly number: number | undefined
  readonly dim: number | undefined
}

/** A side, as far as parts of one tensor depend on it. */
export interface PartSide {
  readonly config: ParallelConfig
  readonly places: ReadonlyArray<RankPlace>
  /** Copies of the tensor: a rank may hold it more than once. */
  readonly copies: ReadonlyArray<ReadonlyArray<Held>>
  readonly dtypeOf: (position: number, local: string) => DType
}

/** What a position says of a part, and where it has it. */
export interface PartParameter {
  /** Index into the parts. */
  readonly part: number
  readonly groups: "dense" | "expert"
  /** In the names of the tensor for which it was found. */
  readonly metadata: ParameterMetadata
  /** The source of the strips; undefined where the position has nothing of the part. */
  readonly local: string | undefined
  readonly offset: number
  readonly strides: ReadonlyArray<number>
  /** What is done to each value between the checkpoint and what the position has. */
  readonly scalar: Scalar | undefined
}

/** The parts of a tensor. */
export interface TensorParts {
  readonly parts: ReadonlyArray<{
    /** What the part is called behind the name of its tensor. */
    readonly suffix: string
    /** The expert, where the tensor has them along a dimension. */
    readonly expert: number | undefined
    /** What is done to its values on their way. */
    readonly scalar: Scalar | undefined
  }>
  /** By side: what each position that is asked says, in order. */
  readonly sides: ReadonlyArray<ReadonlyMap<number, ReadonlyArray<PartParameter>>>
}

/** Adds what a rank's tensor holds of one of the checkpoint; what two of its tensors both hold is two copies. */
export const addCopy = (
  copies: ReadonlyArray<ReadonlyArray<Strip>>,
  strips: ReadonlyArray<Strip>,
  shape: Shape
): ReadonlyArray<ReadonlyArray<Strip>> => {
  const elements = (of: ReadonlyArray<Strip>): number => of.reduce((sum, strip) => sum + stripSize(strip), 0)
  const own = elements(strips)
  // Tensors that share one between them are parts of one copy; one that would hold it twice is another copy.
  const at = copies.findIndex((copy) => elements(copy) + own <= elementCount(shape) && !haveCommon(copy, strips))
  return at < 0 ? [...copies, strips] : copies.with(at, [...copies[at]!, ...strips])
}

/** The group of positions that hold a tensor together: those of a stage, and of an expert's rank. */
const groupOf = (place: RankPlace, isExpert: boolean): string =>
  isExpert ? `${place.stage}/${place.expertEp}` : `${place.stage}`

/** What a part is called behind its tensor's name, on all ranks. */
const partSuffix = (copy: number, part: Part, shape: Shape): string => {
  const isWhole = part.from.every((at) => at === 0) && part.counts.every((count, dim) => count === shape[dim])
  const box = isWhole
    ? ""
    : `[${part.from.map((at, dim) => (part.counts[dim] === 1 ? at : `${at}:${at + part.counts[dim]!}`)).join(",")}]`
  return `${box}${copy === 0 ? "" : `#${copy + 1}`}`
}

/** The whole interval, where a rank has all along the dimension by which others are cut. */
const intervalsOf = (view: PartView | undefined, dim: number | undefined, counts: ReadonlyArray<number>) =>
  view === undefined
    ? []
    : view.intervals.length > 0
      ? view.intervals
      : [[0, counts[dim ?? 0]!] as const satisfies Interval]

/** Parts with their places on both sides, as they are found. */
type Found = Array<{ readonly part: Part; readonly suffix: string; readonly expert: number | undefined }>

/** Cuts one copy in parts. */
const partsOfCopy = (
  tensor: ModelTensor,
  copies: ReadonlyArray<ReadonlyArray<Held>>,
  copy: number,
  experts: ExpertFacts | undefined
): Result.Result<Found, MappingError> => {
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
  const found: Found = []
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
    for (const part of parts) {
      // Nobody wants it.
      if (part.views[1]!.every((view) => view === undefined)) continue
      found.push({ part, suffix: partSuffix(copy, part, refined.shape), expert: begin?.from[at!] })
    }
  }
  return Result.succeed(found)
}

/** Whether a rank's share of a dimension is the one at its place in the group, all shares being equal. */
const isShare = (
  { config, places }: PartSide,
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

interface PartOnSide {
  readonly name: string
  readonly part: Part
  /** Its index. */
  readonly at: number
  readonly which: number
  readonly side: PartSide
  readonly held: ReadonlyArray<Held>
  readonly experts: ExpertFacts | undefined
  readonly number: number | undefined
}

/** Adds a part to what the positions of a side say. */
const addPart = (one: PartOnSide, into: Map<number, Array<PartParameter>>): void => {
  const { name, part, at: index, which, side, held, experts, number } = one
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
    // Who has nothing of a part says of its type what the others say.
    const [from, own] = view === undefined ? [...views][0]! : [position, view]
    const known = into.get(position) ?? []
    into.set(position, known)
    known.push({
      part: index,
      groups: isExpert ? "expert" : "dense",
      local: view?.local,
      offset: view?.offset ?? 0,
      strides: view?.strides ?? shape.map(() => 0),
      scalar: view?.scalar,
      metadata: parameterMetadata({
        name,
        shape,
        dtype: side.dtypeOf(from, own.local),
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

/** The functions of a side's values by part. */
const scalarsOf = (side: TensorParts["sides"][number]): ReadonlyMap<number, Scalar> => {
  const found = new Map<number, Scalar>()
  for (const parameters of side.values())
    for (const { part, scalar } of parameters) if (scalar !== undefined) found.set(part, scalar)
  return found
}

/**
 * Finds the parts of a tensor between what two sides hold of it, the source first. Fails where it is cut into too many, and
 * where the sides change its values in ways that have no common name.
 */
export const tensorParts = (
  tensor: ModelTensor,
  sides: readonly [source: PartSide, destination: PartSide],
  experts: ExpertFacts | undefined
): Result.Result<TensorParts, MappingError> =>
  Result.gen(function* () {
    const found: Found = []
    const into: ReadonlyArray<Map<number, Array<PartParameter>>> = sides.map(() => new Map())
    // What nobody wants stays where it is; what nobody has is the planner's to refuse.
    for (const [copy, wanted] of sides[1].copies.entries()) {
      const copies = [sides[0].copies[0] ?? [], wanted]
      for (const one of yield* partsOfCopy(tensor, copies, copy, experts)) {
        const at = found.push(one) - 1
        const name = `${tensor.name}${one.suffix}`
        const number = experts?.number ?? one.expert
        for (const [which, side] of sides.entries())
          addPart({ name, part: one.part, at, which, side, held: copies[which]!, experts, number }, into[which]!)
      }
    }
    const [source, destination] = into.map(scalarsOf)
    const parts: Array<TensorParts["parts"][number]> = []
    for (const [at, { suffix, expert }] of found.entries()) {
      // Back to the checkpoint's value, then on to the destination's.
      const scalar = scalarAfter(inverseScalar(source!.get(at)), destination!.get(at))
      if (scalar === null)
        return yield* mappingError(
          "unsupported",
          `${tensor.name}${suffix}`,
          undefined,
          "The two sides change its values in ways that have no common name.",
          "Go through the checkpoint's names."
        )
      parts.push({ suffix, expert, scalar })
    }
    return { parts, sides: into }
  })
