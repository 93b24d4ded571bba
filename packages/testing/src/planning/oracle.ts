// SPDX-License-Identifier: Apache-2.0
/**
 * What must be true of an update, found by brute force: every element of every tensor is numbered in the whole model, the
 * source gets the numbers that it should hold, the plan is carried out with real bytes, and every element of the
 * destination is compared with the number that it should hold.
 *
 * Invariant: reads layouts by its own arithmetic, element by element; it shares no code with the planners.
 */

import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { ParameterMetadata } from "@tensorferry/core/layout/ParameterMetadata"
import { parametersOf, type Roster } from "@tensorferry/core/layout/Roster"
import type { PlanError } from "@tensorferry/core/planner/PlanError"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import type { ReshardError } from "@tensorferry/core/reshard/ReshardError"
import type { CopyError } from "@tensorferry/core/service/CopyService"
import type { TensorEngine, TensorError } from "@tensorferry/core/service/TensorEngine"
import { tensorElementCount } from "@tensorferry/core/tensor/Tensor"
import { type TensorDict, tensorDict } from "@tensorferry/core/tensor/TensorDict"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { CaseFailure } from "../conformance/Case.ts"
import { type Form, gatherElements, loadBytes, type Placed, place, poison, setElements } from "../conformance/memory.ts"
import { type RankServices, runCluster, type VirtualClusterOptions } from "../VirtualCluster.ts"
import { elementCodec } from "../values/casts.ts"

/** Indices of the whole tensor, per dimension, that a local shard holds in local order. */
export const heldIndices = (parameter: ParameterMetadata): ReadonlyArray<ReadonlyArray<number>> =>
  parameter.shape.map((length, dim) => {
    const all = Array.from({ length }, (_, at) => at)
    if (dim !== parameter.partitionDim) return all
    if (parameter.partitionOffsets !== null) {
      return parameter.partitionOffsets.flatMap(([start, stop]) =>
        Array.from({ length: stop - start }, (_, at) => start + at)
      )
    }
    const group = parameter.tensorParallelGroupRanks ?? [parameter.ownerRank]
    if (!parameter.isTp) return all
    const [size, own] = [group.length, group.indexOf(parameter.ownerRank)]
    if (parameter.partitionSizes !== null) {
      let before = 0
      return parameter.partitionSizes.flatMap((block) => {
        const start = before + own * block
        before += block * size
        return Array.from({ length: block }, (_, at) => start + at)
      })
    }
    const segments = Math.max(1, parameter.partitionStride)
    const segment = length / segments
    return all.map((at) => (Math.floor(at / segment) * size + own) * segment + (at % segment))
  })

const mix = (hash: number, value: number): number => Math.imul(hash ^ (value + 1), 0x01000193) ^ (hash >>> 13)

/** A number for each element of a shard, in local order, made from its name and its place in the whole tensor. */
const elementNumbers = (parameter: ParameterMetadata, name: string, round: number): ReadonlyArray<number> => {
  let seed = mix(0x811c9dc5, round)
  for (const character of name) seed = mix(seed, character.charCodeAt(0))
  let numbers: ReadonlyArray<number> = [seed]
  for (const indices of heldIndices(parameter)) {
    numbers = numbers.flatMap((prefix) => indices.map((index) => mix(prefix, index)))
  }
  return numbers.map((number) => number >>> 0)
}

/** Types whose values of up to 24 bits are exact; all others are compared by seven bits. */
const isWide = (dtype: DType): boolean => bitsOf(dtype) >= 32

/** Names whose tensors are narrow on any rank of either side. */
const narrowNames = (rosters: ReadonlyArray<Roster>): ReadonlySet<string> =>
  new Set(
    rosters.flatMap((roster) =>
      roster.members.flatMap(({ rank }) =>
        parametersOf(roster, rank).flatMap(({ dtype, resolvedName }) => (isWide(dtype) ? [] : [resolvedName]))
      )
    )
  )

