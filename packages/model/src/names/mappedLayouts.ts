// SPDX-License-Identifier: Apache-2.0
/**
 * Both sides of a transfer between conventions as rosters that can be planned: parameters are parts of the checkpoint's
 * tensors, and on every rank a part is a view of one of its own tensors. Every element travels once, from where it lies to
 * where it belongs; nothing is gathered.
 *
 * Tensors that lie alike on both sides, as those of layers, are cut into parts once; a rank's own list is made when it is
 * asked for. So the cost follows the kinds of tensors and the ranks that are looked at, not the product of both sides.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { Shape } from "@tensorferry/core/base/Region"
import type { ParameterMetadata } from "@tensorferry/core/layout/ParameterMetadata"
import type { Roster } from "@tensorferry/core/layout/Roster"
import * as Result from "effect/Result"
import { type LayoutError, type ModelTensor, rosterOf, worldSizeOf } from "../layout/ModelLayout.ts"
import { placeOf, type RankPlace } from "../layout/ParallelConfig.ts"
import { type MappingError, mappingError } from "./MappingError.ts"
import { type MappedModel, type MappedModelInput, type MappedRank, mapModel, type StageTensor } from "./mapModel.ts"
import type { Assembly, Scalar, Strip } from "./Strips.ts"
import { addCopy, type ExpertFacts, type Held, type PartSide, type TensorParts, tensorParts } from "./tensorParts.ts"
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
  /** Of this side, in order. */
  readonly ranks: ReadonlyArray<Rank>
  /** What all ranks of this side hold. */
  readonly roster: Roster
  /** What the rank holds, under its own names. */
  readonly rankOf: (rank: Rank) => MappedRank
  /** What a rank holds. */
  readonly parametersOf: (rank: Rank) => ReadonlyArray<MappedParameter>
}

/** A side as a user states it. */
export interface MappedSide extends Omit<MappedModelInput, "tensors"> {
  /** The side's ranks count up from it; 0 by default. */
  readonly firstRank?: Rank
  /** The type of what is held at a place, where that is not the one of the mapping. */
  readonly dtypeOf?: (place: RankPlace, name: string) => DType | undefined
}

/** Positions of a stage that have the same experts: they hold tensors of the same names. */
interface Group {
  readonly stage: number
  readonly expertEp: number
  readonly positions: Array<number>
}

/** A tensor of a group that is made of one of the checkpoint. */
interface Use {
  readonly group: Group
  readonly tensor: StageTensor
  /** Its index among the sources. */
  readonly source: number
}

interface Side {
  readonly stated: MappedSide
  readonly mapped: MappedModel
  /** Positions, stage by stage; all stages have as many. */
  readonly places: ReadonlyArray<RankPlace>
  readonly perStage: number
  readonly positionOf: ReadonlyMap<string, number>
  /** What is made of each tensor of the checkpoint. */
  readonly uses: ReadonlyMap<string, ReadonlyArray<Use>>
}

const positionKey = ({ stage, tp, expertTp, expertEp }: RankPlace): string => `${stage}/${tp}/${expertTp}/${expertEp}`

/** Positions in the order of their ranks, and the groups that they form. */
const positionsOf = ({ config }: MappedSide) => {
  const places: Array<RankPlace> = []
  const positionOf = new Map<string, number>()
  const groups = new Map<string, Group>()
  for (let rank = 0; rank < worldSizeOf(config); rank++) {
    const place = placeOf(config, 0, rank)
    const key = positionKey(place)
    if (positionOf.has(key)) continue
    const { stage, expertEp } = place
    const group = groups.get(`${stage}/${expertEp}`) ?? { stage, expertEp, positions: [] }
    groups.set(`${stage}/${expertEp}`, group)
    positionOf.set(key, places.push(place) - 1)
    group.positions.push(places.length - 1)
  }
  return { places, positionOf, groups: [...groups.values()], perStage: places.length / config.pp }
}

/** Turns a side round: what of it is made of each tensor of the checkpoint. */
const openSide = (
  stated: MappedSide,
  tensors: ReadonlyArray<ModelTensor>
): Result.Result<Side, MappingError | LayoutError> =>
  Result.gen(function* () {
    const mapped = yield* mapModel({ ...stated, tensors })
    const { groups, ...positions } = positionsOf(stated)
    const uses = new Map<string, Array<Use>>()
    for (const group of groups) {
      for (const tensor of yield* mapped.tensorsAt(positions.places[group.positions[0]!]!)) {
        for (const [source, name] of tensor.sources.entries()) {
          const known = uses.get(name)
          const last = known?.at(-1)
          if (known === undefined) uses.set(name, [{ group, tensor, source }])
          // Strips are found by the name of a source, whichever of several sources it is.
          else if (last?.tensor !== tensor || last.group !== group) known.push({ group, tensor, source })
        }
      }
    }
    return { stated, mapped, uses, ...positions }
  })

/** Strips of an assembly by what they are made of. */
const bySource = new WeakMap<Assembly, ReadonlyMap<string | undefined, ReadonlyArray<Strip>>>()

