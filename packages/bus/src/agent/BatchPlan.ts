// SPDX-License-Identifier: Apache-2.0
/**
 * What all ranks of a batch registered, checked against each other, and the plans that follow. Pure.
 *
 * Tensors of a pair meet by name where every rank names all of its own. Otherwise they meet in the order in which each side
 * lists them, as clients that state no names expect. Pairs are taken by name, so that sides may list them in any order.
 */

import { DType, isCastable } from "@tensorferry/core/base/DType"
import { Natural } from "@tensorferry/core/base/Numbers"
import { equalShapes, formatShape, Shape } from "@tensorferry/core/base/Region"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import { coordinateAt } from "@tensorferry/core/layout/DeviceMesh"
import { type MeshLayout, Placement as MeshPlacement, meshLayout } from "@tensorferry/core/layout/Placement"
import { localShard, splitsOf } from "@tensorferry/core/layout/ShardIntervals"
import { indexLowering, lowerRank, type MeshTensorSpec } from "@tensorferry/core/planner/Lowering"
import { planMesh } from "@tensorferry/core/planner/MeshPlanner"
import type { Device } from "@tensorferry/core/tensor/Device"
import { NamedSide } from "@tensorferry/model/names/NamedSide"
import { Placement } from "@tensorferry/model/placement/Placement"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type BusError, busError } from "../BusError.ts"
import { cutFault, formWire } from "./QuantizedHeld.ts"
import type { PairMembers } from "./Registration.ts"

export const BatchTensor = Schema.Struct({
  pair: Schema.String,
  name: Schema.NullOr(Schema.String),
  dtype: DType,
  shape: Shape,
  /** How it lies on the mesh of its side, where that is not what the pair says. */
  placements: Schema.optionalKey(Schema.Array(MeshPlacement)),
  /** The form in which the rank holds it, in words, and rows and columns that share a scale; type and shape are of its values. */
  form: Schema.optionalKey(Schema.Struct({ id: Schema.String, block: Schema.Tuple([Natural, Natural]) }))
})
export type BatchTensor = typeof BatchTensor.Type

/** How a rank names and cuts a model, and which. */
export const ModelStatement = Schema.Struct({ side: NamedSide, placement: Placement, digest: Schema.String })

/** What one rank registered. */
export const BatchStatement = Schema.Struct({
  version: Schema.Literal(7),
  /** Family of the devices that all tensors of the rank lie on. */
  family: Schema.String,
  /** By pair, and then as the client lists them. */
  tensors: Schema.Array(BatchTensor),
  /** Where tensors go by the names of a system, and not by places of a mesh. */
  model: Schema.optionalKey(ModelStatement),
  bucketBytes: Schema.NullOr(Natural),
  /** Whether transfers move what changed since the one before. */
  movesChanges: Schema.Boolean
})
export type BatchStatement = typeof BatchStatement.Type

export const statementCodec = Schema.fromJsonString(BatchStatement)

/** The order of tensors in a statement, as indices into the client's list. */
export const planOrder = (pairs: ReadonlyArray<string>): ReadonlyArray<number> =>
  pairs.map((_, at) => at).sort((a, b) => (pairs[a]! < pairs[b]! ? -1 : pairs[a]! > pairs[b]! ? 1 : a - b))

/** 0: from side 0 to side 1. */
export type Direction = 0 | 1

export interface BatchPlans {
  /** Name of each tensor, in the order of the plan. */
  readonly names: ReadonlyArray<string>
  /** Place of each of these tensors in the statement of this rank. */
  readonly order: ReadonlyArray<number>
  /** Names of those that one side holds quantized. */
  readonly quantized: ReadonlySet<string>
  /** By direction; a direction whose target is partial has none. */
  readonly plans: readonly [MeshPlan | undefined, MeshPlan | undefined]
}

export const mismatch = (batch: string, detail: string, peer?: number, paramName?: string | null): BusError =>
  busError("BatchMismatch", {
    op: "RegisterTensors",
    ...(peer === undefined ? {} : { peer }),
    ...(paramName === undefined || paramName === null ? {} : { paramName }),
    detail: `Batch ${batch}: ${detail}`,
    remedy: "Register the same tensors on all ranks of both sides: under the same names, or in the same order per pair."
  })