/** What a shard must hold. An alias holds what the tensor holds whose storage it shares. */
const shardBytes = (model: OracleModel, parameter: ParameterMetadata, round: number): Uint8Array => {
  const isNarrow = model.narrow.has(parameter.resolvedName)
  const name = parameter.aliasOf ?? model.sourceAliases.get(parameter.resolvedName) ?? parameter.resolvedName
  const codec = elementCodec(parameter.dtype)!
  const size = bitsOf(parameter.dtype) / 8
  const numbers = elementNumbers(parameter, name, round)
  const bytes = new Uint8Array(numbers.length * size)
  const view = new DataView(bytes.buffer)
  for (const [at, number] of numbers.entries()) {
    codec.write(view, at * size, isNarrow ? number % 113 : number % 16_777_213)
  }
  return bytes
}

/** Which elements of one parameter on one rank are not as they should be. */
export interface OracleFault {
  readonly rank: Rank
  readonly paramName: string
  /** Elements with another value than they should have. */
  readonly wrong: number
  /** Elements that nobody wrote. */
  readonly missing: number
  readonly total: number
  /** The first of them. */
  readonly first: string
}

/** The fault in one line. */
export const describeFault = ({ rank, paramName, wrong, missing, total, first }: OracleFault): string =>
  `rank ${rank}, ${paramName}: ${wrong} of ${total} elements wrong, ${missing} never written; ${first}`

/** One rank's tensors of one side. */
export interface OracleSide {
  readonly parameters: ReadonlyArray<ParameterMetadata>
  readonly placed: ReadonlyMap<string, Placed>
  readonly dict: TensorDict
}

/** What all ranks of a trial share. */
export interface OracleModel {
  readonly source: Roster
  readonly destination: Roster
  readonly narrow: ReadonlySet<string>
  /** What the source declares to be another name of a tensor has that tensor's values everywhere. */
  readonly sourceAliases: ReadonlyMap<string, string>
  readonly forms: ReadonlyArray<Form>
}

/** A trial of an update between two rosters. Parameters take the forms of memory in turn. */
export const oracleModel = (
  source: Roster,
  destination: Roster,
  forms: ReadonlyArray<Form> = ["dense", "transposed", "padded"]
): OracleModel => ({
  source,
  destination,
  forms,
  narrow: narrowNames([source, destination]),
  sourceAliases: new Map(
    source.members.flatMap(({ rank }) =>
      parametersOf(source, rank).flatMap(({ aliasOf, resolvedName }) =>
        aliasOf === null ? [] : [[resolvedName, aliasOf] as const]
      )
    )
  )
})

/** Memory for one rank's side, poisoned; aliases share the storage of their owner. */
export const allocateSide = Effect.fnUntraced(function* (
  model: OracleModel,
  side: "source" | "destination",
  rank: Rank
): Effect.fn.Return<OracleSide | undefined, TensorError | CaseFailure, TensorEngine | Scope.Scope> {
  const parameters = parametersOf(model[side], rank)
  if (parameters.length === 0) return undefined
  const placed = new Map<string, Placed>()
  const aliases = new Map<string, string>()
  for (const [at, parameter] of parameters.entries()) {
    if (parameter.aliasOf !== null) continue
    const form = model.forms[(at + rank) % model.forms.length]!
    placed.set(parameter.name, yield* place(parameter.dtype, parameter.shape, form))
  }
  for (const parameter of parameters) {
    const owner = parameters.find((other) => other.resolvedName === parameter.aliasOf && other.aliasOf === null)
    if (owner === undefined) continue
    placed.set(parameter.name, placed.get(owner.name)!)
    aliases.set(parameter.name, owner.name)
  }
  return {
    parameters,
    placed,
    dict: tensorDict(
      [...placed].map(([name, { tensor }]) => [name, tensor] as const),
      { aliases }
    )
  }
})

/** Which update of several; named, because a declaration of an unnamed default would show `any`. */
type Round = number

/** Gives a side the values that it should hold in this round. */
export const fillSide = Effect.fnUntraced(function* (model: OracleModel, side: OracleSide, round: Round = 0) {
  for (const parameter of side.parameters) {
    yield* setElements(side.placed.get(parameter.name)!, shardBytes(model, parameter, round))
  }
})

