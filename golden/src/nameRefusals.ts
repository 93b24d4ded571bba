// SPDX-License-Identifier: Apache-2.0
/**
 * Faults that recorded systems met in a checkpoint, a config or a plan: a careful mapping refuses them by kind and name, and
 * takes what is legal. What the systems themselves did is no standard: many a fault went through in silence.
 */
import type { Shape } from "@tensorferry/core/base/Region"
import { describeModel } from "@tensorferry/model/describe/describeModel"
import type { ModelStructure } from "@tensorferry/model/describe/ModelStructure"
import { findFamily } from "@tensorferry/model/families/families"
import { type LayoutError, type ModelTensor, worldSizeOf } from "@tensorferry/model/layout/ModelLayout"
import { placeOf } from "@tensorferry/model/layout/ParallelConfig"
import { MappingError } from "@tensorferry/model/names/MappingError"
import { type MappedModel, mapModel } from "@tensorferry/model/names/mapModel"
import { type Move, type MovePlan, proveMapped, proveMoves } from "@tensorferry/model/names/proveMoves"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import { biasShape, promisedShape } from "@tensorferry/model/structure/promisedShape"
import * as Result from "effect/Result"
import {
  type Named,
  type NameVerdict,
  type RecordedFamily,
  type RecordedMapping,
  type RecordedNames,
  type RecordedRank,
  sideOf
} from "./nameMappings.ts"

/** A good checkpoint with one fault, and what is to be said of it. */
export interface NegativeCase {
  readonly id: string
  readonly config_changed?: { readonly [field: string]: ModelConfig[string] }
  readonly removed: ReadonlyArray<string>
  readonly added: Named
  readonly reshaped: Named
  readonly duplicated?: ReadonlyArray<string>
  readonly must_refuse: boolean
  readonly kind: string | null
  /** Any of these names, or what lies below it. */
  readonly subject: ReadonlyArray<string>
}

/** One edit of a recorded mapping, and what executing it finds. */
export interface PlanNegative {
  readonly id: string
  readonly base: string
  readonly edit: {
    readonly drop_move?: number
    readonly add_move?: Move
    readonly replace_move?: number
    readonly by?: Move
    readonly resize_destination?: number
    readonly shape?: Shape
    readonly remove_source?: number
    readonly add_fill?: MovePlan["fills"][number]
  }
  readonly kind: string
  readonly subject: { readonly [field: string]: unknown }
}

/** A checkpoint with its config. */
export interface Checkpoint {
  readonly config: ModelConfig
  readonly tensors: ReadonlyArray<ModelTensor>
}

const tensorsOf = (named: Named): ReadonlyArray<ModelTensor> =>
  named.map(([name, shape]) => ({ name, dtype: "bfloat16", shape }))

const describe = ({ config, tensors }: Checkpoint): ModelStructure => {
  const modelType = config.model_type as string
  return describeModel({ tensors, config, family: findFamily(modelType)!, modelType })
}

/** The checkpoint that a model of this config would have, from one of another config of the family. */
const followed = (checkpoint: Checkpoint): Checkpoint => {
  const { modules, unknown, numbers } = describe(checkpoint)
  const sites = new Map([
    ...modules.flatMap(({ path, kind: { spec }, expert, tensors }) =>
      tensors.map(({ name }) => [name, { path, spec, expert }] as const)
    ),
    ...unknown.flatMap(({ tensor, site }) => (site === undefined ? [] : [[tensor, site] as const]))
  ])
  const tensors = checkpoint.tensors.flatMap((tensor): ReadonlyArray<ModelTensor> => {
    const site = sites.get(tensor.name)
    if (site === undefined) return [tensor]
    if (site.expert !== undefined && numbers.experts !== undefined && site.expert >= numbers.experts) return []
    const wanted = promisedShape(site.spec, numbers)
    if (wanted === undefined) return [tensor]
    const suffix = tensor.name.slice(site.path.length)
    const own = suffix === ".bias" || suffix === "_bias" ? biasShape(site.spec, wanted) : wanted
    if (suffix !== "" && !/^[._](weight|bias)$/.test(suffix)) return [tensor]
    return [{ ...tensor, shape: tensor.shape.map((length, dim) => own[dim] ?? length) }]
  })
  return { ...checkpoint, tensors }
}