/** The whole tensor's shape from its shards, which must be those that the layout gives. */
const wholeShape = (layout: MeshLayout, shards: ReadonlyArray<Shape>, first: number): Result.Result<Shape, string> => {
  const { mesh } = layout
  const rankOf = (position: number) => mesh.ranks[position]! - first
  const tensorRank = shards[0]!.length
  const odd = shards.findIndex((shard) => shard.length !== tensorRank)
  if (odd >= 0) return Result.fail(`has ${shards[odd]!.length} dimensions on one rank and ${tensorRank} on another`)
  const placements = layout.placements.map((placement) =>
    "dim" in placement && placement.dim < 0 ? { ...placement, dim: placement.dim + tensorRank } : placement
  )
  const positive = { mesh, placements }
  const shape = shards[0]!.map((length, dim) => {
    const splitting = new Set(splitsOf(positive, dim).map(({ meshDim }) => meshDim))
    if (splitting.size === 0) return length
    let sum = 0
    for (const position of mesh.ranks.keys()) {
      if (coordinateAt(mesh, position).every((at, meshDim) => splitting.has(meshDim) || at === 0)) {
        sum += shards[rankOf(position)]![dim]!
      }
    }
    return sum
  })
  for (const [position, rank] of mesh.ranks.entries()) {
    const local = localShard(layout, shape, rank)
    if (Result.isFailure(local)) return Result.fail(local.failure.message)
    const given = shards[rankOf(position)]!
    if (!equalShapes(local.success.shape, given)) {
      return Result.fail(
        `is ${formatShape(given)} at place ${position} of its mesh, where its layout of ${formatShape(shape)} gives ${formatShape(local.success.shape)}`
      )
    }
  }
  return Result.succeed(shape)
}

interface SideTensor {
  readonly pair: string
  readonly name: string | null
  readonly dtype: DType
  readonly shape: Shape
  readonly layout: MeshLayout
  readonly form: BatchTensor["form"]
}

/** The tensors of one side, or what differs between its ranks. */
const sideTensors = (
  batch: string,
  side: Direction,
  membersOf: (pair: string) => PairMembers,
  statements: ReadonlyArray<BatchStatement>
): Result.Result<ReadonlyArray<SideTensor>, BusError> => {
  const { agents, sides } = membersOf(statements[0]!.tensors[0]!.pair)
  const first = side === 0 ? 0 : sides[0].agents.length
  const own = statements.slice(first, first + sides[side].agents.length)
  const kinds = ({ tensors }: BatchStatement) =>
    tensors.map(({ pair, dtype, form, name, placements }) => {
      const held = form === undefined ? dtype : form.id
      const lies = placements === undefined ? "" : ` as ${JSON.stringify(placements)}`
      return `${pair}${name === null ? "" : ` ${name}`}: ${held}${lies}`
    })
  const wanted = kinds(own[0]!)
  for (const [at, statement] of own.entries()) {
    const given = kinds(statement)
    const length = Math.max(given.length, wanted.length)
    const odd = Array.from({ length }, (_, index) => index).find((index) => given[index] !== wanted[index])
    if (odd !== undefined) {
      const agent = agents[first + at]!
      return Result.fail(
        mismatch(
          batch,
          `tensor ${odd} of side ${sides[side].name} is ${given[odd] ?? "missing"} on agent ${agent} and ${wanted[odd] ?? "missing"} on agent ${agents[first]}.`,
          agent
        )
      )
    }
  }
  const found: Array<SideTensor> = []
  for (const [at, { pair, dtype, form, name, placements }] of own[0]!.tensors.entries()) {
    const shards = own.map(({ tensors }) => tensors[at]!.shape)
    const { layout: usual } = membersOf(pair).sides[side]
    const refused = (detail: string) =>
      Result.fail(
        mismatch(
          batch,
          `tensor ${name ?? at}, of pair ${pair}, on side ${sides[side].name} ${detail}.`,
          undefined,
          name
        )
      )
    const layout = placements === undefined ? Result.succeed(usual) : meshLayout(usual.mesh, placements)
    if (Result.isFailure(layout)) return refused(`has no such layout: ${layout.failure.message}`)
    const shape = wholeShape(layout.success, shards, first)
    if (Result.isFailure(shape)) return refused(shape.failure)
    const cut = form === undefined ? undefined : cutFault(form, layout.success, shape.success)
    if (cut !== undefined) return refused(`is held as ${form!.id}, and ${cut}`)
    found.push({ pair, name, dtype, shape: shape.success, layout: layout.success, form })
  }
  return Result.succeed(found)
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0)

