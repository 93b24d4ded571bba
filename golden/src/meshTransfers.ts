// SPDX-License-Identifier: Apache-2.0
/**
 * Checks of the recorded sets about moving tensors between meshes: element values before and after, and the routes of Etha.
 * The plans of all ranks are carried out on plain arrays, with both source choices and several bucket sizes. Where the
 * recorded system was wrong, the elements decide.
 */

import type { DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { M2MMap, SourceChoice } from "@tensorferry/core/ir/M2MMap"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import type { Route } from "@tensorferry/core/ir/Route"
import type { PartialOp } from "@tensorferry/core/layout/Placement"
import { indexLowering, lowerRank } from "@tensorferry/core/planner/Lowering"
import { checkMeshPlans } from "@tensorferry/core/planner/MeshCheck"
import { indexMap } from "@tensorferry/core/planner/MeshIndex"
import { planMesh, routesOf } from "@tensorferry/core/planner/MeshPlanner"
import { arrayOf, runMeshPlans, valuesOf } from "@tensorferry/testing/planning/meshOracle"
import * as Result from "effect/Result"
import { layoutOf, type RecordedLayout } from "./meshLayouts.ts"

type RecordedLocals = {
  readonly [rank: string]: { readonly shape: ReadonlyArray<number>; readonly data: ReadonlyArray<number> }
}

interface RecordedTensor {
  readonly shape: ReadonlyArray<number>
  readonly source_dtype: DType
  readonly target_dtype: DType
  readonly source_locals: RecordedLocals
  readonly target_locals: RecordedLocals
}

export interface RedistributeCase {
  readonly id: string
  readonly tags: ReadonlyArray<string>
  readonly tensor_shape: ReadonlyArray<number>
  readonly source: RecordedLayout
  readonly target: RecordedLayout
  readonly source_locals: RecordedLocals
  readonly target_locals: RecordedLocals
}

interface RecordedCell {
  readonly rank: number
  readonly cell: ReadonlyArray<number>
}

interface RecordedMap {
  readonly routes: ReadonlyArray<{
    readonly src: RecordedCell
    readonly dsts: ReadonlyArray<RecordedCell>
    readonly kind: string
  }>
  readonly source_num_slicers: ReadonlyArray<number>
  readonly target_num_slicers: ReadonlyArray<number>
  readonly source_partial_reductions: ReadonlyArray<readonly [number, PartialOp]>
}

export interface EthaCase {
  readonly id: string
  readonly title: string
  readonly source: RecordedLayout
  readonly target: RecordedLayout
  readonly m2m: RecordedMap | null
  readonly m2m_exact?: RecordedMap
  readonly error?: { readonly kind: string }
  readonly transfers: ReadonlyArray<EthaTransfer>
}

interface EthaTransfer {
  readonly bucket_size: number
  readonly tensors: ReadonlyArray<RecordedTensor>
  readonly ranks: {
    readonly [rank: string]: {
      readonly chunks: ReadonlyArray<{
        readonly tensor: number
        readonly transport: string
        readonly is_source: boolean
        readonly src_rank: number
        readonly dst_ranks: ReadonlyArray<number>
        readonly transfer_dtype: DType
        readonly nbytes: number
      }>
    }
  }
  readonly upstream_right: boolean
}

const choices: ReadonlyArray<SourceChoice> = ["balanced", "etha"]

interface Traffic {
  readonly route: string
  readonly nbytes: number
}

const totals = (traffic: ReadonlyArray<Traffic>): string => {
  const bytes = new Map<string, number>()
  for (const { route, nbytes } of traffic) bytes.set(route, (bytes.get(route) ?? 0) + nbytes)
  return [...bytes]
    .map(([route, sum]) => `${route}: ${sum} bytes`)
    .sort()
    .join("; ")
}

const routeName = (kind: string, tensor: number, from: Rank, to: ReadonlyArray<Rank>, dtype: DType): string =>
  `tensor ${tensor} as ${dtype} by ${kind} ${from} > ${to.join(", ")}`

/** Etha's chunks are single cells and ours are whole boxes, so bytes are compared per tensor and route. */
const trafficFault = (recorded: EthaTransfer, plans: ReadonlyArray<MeshPlan>): string | undefined => {
  const theirs = Object.values(recorded.ranks).flatMap(({ chunks }) =>
    chunks
      .filter(({ is_source, transport }) => is_source && (transport === "p2p" || transport === "broadcast"))
      .map((chunk) => ({
        route: routeName(chunk.transport, chunk.tensor, chunk.src_rank, chunk.dst_ranks, chunk.transfer_dtype),
        nbytes: chunk.nbytes
      }))
  )
  const ours = plans.flatMap((plan) =>
    plan.buckets.flatMap(({ entries }) =>
      entries
        .filter(({ chunk }) => chunk.kind !== "none" && chunk.srcIdx.rank === plan.rank)
        .map(({ chunk: { kind, tensor, srcIdx, dstIdx, transferDtype }, nbytes }) => ({
          route: routeName(
            kind,
            tensor,
            srcIdx.rank,
            dstIdx.map(({ rank }) => rank),
            transferDtype
          ),
          nbytes
        }))
    )
  )
  return totals(ours) === totals(theirs) ? undefined : `${totals(ours)} instead of ${totals(theirs)}`
}

/** Moves recorded tensors by one map and compares what every target rank then holds. */
const transferFault = (
  map: M2MMap,
  tensors: ReadonlyArray<RecordedTensor>,
  bucketBytes: number,
  recorded?: EthaTransfer
): string | undefined => {
  const specs = tensors.map((tensor, at) => ({
    name: `tensor ${at}`,
    shape: tensor.shape,
    sourceDtype: tensor.source_dtype,
    targetDtype: tensor.target_dtype,
    map
  }))
  const lowering = indexLowering(specs, { bucketBytes })
  if (Result.isFailure(lowering)) return `refused: ${lowering.failure.message}`
  const ranks = [...new Set([...map.source.mesh.ranks, ...map.target.mesh.ranks])].sort((a, b) => a - b)
  const plans = ranks.map((rank) => lowerRank(lowering.success, rank))
  const [planFault] = checkMeshPlans(plans)
  if (planFault !== undefined) return planFault.message
  const traffic = recorded === undefined ? undefined : trafficFault(recorded, plans)
  if (traffic !== undefined) return traffic
  const sourceOf = (rank: Rank, at: number) => {
    const held = tensors[at]!.source_locals[rank]!
    return arrayOf(tensors[at]!.source_dtype, held.shape, numbers(tensors[at]!.source_dtype, held.data))
  }
  const outcome = runMeshPlans(plans, sourceOf)
  if (outcome.faults.length > 0) return outcome.faults[0]
  for (const [at, { target_dtype, target_locals }] of tensors.entries()) {
    for (const [rank, wanted] of Object.entries(target_locals)) {
      const got = outcome.targets.get(Number(rank))?.[at]
      if (got === null || got === undefined) return `rank ${rank} gets nothing of tensor ${at}`
      if (got.shape.join() !== wanted.shape.join())
        return `rank ${rank} holds [${got.shape}] instead of [${wanted.shape}]`
      const values = valuesOf(got)
      const wrong = numbers(target_dtype, wanted.data).findIndex((value, element) => value !== values[element])
      if (wrong >= 0)
        return `rank ${rank}, tensor ${at}: element ${wrong} is ${values[wrong]}, not ${wanted.data[wrong]}`
    }
  }
  return undefined
}

/** Values as elements of a type: 64-bit integers are bigints. */
const numbers = (dtype: DType, data: ReadonlyArray<number>): ReadonlyArray<number | bigint> =>
  dtype === "int64" || dtype === "uint64" ? data.map(BigInt) : data

/** Undefined where every target element is right, whoever serves it and however it is bucketed. */
export const checkRedistributeCase = (recorded: RedistributeCase): string | undefined => {
  const tensor: RecordedTensor = {
    shape: recorded.tensor_shape,
    source_dtype: "int64",
    target_dtype: "int64",
    source_locals: recorded.source_locals,
    target_locals: recorded.target_locals
  }
  for (const sourceChoice of choices) {
    const map = planMesh(layoutOf(recorded.source), layoutOf(recorded.target), {
      sourceChoice,
      tensorRank: recorded.tensor_shape.length
    })
    if (Result.isFailure(map)) return `refused: ${map.failure.message}`
    for (const bucketBytes of [1, 100, 2 ** 20]) {
      const fault = transferFault(map.success, [tensor], bucketBytes)
      if (fault !== undefined) return `${sourceChoice}, buckets of ${bucketBytes}: ${fault}`
    }
  }
  return undefined
}

/** Our routes as Etha writes them: what a rank keeps for itself is a destination among others. */
const asRecorded = (routes: ReadonlyArray<Route>): RecordedMap["routes"] => {
  const merged = new Map<string, { src: RecordedCell; dsts: ReadonlyArray<RecordedCell> }>()
  for (const { src, dsts } of routes) {
    const key = `${src.rank}:${src.cell.join()}`
    merged.set(key, { src, dsts: [...(merged.get(key)?.dsts ?? []), ...dsts].sort((a, b) => a.rank - b.rank) })
  }
  return [...merged.values()].map(({ src, dsts }) => ({
    src,
    dsts,
    kind: dsts.length === 0 ? "none" : dsts.length === 1 ? "p2p" : "broadcast"
  }))
}

const cellText = ({ rank, cell }: RecordedCell): string => `${rank}[${cell}]`
const routeText = (route: RecordedMap["routes"][number]): string =>
  `${route.kind} ${cellText(route.src)} > ${route.dsts.map(cellText).join(" ")}`

const mapFault = (map: M2MMap, recorded: RecordedMap): string | undefined => {
  const ours = JSON.stringify([map.sourceNumSlicers, map.targetNumSlicers, map.sourcePartialReductions])
  const theirs = JSON.stringify([
    recorded.source_num_slicers,
    recorded.target_num_slicers,
    recorded.source_partial_reductions
  ])
  if (ours !== theirs) return `slicers and reductions are ${ours} instead of ${theirs}`
  const routes = asRecorded(routesOf(indexMap(map))).map(routeText)
  const wanted = recorded.routes.map(routeText)
  const at = wanted.findIndex((route, place) => route !== routes[place])
  if (at >= 0) return `route ${at} is ${routes[at] ?? "missing"} instead of ${wanted[at]}`
  return routes.length === wanted.length ? undefined : `${routes.length} routes instead of ${wanted.length}`
}

/** Undefined where the routes are Etha's, if that was right, and every target element is right with both choices. */
export const checkEthaCase = (recorded: EthaCase): string | undefined => {
  const [source, target] = [layoutOf(recorded.source), layoutOf(recorded.target)]
  for (const sourceChoice of choices) {
    const map = planMesh(source, target, { sourceChoice })
    if (recorded.error?.kind === "target_partial_not_supported") {
      if (Result.isFailure(map) && map.failure.kind === "PartialTarget") continue
      return "a partial target is not refused as one"
    }
    if (Result.isFailure(map)) return `refused: ${map.failure.message}`
    const exact = recorded.m2m_exact ?? recorded.m2m
    const isRight = recorded.m2m_exact !== undefined || recorded.transfers.some((transfer) => transfer.upstream_right)
    if (sourceChoice === "etha" && exact !== null && isRight) {
      const fault = mapFault(map.success, exact)
      if (fault !== undefined) return fault
    }
    for (const transfer of recorded.transfers) {
      const { bucket_size, tensors, upstream_right } = transfer
      const compared = sourceChoice === "etha" && upstream_right ? transfer : undefined
      const fault = transferFault(map.success, tensors, bucket_size, compared)
      if (fault !== undefined) return `${sourceChoice}, buckets of ${bucket_size}: ${fault}`
    }
  }
  return undefined
}