/** Everything that a side does not hold as it should. */
export const judgeSide = Effect.fnUntraced(function* (
  model: OracleModel,
  side: OracleSide,
  rank: Rank,
  round: Round = 0
): Effect.fn.Return<ReadonlyArray<OracleFault>, TensorError | CaseFailure, TensorEngine> {
  const faults: Array<OracleFault> = []
  for (const parameter of side.parameters) {
    const { tensor, whole } = side.placed.get(parameter.name)!
    const size = bitsOf(parameter.dtype) / 8
    const expected = shardBytes(model, parameter, round)
    const actual = gatherElements(tensor, yield* loadBytes(whole))
    let [wrong, missing] = [0, 0]
    let first = ""
    for (let at = 0; at < tensorElementCount(tensor); at++) {
      const got = actual.subarray(at * size, (at + 1) * size)
      const wanted = expected.subarray(at * size, (at + 1) * size)
      if (Buffer.compare(got, wanted) === 0) continue
      if (got.every((byte) => byte === poison)) missing++
      else wrong++
      first ||= `element ${at} is ${Buffer.from(got).toString("hex")} instead of ${Buffer.from(wanted).toString("hex")}`
    }
    if (wrong + missing > 0) {
      faults.push({ rank, paramName: parameter.name, wrong, missing, total: tensorElementCount(tensor), first })
    }
  }
  return faults
})

/** Ranks of the job that holds both sides. */
export const jobSize = (...rosters: ReadonlyArray<Roster>): number =>
  1 + Math.max(0, ...rosters.flatMap((roster) => roster.members.map(({ rank }) => rank)))

/** How an update may fail before its elements can be compared. */
export type OracleFailure = TensorError | CaseFailure | CopyError | ReshardError | PlanError

/** One rank of an update from the source's values into poisoned memory. */
const updateRank = (
  model: OracleModel,
  plan: ReshardPlan
): Effect.Effect<ReadonlyArray<OracleFault>, OracleFailure, RankServices> =>
  Effect.gen(function* () {
    const source = yield* allocateSide(model, "source", plan.rank)
    const destination = yield* allocateSide(model, "destination", plan.rank)
    if (source !== undefined) yield* fillSide(model, source)
    yield* executeReshardPlan(plan, source?.dict, destination?.dict)
    return destination === undefined ? [] : yield* judgeSide(model, destination, plan.rank)
  })

/** Carries out the plans of two rosters on a virtual cluster; every element that is not as it should be. */
export const runOracle = <E = never>(
  source: Roster,
  destination: Roster,
  options: Omit<VirtualClusterOptions<E>, "size"> & { readonly forms?: ReadonlyArray<Form> } = {}
): Effect.Effect<ReadonlyArray<OracleFault>, OracleFailure | E> =>
  Effect.gen(function* () {
    const model = oracleModel(source, destination, options.forms)
    const index = yield* Effect.fromResult(indexRosters(source, destination))
    const size = jobSize(source, destination)
    const faults = yield* runCluster({ ...options, size }, (rank) => updateRank(model, planRank(index, rank)))
    return faults.flat()
  })

/** From A to B and from what B then holds back to fresh memory of A: what A does not hold as before. */
export const runRoundTrip = <E = never>(
  a: Roster,
  b: Roster,
  options: Omit<VirtualClusterOptions<E>, "size"> = {}
): Effect.Effect<ReadonlyArray<OracleFault>, OracleFailure | E> =>
  Effect.gen(function* () {
    const there = yield* Effect.fromResult(indexRosters(a, b))
    const back = yield* Effect.fromResult(indexRosters(b, a))
    const [from, to] = [oracleModel(a, b), oracleModel(b, a)]
    const faults = yield* runCluster({ ...options, size: jobSize(a, b) }, (rank) =>
      Effect.gen(function* () {
        const source = yield* allocateSide(from, "source", rank)
        const middle = yield* allocateSide(from, "destination", rank)
        const again = yield* allocateSide(to, "destination", rank)
        if (source !== undefined) yield* fillSide(from, source)
        yield* executeReshardPlan(planRank(there, rank), source?.dict, middle?.dict)
        yield* executeReshardPlan(planRank(back, rank), middle?.dict, again?.dict)
        return again === undefined ? [] : yield* judgeSide(to, again, rank)
      })
    )
    return faults.flat()
  })