/**
 * The statements with the tensors of pairs that all ranks name sorted by name, and the order of each. Elsewhere the names
 * are left out: they decide nothing.
 */
const arrange = (statements: ReadonlyArray<BatchStatement>) => {
  const unnamed = new Set(
    statements.flatMap(({ tensors }) => tensors.flatMap(({ pair, name }) => (name === null ? [pair] : [])))
  )
  return statements.map((statement) => {
    const { tensors } = statement
    const order = [...tensors.keys()].sort((a, b) => {
      const [one, other] = [tensors[a]!, tensors[b]!]
      const byPair = compare(one.pair, other.pair)
      if (byPair !== 0 || unnamed.has(one.pair)) return byPair || a - b
      return compare(one.name!, other.name!)
    })
    const arranged = order.map((at) =>
      unnamed.has(tensors[at]!.pair) ? { ...tensors[at]!, name: null } : tensors[at]!
    )
    return { order, statement: { ...statement, tensors: arranged } }
  })
}

/** Most names that an error lists. */
const mostListed = 5

/** Names that one rank has and another has not, in words. */
const namesFault = (
  batch: string,
  agents: ReadonlyArray<number>,
  statements: ReadonlyArray<BatchStatement>
): BusError | undefined => {
  const namesOf = ({ tensors }: BatchStatement) =>
    new Set(tensors.flatMap(({ pair, name }) => (name === null ? [] : [`${pair} ${name}`])))
  const wanted = namesOf(statements[0]!)
  const listed = (names: ReadonlyArray<string>) =>
    names.length <= mostListed
      ? names.join(", ")
      : `${names.slice(0, mostListed).join(", ")} and ${names.length - mostListed} more`
  for (const [at, statement] of statements.entries()) {
    const given = namesOf(statement)
    const missing = [...wanted].filter((name) => !given.has(name))
    const added = [...given].filter((name) => !wanted.has(name))
    if (missing.length === 0 && added.length === 0) continue
    const parts = [
      ...(missing.length === 0 ? [] : [`agent ${agents[0]} alone has ${listed(missing)}`]),
      ...(added.length === 0 ? [] : [`agent ${agents[at]} alone has ${listed(added)}`])
    ]
    return mismatch(batch, `the names of the tensors differ: ${parts.join("; ")}.`, agents[at]!)
  }
  return undefined
}

/** One side registers a model by its names, and the other does not. */
const modelFault = (
  batch: string,
  agents: ReadonlyArray<number>,
  statements: ReadonlyArray<BatchStatement>
): BusError | undefined => {
  const named = statements.findIndex(({ model }) => model !== undefined)
  if (named < 0) return undefined
  const plain = statements.findIndex(({ model }) => model === undefined)
  return mismatch(
    batch,
    `agent ${agents[named]} registers a model by its names, agent ${agents[plain]} tensors of a mesh.`,
    agents[named]
  )
}

/** One backend moves a batch, so all ranks have it on one kind of device. */
export const familyFault = (
  batch: string,
  agents: ReadonlyArray<number>,
  statements: ReadonlyArray<BatchStatement>
): BusError | undefined => {
  const { family } = statements[0]!
  const odd = statements.findIndex((statement) => statement.family !== family)
  return odd < 0
    ? undefined
    : mismatch(
        batch,
        `the tensors lie on ${family} on agent ${agents[0]} and on ${statements[odd]!.family} on agent ${agents[odd]}.`,
        agents[odd]
      )
}

/** Both ends of a transfer know whether whole tensors come or changes. */
export const changesFault = (
  batch: string,
  agents: ReadonlyArray<number>,
  statements: ReadonlyArray<BatchStatement>
): BusError | undefined => {
  const [of, other] = [true, false].map((moves) => statements.findIndex(({ movesChanges }) => movesChanges === moves))
  return of! < 0 || other! < 0
    ? undefined
    : mismatch(batch, `agent ${agents[of!]} moves changes, agent ${agents[other!]} whole tensors.`, agents[other!])
}

