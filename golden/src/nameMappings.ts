// SPDX-License-Identifier: Apache-2.0
/**
 * Names and fusions as recorded by running a system on numbered tensors: which element of which checkpoint tensor ends where,
 * for every rank, against what our conventions make of the same model.
 */
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import type { ModelTensor, ParallelConfig } from "@tensorferry/model/layout/ModelLayout"
import { placeOf } from "@tensorferry/model/layout/ParallelConfig"
import type { Convention } from "@tensorferry/model/names/conventions/Convention"
import { megatron, megatronLocal } from "@tensorferry/model/names/conventions/megatron"
import { sglang } from "@tensorferry/model/names/conventions/sglang"
import { vllm } from "@tensorferry/model/names/conventions/vllm"
import { type MappedRank, type MappedTensor, mapModel } from "@tensorferry/model/names/mapModel"
import type { MappedSide } from "@tensorferry/model/names/mappedLayouts"
import { linearStrip, type Scalar } from "@tensorferry/model/names/Strips"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Result from "effect/Result"

/** Names with shapes, in an order by which elements are numbered. */
export type Named = ReadonlyArray<readonly [string, Shape]>
type Loops = ReadonlyArray<readonly [count: number, destination: number, source: number]>
type Op = readonly ["add", number] | "neg_exp"

/** One rank's side of a recorded mapping, in the form `names/1`. */
export interface RecordedMapping {
  readonly id: string
  readonly sources?: Named
  readonly destinations: Named
  readonly aliases: { readonly [name: string]: string }
  readonly moves: ReadonlyArray<readonly [number, number, number, number, Loops, Op?]>
  readonly fills: ReadonlyArray<readonly [number, number, ReadonlyArray<readonly [number, number]>, 0]>
  readonly unwritten: ReadonlyArray<readonly [number, number, ReadonlyArray<readonly [number, number]>]>
  readonly unused_sources: ReadonlyArray<number>
}

/** What elements hold: the number of a source's element, 0 for a zero, -1 for what nobody writes. */
interface ElementMap {
  readonly shape: Shape
  readonly numbers: Int32Array
  readonly ops: ReadonlyArray<string>
}

/** Visits every element of nested loops: its place, and where it comes from. Millions are visited in a test. */
const walk = (loops: ReadonlyArray<readonly number[]>, visit: (own: number, other: number) => void): void => {
  const last = loops.length - 1
  const step = (at: number, own: number, other: number): void => {
    const [count, ownStep, otherStep = 0] = loops[at]! as readonly [number, number, number?]
    for (let index = 0; index < count; index++) {
      if (at === last) visit(own + index * ownStep, other + index * otherStep)
      else step(at + 1, own + index * ownStep, other + index * otherStep)
    }
  }
  if (last < 0) visit(0, 0)
  else step(0, 0, 0)
}

/** The number of the first element of each. */
export const firstNumbers = (sources: Named): ReadonlyArray<number> => {
  let next = 1
  return sources.map(([, shape]) => {
    next += elementCount(shape)
    return next - elementCount(shape)
  })
}

const emptyMap = (shape: Shape): { shape: Shape; numbers: Int32Array; ops: Array<string> } => ({
  shape,
  numbers: new Int32Array(elementCount(shape)).fill(-2),
  ops: []
})

/** The recorded element maps by name. */
export const recordedMaps = (recorded: RecordedMapping, sources: Named): ReadonlyMap<string, ElementMap> => {
  const firsts = firstNumbers(sources)
  const maps = recorded.destinations.map(([, shape]) => emptyMap(shape))
  for (const [destination, at, source, from, loops, op] of recorded.moves) {
    const map = maps[destination]!
    walk(loops, (own, other) => {
      map.numbers[at + own] = firsts[source]! + from + other
    })
    if (op !== undefined && op !== null) map.ops.push(typeof op === "string" ? op : `${op[0]} ${op[1]}`)
  }
  for (const [destination, at, loops] of recorded.fills)
    walk(loops, (own) => {
      maps[destination]!.numbers[at + own] = 0
    })
  for (const [destination, at, loops] of recorded.unwritten)
    walk(loops, (own) => {
      maps[destination]!.numbers[at + own] = -1
    })
  return new Map(recorded.destinations.map(([name], at) => [name, maps[at]!]))
}

