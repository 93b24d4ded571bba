// SPDX-License-Identifier: Apache-2.0
/**
 * Runs the planner on recorded rosters of Megatron-LM and compares with the recorded plans, and with the true layout by
 * moving numbered elements. Where the recorded planner was wrong, the true layout decides.
 */

import type { DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount, type Region, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import { type ParameterMetadata, parameterMetadata } from "@tensorferry/core/layout/ParameterMetadata"
import { type Roster, rosterFromParameters } from "@tensorferry/core/layout/Roster"
import { checkPlans } from "@tensorferry/core/planner/PlanCheck"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import * as Result from "effect/Result"

interface RecordedParameter {
  readonly name: string
  readonly shape: ReadonlyArray<number>
  readonly dtype: string
  readonly is_tp: boolean
  readonly partition_dim: number
  readonly partition_stride: number
  readonly partition_sizes: ReadonlyArray<number> | null
  readonly is_ep: boolean
  readonly num_experts: number | null
  readonly owner_rank: number
  readonly tensor_parallel_group_ranks: ReadonlyArray<number> | null
  readonly expert_parallel_group_ranks: ReadonlyArray<number> | null
  readonly data_parallel_group_ranks: ReadonlyArray<number> | null
  readonly pipeline_parallel_group_ranks: ReadonlyArray<number> | null
  readonly resolved_name: string
  readonly global_expert_index: number | null
}

type RecordedSide = { readonly [rank: string]: { readonly params: ReadonlyArray<RecordedParameter> } }

interface RecordedOp {
  readonly param_name: string
  readonly peer_rank: number
  readonly my_slice: ReadonlyArray<readonly [number | null, number | null]>
  readonly peer_slice: ReadonlyArray<readonly [number | null, number | null]>
  readonly task_id: number
}

interface RecordedShard {
  readonly name: string
  readonly global_name: string
  readonly dim: number | null
  readonly tp_rank: number
  readonly tp_size: number
  readonly blocks: ReadonlyArray<number> | null
}

export interface MegatronCase {
  readonly id: string
  readonly title: string
  readonly ranks: ReadonlyArray<number>
  readonly source_config: { readonly tie?: boolean }
  readonly source: RecordedSide
  readonly destination: RecordedSide
  readonly expected:
    | {
        readonly ok: true
        readonly plans: {
          readonly [rank: string]: {
            readonly send_ops: ReadonlyArray<RecordedOp>
            readonly recv_ops: ReadonlyArray<RecordedOp>
          }
        }
      }
    | { readonly ok: false; readonly error: { readonly kind: string } }
  readonly truth: {
    readonly global_params: ReadonlyArray<{
      readonly name: string
      readonly shape: ReadonlyArray<number>
      readonly aliased_to?: string | null
    }>
    readonly source_shards: { readonly [rank: string]: ReadonlyArray<RecordedShard> }
    readonly destination_shards: { readonly [rank: string]: ReadonlyArray<RecordedShard> }
  }
  readonly suspect: boolean
  readonly valid_request: boolean
}

const convert = (recorded: RecordedParameter): ParameterMetadata =>
  parameterMetadata({
    name: recorded.name,
    shape: recorded.shape,
    dtype: recorded.dtype as DType,
    isTp: recorded.is_tp,
    partitionDim: recorded.partition_dim,
    partitionStride: recorded.partition_stride,
    partitionSizes: recorded.partition_sizes,
    isEp: recorded.is_ep,
    numExperts: recorded.num_experts,
    ownerRank: recorded.owner_rank,
    tensorParallelGroupRanks: recorded.tensor_parallel_group_ranks,
    expertParallelGroupRanks: recorded.expert_parallel_group_ranks,
    dataParallelGroupRanks: recorded.data_parallel_group_ranks,
    pipelineParallelGroupRanks: recorded.pipeline_parallel_group_ranks,
    resolvedName: recorded.resolved_name,
    globalExpertIndex: recorded.global_expert_index
  })

/** Heads that share the embedding's storage in the source model, below any name prefix. */
const tiedHeads = (recorded: MegatronCase): ReadonlyArray<{ readonly name: string; readonly target: string }> => {
  if (recorded.source_config.tie !== true) return []
  const names = (side: RecordedSide) =>
    new Set(Object.values(side).flatMap(({ params }) => params.map((parameter) => parameter.resolved_name)))
  const held = names(recorded.source)
  return [...names(recorded.destination)].flatMap((name) => {
    const prefix = /^(.*\.)?output_layer\.weight$/.exec(name)
    const target = `${prefix?.[1] ?? ""}embedding.word_embeddings.weight`
    return prefix === null || held.has(name) || !held.has(target) ? [] : [{ name, target }]
  })
}

/** The recorded rosters; tied heads are declared, as a source model would declare them. */
export const rostersOf = (recorded: MegatronCase): { readonly source: Roster; readonly destination: Roster } => {
  const side = (ranks: RecordedSide) =>
    Object.entries(ranks).map(([rank, value]) => [Number(rank), value.params.map(convert)] as const)
  const source = side(recorded.source)
  const declared = tiedHeads(recorded)
  const withAliases = source.map(([rank, parameters]) => {
    const shared = declared.flatMap(({ name, target }) => {
      const owner = parameters.find((parameter) => parameter.resolvedName === target)
      return owner === undefined ? [] : [{ ...owner, name, resolvedName: name, aliasOf: target }]
    })
    return [rank, [...parameters, ...shared]] as const
  })
  return { source: rosterFromParameters(withAliases), destination: rosterFromParameters(side(recorded.destination)) }
}

const explicit = (slice: RecordedOp["my_slice"], own: Region): string =>
  JSON.stringify(slice.map(([start, stop], dim) => (start === null ? own[dim] : [start, stop])))

const sameOps = (recorded: ReadonlyArray<RecordedOp>, ours: ReadonlyArray<TransferOp>): string | undefined => {
  if (recorded.length !== ours.length) return `${ours.length} operations instead of ${recorded.length}`
  for (const [at, op] of ours.entries()) {
    const want = recorded[at]!
    const equal =
      want.param_name === op.paramName &&
      want.peer_rank === op.peerRank &&
      want.task_id === op.taskId &&
      explicit(want.my_slice, op.mySlice) === JSON.stringify(op.mySlice) &&
      explicit(want.peer_slice, op.peerSlice) === JSON.stringify(op.peerSlice)
    if (!equal) return `operation ${at} is ${JSON.stringify(op)} instead of ${JSON.stringify(want)}`
  }
  return undefined
}

/** Global indices along `dim` that a recorded shard holds, in local order. */
const heldIndices = (shard: RecordedShard, length: number): ReadonlyArray<number> => {
  if (shard.dim === null) return Array.from({ length }, (_, at) => at)
  const indices: Array<number> = []
  let start = 0
  for (const block of shard.blocks ?? [length]) {
    const part = block / shard.tp_size
    for (let at = 0; at < part; at++) indices.push(start + shard.tp_rank * part + at)
    start += block
  }
  return indices
}

const visit = (shape: Shape, each: (index: ReadonlyArray<number>, flat: number) => void): void => {
  const count = elementCount(shape)
  const strides = rowMajorStrides(shape)
  for (let flat = 0; flat < count; flat++) {
    each(
      shape.map((length, dim) => Math.floor(flat / strides[dim]!) % length),
      flat
    )
  }
}

/** A shard of the numbered global tensor: element = parameter number times 2^32 plus the row-major index. */
const shardValues = (
  recorded: MegatronCase,
  shard: RecordedShard
): { readonly shape: Shape; readonly values: Float64Array } => {
  const names = recorded.truth.global_params
  let at = names.findIndex((parameter) => parameter.name === shard.global_name)
  const whole = names[at]!
  const tied = tiedHeads(recorded).find((head) => head.name === whole.name)
  const alias = names.findIndex((parameter) => parameter.name === (tied?.target ?? whole.aliased_to))
  if (alias >= 0) at = alias
  const rows = shard.dim === null ? [] : heldIndices(shard, whole.shape[shard.dim]!)
  const shape = whole.shape.map((length, dim) => (dim === shard.dim ? rows.length : length))
  const strides = rowMajorStrides(whole.shape)
  const values = new Float64Array(elementCount(shape))
  visit(shape, (index, flat) => {
    const position = index.reduce(
      (sum, value, dim) => sum + (dim === shard.dim ? rows[value]! : value) * strides[dim]!,
      0
    )
    values[flat] = at * 2 ** 32 + position
  })
  return { shape, values }
}

/** Moves the numbered elements by the plans and compares every destination shard with the true layout. */
const simulate = (recorded: MegatronCase, plans: ReadonlyArray<ReshardPlan>): string | undefined => {
  const sources = new Map<string, { readonly shape: Shape; readonly values: Float64Array }>()
  for (const [rank, shards] of Object.entries(recorded.truth.source_shards)) {
    for (const shard of shards) sources.set(`${rank}/${shard.name}`, shardValues(recorded, shard))
  }
  const sends = new Map<number, { readonly rank: Rank; readonly op: TransferOp }>()
  for (const plan of plans) for (const op of plan.sendOps) sends.set(op.taskId, { rank: plan.rank, op })
  for (const plan of plans) {
    const expected = new Map(
      (recorded.truth.destination_shards[plan.rank] ?? []).map((shard) => [shard.name, shardValues(recorded, shard)])
    )
    const written = new Map([...expected].map(([name, { values }]) => [name, new Float64Array(values.length).fill(-1)]))
    for (const op of plan.recvOps) {
      const sender = sends.get(op.taskId)!
      const from = sources.get(`${sender.rank}/${sender.op.paramName}`)!
      const to = expected.get(op.paramName)!
      const fromStrides = rowMajorStrides(from.shape)
      const toStrides = rowMajorStrides(to.shape)
      visit(
        op.mySlice.map(([start, stop]) => stop - start),
        (index) => {
          const at = (region: Region, strides: ReadonlyArray<number>) =>
            index.reduce((sum, value, dim) => sum + (value + region[dim]![0]) * strides[dim]!, 0)
          written.get(op.paramName)![at(op.mySlice, toStrides)] = from.values[at(sender.op.mySlice, fromStrides)]!
        }
      )
    }
    for (const [name, { values }] of expected) {
      const wrong = values.findIndex((value, at) => value !== written.get(name)![at])
      if (wrong >= 0)
        return `rank ${plan.rank} ${name}[${wrong}] is ${written.get(name)![wrong]}, should be ${values[wrong]}`
    }
  }
  return undefined
}

/** Undefined where we do right by the case, else what is wrong. */
export const checkMegatronCase = (recorded: MegatronCase): string | undefined => {
  const { source, destination } = rostersOf(recorded)
  const index = indexRosters(source, destination)
  if (Result.isFailure(index)) {
    if (recorded.valid_request) return `refused: ${index.failure.message}`
    return index.failure.paramName === "" ? `refused without naming the parameter: ${index.failure.message}` : undefined
  }
  if (!recorded.valid_request) return "accepted although the rosters contradict themselves"
  const plans = recorded.ranks.map((rank) => planRank(index.success, rank))
  const [fault] = checkPlans(plans)
  if (fault !== undefined) return fault.message
  if (recorded.expected.ok && !recorded.suspect) {
    for (const plan of plans) {
      const want = recorded.expected.plans[plan.rank] ?? { send_ops: [], recv_ops: [] }
      const different = sameOps(want.recv_ops, plan.recvOps) ?? sameOps(want.send_ops, plan.sendOps)
      if (different !== undefined) return `rank ${plan.rank}: ${different}`
    }
  }
  return simulate(recorded, plans)
}