/** Why two sides cannot exchange a tensor that one of them holds quantized, in words. */
const formFault = (one: SideTensor, other: SideTensor): string | undefined => {
  if (one.form !== undefined && other.form !== undefined)
    return "is quantized on both sides; leave the form out on both"
  if (one.form === undefined && other.form === undefined) return undefined
  const plain = one.form === undefined ? one : other
  if (isPartial(plain.layout)) return "is quantized on one side, and the other holds contributions to it"
  return isCastable(plain.dtype, formWire) ? undefined : `is quantized on one side, and ${plain.dtype} on the other`
}

const isPartial = (layout: MeshLayout): boolean => layout.placements.some(({ _tag }) => _tag === "Partial")

/**
 * The plans of one rank of the group, equal in what ranks must agree on. `statements` go by rank of the group; `device` is
 * where this rank's tensors lie.
 */
export const plansOf = (
  batch: string,
  membersOf: (pair: string) => PairMembers,
  stated: ReadonlyArray<BatchStatement>,
  rank: number,
  device: Device
): Result.Result<BatchPlans, BusError> => {
  const arranged = arrange(stated)
  const statements = arranged.map(({ statement }) => statement)
  const { agents } = membersOf(statements[0]!.tensors[0]!.pair)
  const odd =
    modelFault(batch, agents, statements) ??
    familyFault(batch, agents, statements) ??
    namesFault(batch, agents, statements)
  if (odd !== undefined) return Result.fail(odd)
  const zero = sideTensors(batch, 0, membersOf, statements)
  if (Result.isFailure(zero)) return Result.fail(zero.failure)
  const one = sideTensors(batch, 1, membersOf, statements)
  if (Result.isFailure(one)) return Result.fail(one.failure)
  const sides = [zero.success, one.success] as const
  const count = Math.max(sides[0].length, sides[1].length)
  for (let at = 0; at < count; at++) {
    const [a, b] = [sides[0][at], sides[1][at]]
    const text = (tensor: SideTensor | undefined) =>
      tensor === undefined
        ? "missing"
        : `${tensor.pair} ${tensor.name === null ? "" : `${tensor.name} `}${formatShape(tensor.shape)}`
    if (a === undefined || b === undefined || a.pair !== b.pair || !equalShapes(a.shape, b.shape)) {
      return Result.fail(mismatch(batch, `tensor ${at} is ${text(a)} on one side and ${text(b)} on the other.`))
    }
  }
  for (const [at, a] of sides[0].entries()) {
    const fault = formFault(a, sides[1][at]!)
    if (fault !== undefined) return Result.fail(mismatch(batch, `tensor ${a.name ?? at} ${fault}.`, undefined, a.name))
  }
  const buckets = statements.flatMap(({ bucketBytes }) => (bucketBytes === null ? [] : [bucketBytes]))
  const options = buckets.length === 0 ? {} : { bucketBytes: Math.max(1, Math.min(...buckets)) }
  const names = sides[0].map(({ pair, name }, at) => (name === null ? `${pair}[${at}]` : `${pair}/${name}`))
  const { order } = arranged[rank]!
  const quantized = new Set(
    names.filter((_, at) => sides[0][at]!.form !== undefined || sides[1][at]!.form !== undefined)
  )

  const planFor = (direction: Direction): Result.Result<MeshPlan | undefined, BusError> => {
    const [sources, targets] = direction === 0 ? sides : [sides[1], sides[0]]
    const specs: Array<MeshTensorSpec> = []
    for (const [at, source] of sources.entries()) {
      const [from, to] = [source.layout, targets[at]!.layout]
      if (isPartial(to)) return Result.succeed(undefined)
      const map = planMesh(from, to, { tensorRank: source.shape.length })
      if (Result.isFailure(map))
        return Result.fail(mismatch(batch, `tensor ${at}, of pair ${source.pair}: ${map.failure.message}`))
      specs.push({
        name: names[at]!,
        shape: source.shape,
        sourceDtype: source.dtype,
        targetDtype: targets[at]!.dtype,
        map: map.success
      })
    }
    return Result.mapError(
      Result.map(indexLowering(specs, options), (index) => lowerRank(index, rank, { device })),
      (error) => mismatch(batch, error.message)
    )
  }
  return Result.flatMap(planFor(0), (forth) =>
    Result.map(planFor(1), (back) => ({ names, order, quantized, plans: [forth, back] as const }))
  )
}