const opName = (scalar: Scalar): string =>
  scalar === "negExp" ? "neg_exp" : scalar === "logNeg" ? "log_neg" : `add ${scalar.add}`

/** Our element map of a tensor. Elements that two strips write are found. */
export const elementMap = (
  { shape, strips }: Pick<MappedTensor, "shape" | "strips">,
  firsts: ReadonlyMap<string, number>
): ElementMap & { readonly fault: string | undefined } => {
  const map = emptyMap(shape)
  let fault: string | undefined
  const { numbers } = map
  for (const strip of strips) {
    const { source, at, from, loops, scalar } = linearStrip(strip, shape)
    const first = source === undefined ? 0 : firsts.get(source)! + from
    walk(loops, (own, other) => {
      if (numbers[at + own] !== -2) fault ??= `element ${at + own} is written twice`
      numbers[at + own] = source === undefined ? 0 : first + other
    })
    if (scalar !== undefined) map.ops.push(opName(scalar))
  }
  const hole = map.numbers.indexOf(-2)
  if (hole >= 0) fault ??= `element ${hole} is not written`
  return { ...map, fault }
}

/** Element maps of tensors that are looked at again, by how the checkpoint's elements are numbered. */
const known = new WeakMap<ReadonlyMap<string, number>, WeakMap<object, ReturnType<typeof elementMap>>>()

/** The same, made once for a tensor. */
export const elementMapOnce = (
  tensor: Pick<MappedTensor, "shape" | "strips">,
  firsts: ReadonlyMap<string, number>
): ReturnType<typeof elementMap> => {
  const own = known.get(firsts) ?? new WeakMap<object, ReturnType<typeof elementMap>>()
  known.set(firsts, own)
  const found = own.get(tensor.strips) ?? elementMap(tensor, firsts)
  own.set(tensor.strips, found)
  return found
}

const compareTensor = (name: string, own: ElementMap & { readonly fault: string | undefined }, other: ElementMap) => {
  if (own.fault !== undefined) return `${name}: ${own.fault}`
  if (own.shape.join() !== other.shape.join()) return `${name}: shape [${own.shape}], recorded [${other.shape}]`
  const at = own.numbers.findIndex((number, element) => number !== other.numbers[element])
  if (at >= 0) return `${name}, element ${at}: ${own.numbers[at]}, recorded ${other.numbers[at]}`
  if (own.ops.join() !== other.ops.join()) return `${name}: ops [${own.ops}], recorded [${other.ops}]`
  return undefined
}

/** What differs first between a rank as we map it and as it was recorded. */
export const compareRank = (rank: MappedRank, recorded: RecordedMapping, sources: Named): string | undefined => {
  const numbers = firstNumbers(sources)
  const firsts = new Map(sources.map(([name], at) => [name, numbers[at]!]))
  const wanted = recordedMaps(recorded, sources)
  for (const [name, { numbers: elements }] of wanted) {
    const isMade = rank.tensors.some((tensor) => tensor.name === name)
    // What a system leaves as it was, we do not make.
    const isUnwritten = elements.length > 0 && elements.every((number) => number === -1)
    if (isMade === isUnwritten) return `${name} is ${isMade ? "made, recorded unwritten" : "missing"}`
  }
  for (const tensor of rank.tensors) {
    const other = wanted.get(tensor.name)
    if (other === undefined) return `${tensor.name} is not recorded`
    const fault = compareTensor(tensor.name, elementMap(tensor, firsts), other)
    if (fault !== undefined) return fault
  }
  for (const [name, of] of Object.entries(recorded.aliases))
    if (rank.aliases.get(name) !== of) return `alias ${name} of ${of}: we have ${rank.aliases.get(name)}`
  for (const name of rank.aliases.keys()) if (!(name in recorded.aliases)) return `alias ${name} is not recorded`
  const used = new Set(rank.tensors.flatMap(({ strips }) => strips.map(({ source }) => source)))
  for (const [at, [name]] of sources.entries())
    if (used.has(name) === recorded.unused_sources.includes(at))
      return `source ${name}: ${used.has(name) ? "used" : "not used"}, recorded otherwise`
  return undefined
}

/** Where a recorded rank stands, as the recording says it. */
export interface RecordedRank extends RecordedMapping {
  readonly tp: number
  readonly rank: number
  readonly expert_parallel?: boolean
  readonly expert_placement?: string
  readonly pipeline?: { readonly stage: number; readonly stages: number }
  readonly ep?: number
  readonly pp?: number
  readonly etp?: number
  readonly vocab_divisor?: number
}