const stripsFrom = (assembly: Assembly, source: string): ReadonlyArray<Strip> => {
  const found = bySource.get(assembly) ?? Map.groupBy(assembly.strips, (strip) => strip.source)
  bySource.set(assembly, found)
  return found.get(source) ?? []
}

/** What the positions of a side hold of a tensor of the checkpoint, copy by copy; what they hold is called by its use. */
const copiesOf = (
  { mapped, places }: Side,
  { name, shape }: ModelTensor,
  uses: ReadonlyArray<Use>
): Result.Result<PartSide["copies"], MappingError> => {
  const byPosition = new Map<number, Array<number>>()
  for (const [at, { group }] of uses.entries()) {
    for (const position of group.positions) {
      const known = byPosition.get(position)
      if (known === undefined) byPosition.set(position, [at])
      else known.push(at)
    }
  }
  const held: Array<Array<Held>> = []
  for (const [position, own] of [...byPosition].sort(([a], [b]) => a - b)) {
    let copies: ReadonlyArray<ReadonlyArray<Strip>> = []
    for (const at of own) {
      const { tensor, source } = uses[at]!
      const assembled = mapped.assemblyAt(tensor.kind, places[position]!)
      if (Result.isFailure(assembled)) return Result.fail(assembled.failure)
      if (assembled.success === undefined) continue
      const { shape: local } = assembled.success
      const strips: Array<Strip> = []
      for (const strip of stripsFrom(assembled.success, tensor.kind.sources[source]!)) {
        const turned = turnedStrips(strip, { name: String(at), shape: local }, shape)
        if (turned === undefined)
          return mappingError(
            "unsupported",
            tensor.name,
            tensor.rule,
            `It is made of elements behind the end of ${name}.`,
            "Check the shapes of the checkpoint."
          )
        strips.push(...turned)
      }
      if (strips.length > 0) copies = addCopy(copies, strips, shape)
    }
    for (const [copy, strips] of copies.entries()) {
      held[copy] ??= []
      held[copy].push({ position, strips })
    }
  }
  return Result.succeed(held)
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

/** A tensor of the checkpoint on a side: what is made of it, and the stages that have a part in it, in order. */
interface OnSide {
  readonly uses: ReadonlyArray<Use>
  readonly stages: ReadonlyArray<number>
  /** Equal for tensors of which the side has the same, on whichever stages. */
  readonly signature: string
}

const onSide = ({ stated: { dtypeOf }, places, uses: all }: Side, name: string): OnSide => {
  const uses = all.get(name) ?? []
  const stages: Array<number> = []
  let signature = ""
  for (const { group, source, tensor } of uses) {
    if (!stages.includes(group.stage)) stages.push(group.stage)
    signature += ` ${tensor.kind.number}.${source}@${stages.indexOf(group.stage)}.${group.expertEp}`
    if (dtypeOf === undefined) continue
    for (const position of group.positions) signature += `,${dtypeOf(places[position]!, tensor.name) ?? ""}`
  }
  return { uses, stages, signature }
}

/** A tensor of the checkpoint with its parts, in the names that it has. */
interface Parted {
  readonly parts: TensorParts
  /** Of its parts. */
  readonly names: ReadonlyArray<string>
  readonly experts: ExpertFacts | undefined
  readonly sides: ReadonlyArray<OnSide>
  /** By side: the stages of the tensor for which the parts were found. */
  readonly found: ReadonlyArray<ReadonlyArray<number>>
}

/** Cuts tensors in parts, those that lie alike once. */
const parting = (sides: readonly [Side, Side]) => {
  const known = new Map<string, Pick<Parted, "parts" | "found">>()
  const find = (tensor: ModelTensor, own: ReadonlyArray<OnSide>, experts: ExpertFacts | undefined) =>
    Result.gen(function* () {
      const made: Array<PartSide> = []
      for (const [which, side] of sides.entries()) {
        const { mapped: _, places, stated } = side
        const { uses } = own[which]!
        const copies = yield* copiesOf(side, tensor, uses)
        const dtypeOf: PartSide["dtypeOf"] = (position, local) => {
          const { dtype, name } = uses[Number(local)]!.tensor
          return stated.dtypeOf?.(places[position]!, name) ?? dtype
        }
        made.push({ config: stated.config, places, copies, dtypeOf })
      }
      const parts = yield* tensorParts(tensor, [made[0]!, made[1]!], experts)
      return { parts, found: own.map(({ stages }) => stages) }
    })
  return (tensor: ModelTensor, experts: ExpertFacts | undefined): Result.Result<Parted, MappingError> => {
    const own = sides.map((side) => onSide(side, tensor.name))
    const kind = experts === undefined ? "" : `${experts.count}/${experts.dim ?? "-"}`
    const key = [tensor.shape.join("x"), kind, ...own.map(({ signature }) => signature)].join("|")
    const found = known.get(key)
    const made = found === undefined ? find(tensor, own, experts) : Result.succeed(found)
    if (Result.isFailure(made)) return Result.fail(made.failure)
    known.set(key, made.success)
    const names = made.success.parts.parts.map(({ suffix }) => tensor.name + suffix)
    return Result.succeed({ ...made.success, names, experts, sides: own })
  }
}

/** What a position says of a tensor's parts. */
const parametersAt = (
  { found, parts, sides }: Parted,
  which: number,
  stage: number,
  inStage: number,
  perStage: number
) => {
  const alike = found[which]![sides[which]!.stages.indexOf(stage)]!
  return parts.sides[which]!.get(alike * perStage + inStage) ?? []
}

const layoutOf = (side: Side, which: number, tensors: ReadonlyArray<Parted>): MappedLayout => {
  const { stated, mapped, places, perStage, positionOf } = side
  const firstRank = stated.firstRank ?? 0
  const ranks = Array.from({ length: worldSizeOf(stated.config) }, (_, at) => firstRank + at)
  const placeAt = (rank: Rank): RankPlace | undefined =>
    rank >= firstRank && rank < firstRank + ranks.length ? placeOf(stated.config, firstRank, rank) : undefined
  const byStage: ReadonlyArray<Array<Parted>> = Array.from({ length: stated.config.pp }, () => [])
  for (const one of tensors) for (const stage of one.sides[which]!.stages) byStage[stage]!.push(one)
  const said = (place: RankPlace, visit: (parted: Parted, one: ReturnType<typeof parametersAt>[number]) => void) => {
    const inStage = positionOf.get(positionKey(place))! % perStage
    for (const parted of byStage[place.stage]!)
      for (const one of parametersAt(parted, which, place.stage, inStage, perStage)) visit(parted, one)
  }
  const expertOf = ({ experts, parts }: Parted, part: number) =>
    experts === undefined ? undefined : { count: experts.count, number: experts.number ?? parts.parts[part]!.expert! }
  const held = once((position: number): MappedRank => {
    const place = places[position]!
    // What positions hold was assembled for the parts, so none fails here.
    const own = Result.getOrElse(mapped.rankAt(place), () => nothing)
    return heldAs(own, (name) => stated.dtypeOf?.(place, name))
  })
  const parameters = once((position: number): ReadonlyArray<MappedParameter> => {
    const place = places[position]!
    const named = Result.getOrElse(mapped.tensorsAt(place), () => [])
    const found: Array<MappedParameter> = []
    said(place, (parted, { groups, local, metadata, offset, part, scalar, strides }) => {
      const name = parted.names[part]!
      const own = local === undefined ? named[0] : parted.sides[which]!.uses[Number(local)]!.tensor
      const globalExpertIndex = expertOf(parted, part)?.number ?? null
      found.push({
        groups,
        view: { tensor: own?.name ?? "", offset, shape: metadata.shape, strides },
        scalar,
        metadata: { ...metadata, name, resolvedName: name, globalExpertIndex }
      })
    })
    return found
  })
  const positionAt = (place: RankPlace): number => positionOf.get(positionKey(place))!
  return {
    ranks,
    roster: rosterOf(stated.config, firstRank, ranks, positionKey, (place, visit) =>
      said(place, (parted, one) => visit(one, parted.names[one.part]!, expertOf(parted, one.part)))
    ),
    rankOf: (rank) => {
      const place = placeAt(rank)
      return place === undefined ? nothing : held(positionAt(place))
    },
    parametersOf: (rank) => {
      const place = placeAt(rank)
      return place === undefined ? [] : parameters(positionAt(place))
    }
  }
}

const nothing: MappedRank = { tensors: [], aliases: new Map() }

/** `find`, computed once for each position. */
const once = <A>(find: (position: number) => A): ((position: number) => A) => {
  const known = new Map<number, A>()
  return (position) => {
    const found = known.get(position) ?? find(position)
    known.set(position, found)
    return found
  }
}

/** The same with the types in which a rank holds its tensors. */
const heldAs = (rank: MappedRank, dtypeOf: (name: string) => DType | undefined): MappedRank => {
  const isSame = rank.tensors.every(({ name, dtype }) => (dtypeOf(name) ?? dtype) === dtype)
  return isSame
    ? rank
    : { ...rank, tensors: rank.tensors.map((one) => ({ ...one, dtype: dtypeOf(one.name) ?? one.dtype })) }
}

/** Both sides of a transfer. */
export interface MappedLayouts {
  /** The side that gives. */
  readonly source: MappedLayout
  /** The side that gets. */
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
    const part = parting(sides)
    const parted: Array<Parted> = []
    const scalars = new Map<string, Scalar>()
    for (const tensor of tensors) {
      const one = yield* part(tensor, experts.get(tensor.name))
      parted.push(one)
      for (const [at, { scalar }] of one.parts.parts.entries())
        if (scalar !== undefined) scalars.set(one.names[at]!, scalar)
    }
    return {
      source: layoutOf(sides[0], 0, parted),
      destination: layoutOf(sides[1], 1, parted),
      scalarOf: (paramName) => scalars.get(paramName)
    }
  })