/**
 * The checkpoint of a negative case. A changed config is that of another model, except where the case is about a checkpoint
 * that is not of its config.
 */
export const faultyCheckpoint = (negative: NegativeCase, config: ModelConfig, sources: Named): Checkpoint => {
  const { config_changed: changed = {}, removed, added, reshaped, duplicated = [], kind } = negative
  const base: Checkpoint = { config: { ...config, ...changed }, tensors: tensorsOf(sources) }
  const isOther = Object.keys(changed).length > 0 && kind !== "shape_mismatch" && kind !== "missing_source"
  const { tensors } = isOther ? followed(base) : base
  const shapes = new Map(reshaped)
  const kept = tensors.flatMap((tensor) =>
    removed.includes(tensor.name) ? [] : [{ ...tensor, shape: shapes.get(tensor.name) ?? tensor.shape }]
  )
  const again = kept.filter(({ name }) => duplicated.includes(name))
  const all = [...kept, ...tensorsOf(added)].sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0))
  return { config: base.config, tensors: [...all, ...again] }
}

const isSubject = (subject: string, wanted: ReadonlyArray<string>): boolean =>
  wanted.some((name) => subject === name || subject.startsWith(`${name}.`))

/** What every rank has is proven: each element once, from what is there. */
const rankFault = (model: MappedModel, tensors: ReadonlyArray<ModelTensor>): string | undefined => {
  const shapes = new Map(tensors.map(({ name, shape }) => [name, shape]))
  for (let rank = 0; rank < worldSizeOf(model.config); rank++) {
    const mapped = model.rankAt(placeOf(model.config, 0, rank))
    if (Result.isFailure(mapped)) return mapped.failure.message
    const [fault] = proveMapped(mapped.success.tensors, shapes)
    if (fault !== undefined) return `rank ${rank}: ${JSON.stringify(fault)}`
  }
  return undefined
}

/** Whether a mapping refuses a faulty checkpoint as it should, and takes a legal one. */
export const judgeNegative = (
  negative: NegativeCase,
  checkpoint: Checkpoint,
  mapped: Result.Result<MappedModel, MappingError | LayoutError | Error>
): string | undefined => {
  const { must_refuse: mustRefuse, kind, subject } = negative
  if (!mustRefuse)
    return Result.isFailure(mapped)
      ? `refused: ${mapped.failure.message}`
      : rankFault(mapped.success, checkpoint.tensors)
  if (Result.isSuccess(mapped)) return `accepted, and ${kind} of ${subject.join(" or ")} is to be refused`
  const error = mapped.failure
  return error instanceof MappingError && error.kind === kind && isSubject(error.subject, subject)
    ? undefined
    : `${error.message}; recorded ${kind} of ${subject.join(" or ")}`
}

/** A recorded mapping as a plan of moves. */
const planOf = ({ destinations, moves, fills, unwritten }: RecordedMapping, sources: Named): MovePlan => ({
  sources,
  destinations,
  moves,
  fills,
  unwritten
})

const replaced = <A>(list: ReadonlyArray<A>, at: number, ...by: ReadonlyArray<A>): ReadonlyArray<A> => [
  ...list.slice(0, at),
  ...by,
  ...list.slice(at + 1)
]

const edited = (plan: MovePlan, edit: PlanNegative["edit"]): MovePlan => {
  const { drop_move: dropped, add_move: added, replace_move: replacing, resize_destination: resized } = edit
  if (dropped !== undefined) return { ...plan, moves: replaced(plan.moves, dropped) }
  if (added !== undefined) return { ...plan, moves: [...plan.moves, added] }
  if (replacing !== undefined) return { ...plan, moves: replaced(plan.moves, replacing, edit.by!) }
  if (edit.add_fill !== undefined) return { ...plan, fills: [...plan.fills, edit.add_fill] }
  if (resized !== undefined) {
    const [name] = plan.destinations[resized]!
    return { ...plan, destinations: replaced(plan.destinations, resized, [name, edit.shape!]) }
  }
  const removed = edit.remove_source!
  return { ...plan, sources: replaced(plan.sources, removed, [plan.sources[removed]![0], undefined]) }
}