/** A model of a recorded system, and its ranks. */
export interface RecordedFamily {
  readonly family: string
  readonly variant?: string
  readonly hf_config: ModelConfig
  readonly sources: Named
  readonly float32_parameters_of_bfloat16_model?: ReadonlyArray<string> | null
  readonly cases: ReadonlyArray<RecordedRank>
}

/** A file of recorded mappings of one system. */
export interface RecordedNames {
  readonly engine: string
  readonly families: ReadonlyArray<RecordedFamily>
}

export interface NameVerdict {
  readonly name: string
  readonly fault: string | undefined
}

/** Degrees and rank in our terms. */
export const siteOf = (one: RecordedRank): { readonly config: ParallelConfig; readonly rank: number } => {
  if (one.pp === undefined || one.ep === undefined || one.etp === undefined) {
    const stages = one.pipeline?.stages ?? 1
    return {
      config: { tp: one.tp, pp: stages, dp: 1, ...(one.expert_parallel === true ? { ep: one.tp } : {}) },
      rank: (one.pipeline?.stage ?? 0) * one.tp + one.rank
    }
  }
  const dp = Math.max(1, (one.ep * one.etp) / one.tp)
  return { config: { tp: one.tp, pp: one.pp, dp, ep: one.ep, etp: one.etp }, rank: one.rank }
}

/** The convention of a recorded system. */
export const conventionOf = (engine: string, variant: string | undefined): Convention =>
  engine === "sglang" ? sglang : engine === "megatron" ? (variant === "local" ? megatronLocal : megatron) : vllm

/** How a recorded side is laid out, as a side of a transfer. */
export const sideOf = (
  engine: string,
  { hf_config: hfConfig, variant }: RecordedFamily,
  one: RecordedRank,
  tensors: ReadonlyArray<ModelTensor>
): Result.Result<MappedSide, Error> => {
  const { config } = siteOf(one)
  const convention = conventionOf(engine, variant)
  const divisor = one.vocab_divisor === undefined ? {} : { vocabularyDivisor: one.vocab_divisor }
  const options = { stages: config.pp, tp: config.tp, ...divisor }
  const experts = one.expert_placement === "round_robin" ? { experts: "round_robin" as const } : {}
  const choice = { preset: hfConfig.model_type as string, config: hfConfig, placement: {} }
  return Result.map(structureOf(tensors, choice), (structure) => ({
    structure,
    mapping: convention.mapping(structure, options),
    config,
    placement: { ...convention.placement(options), ...experts }
  }))
}

/** Maps one rank of a recorded model. */
export const mapRecorded = (
  engine: string,
  family: RecordedFamily,
  one: RecordedRank,
  sources: Named
): Result.Result<MappedRank, Error> => {
  const tensors = sources.map(([name, shape]): ModelTensor => ({ name, dtype: "bfloat16", shape }))
  const { config, rank } = siteOf(one)
  return Result.gen(function* () {
    const side = yield* sideOf(engine, family, one, tensors)
    const mapped = yield* mapModel({ ...side, tensors })
    return yield* mapped.rankAt(placeOf(config, 0, rank))
  })
}

/** Types that a bfloat16 model keeps wider: the mapping says them. */
const compareTypes = (rank: MappedRank, recorded: RecordedFamily): string | undefined => {
  const wide = recorded.float32_parameters_of_bfloat16_model
  if (wide === undefined || wide === null) return undefined
  const wrong = rank.tensors.find(({ name, dtype }) => (dtype === "float32") !== wide.includes(name))
  return wrong === undefined ? undefined : `${wrong.name} is ${wrong.dtype}, recorded otherwise`
}

/** All ranks of a recorded system. */
export const checkNames = ({ engine, families }: RecordedNames): ReadonlyArray<NameVerdict> =>
  families.flatMap((family) =>
    family.cases.map((one) => {
      const sources = one.sources ?? family.sources
      const rank = mapRecorded(engine, family, one, sources)
      const fault = Result.isFailure(rank)
        ? rank.failure.message
        : (compareRank(rank.success, one, sources) ?? compareTypes(rank.success, family))
      return { name: `${engine} ${one.id}`, fault }
    })
  )