/** Whether the proof finds in an edited plan what executing it finds, and nothing in the plan itself. */
export const judgePlan = (
  { edit, kind, subject }: PlanNegative,
  base: RecordedMapping,
  sources: Named
): string | undefined => {
  const plan = planOf(base, sources)
  const [before] = proveMoves(plan)
  if (before !== undefined) return `before the edit: ${JSON.stringify(before)}`
  const [found, ...more] = proveMoves(edited(plan, edit))
  const { kind: own, ...rest } = found ?? { kind: "nothing" }
  const fields = Object.keys(subject)
  const isSame =
    own === kind &&
    more.length === 0 &&
    fields.length === Object.keys(rest).length &&
    fields.every((field) => JSON.stringify(subject[field]) === JSON.stringify((rest as typeof subject)[field]))
  return isSame ? undefined : `${JSON.stringify([found, ...more])}; recorded ${kind} ${JSON.stringify(subject)}`
}

/** A negative case of a system with degrees. */
interface RankedNegative extends NegativeCase, Pick<RecordedRank, "tp" | "ep" | "pp" | "etp" | "vocab_divisor"> {
  readonly family: string
  readonly rank?: number
}

/** A file of recorded mappings with the faults that its system met. */
export interface RecordedRefusals extends RecordedNames {
  readonly to_hf?: ReadonlyArray<RecordedMapping>
  readonly negative: ReadonlyArray<RankedNegative>
  readonly plan_negative: ReadonlyArray<PlanNegative>
}

const refusalOf = (engine: string, negative: RankedNegative, family: RecordedFamily): string | undefined => {
  const { tp, rank = 0, ep, pp, etp, vocab_divisor: divisor } = negative
  const site = { tp, rank, ep, pp, etp, ...(divisor === 0 ? {} : { vocab_divisor: divisor }) } as RecordedRank
  const checkpoint = faultyCheckpoint(negative, family.hf_config, family.sources)
  const { config, tensors } = checkpoint
  const mapped = Result.flatMap(sideOf(engine, { ...family, hf_config: config }, site, tensors), (side) =>
    mapModel({ ...side, tensors })
  )
  return judgeNegative(negative, checkpoint, mapped)
}

/** Models of any recording; where every case has a checkpoint of its own, that of the first load is the model's. */
const modelsOf = ({ families }: Pick<RecordedNames, "families">): ReadonlyArray<RecordedFamily> =>
  families.flatMap((family) => {
    const sources = family.sources ?? family.cases.find(({ id }) => id.endsWith("/load"))?.sources
    return sources === undefined ? [] : [{ ...family, sources }]
  })

/** All refusals of a recorded system. Checkpoints of families that it has no good case of are in `others`. */
export const checkRefusals = (
  { engine, families, to_hf: back = [], negative, plan_negative: plans }: RecordedRefusals,
  others: ReadonlyArray<Pick<RecordedNames, "families">> = []
): ReadonlyArray<NameVerdict> => {
  const known = [...families, ...others.flatMap(modelsOf)]
  const refusals = negative.map((one) => {
    const family = known.find((own) => own.family === one.family && own.variant === undefined)
    const fault = family === undefined ? `there is no checkpoint of ${one.family}` : refusalOf(engine, one, family)
    return { name: `${engine} ${one.id}`, fault }
  })
  const bases = new Map<string, readonly [RecordedMapping, Named]>([
    ...families.flatMap((family) => family.cases.map((one) => [one.id, [one, one.sources ?? family.sources]] as const)),
    ...back.map((one) => [one.id, [one, one.sources ?? []]] as const)
  ])
  const proofs = plans.map((one) => {
    const base = bases.get(one.base)
    const fault = base === undefined ? `there is no case ${one.base}` : judgePlan(one, ...base)
    return { name: `${engine} ${one.id}`, fault }
  })
  return [...refusals, ...proofs]
}
