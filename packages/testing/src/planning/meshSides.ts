// SPDX-License-Identifier: Apache-2.0
/**
 * For tests of mesh execution: plans of pairs of layouts, every rank's memory with real bytes, and the oracle's
 * verdict on them.
 */

import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import type { SourceChoice } from "@tensorferry/core/ir/M2MMap"
import type { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import { formatMeshLayout, parseMeshLayout } from "@tensorferry/core/layout/MeshText"
import type { MeshLayout } from "@tensorferry/core/layout/Placement"
import { indexLowering, lowerRank, type MeshTensorSpec } from "@tensorferry/core/planner/Lowering"
import { planMesh } from "@tensorferry/core/planner/MeshPlanner"
import { type ExecuteOptions, executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { ElementValue } from "../values/casts.ts"
import type { MeshPair } from "./meshArbitraries.ts"
import { arrayOf, type MeshArray, type MeshOutcome, poisonByte, runMeshPlans } from "./meshOracle.ts"

/** The layout that a text states; throws where it states none. */
export const parse = (text: string): MeshLayout => Result.getOrThrow(parseMeshLayout(text))

/** Shape and element types of a tensor; float32 on both sides by default. */
export interface TensorInput {
  readonly shape: Shape
  readonly from?: DType
  readonly to?: DType
}

/** Tensors that go from one layout to another. */
export const specsOf = (
  from: string,
  to: string,
  tensors: ReadonlyArray<TensorInput>,
  sourceChoice: SourceChoice = "balanced"
): ReadonlyArray<MeshTensorSpec> => {
  const map = Result.getOrThrow(planMesh(parse(from), parse(to), { sourceChoice }))
  return tensors.map(({ shape, from: sourceDtype = "float32", to: targetDtype = sourceDtype }, at) => ({
    name: `layers.${at}.weight`,
    shape,
    sourceDtype,
    targetDtype,
    map
  }))
}

/** The one tensor of a random pair of layouts. */
export const pairSpecs = (pair: MeshPair, sourceChoice: SourceChoice): ReadonlyArray<MeshTensorSpec> => {
  const { source, target, shape, sourceDtype, targetDtype } = pair
  const map = Result.getOrThrow(planMesh(source, target, { sourceChoice, tensorRank: shape.length }))
  return [{ name: "weight", shape, sourceDtype, targetDtype, map }]
}

/** The same pair among as many ranks as it names: idle ones cost time in every run. */
export const compact = (pair: MeshPair): MeshPair => {
  const ranks = [...new Set([...pair.source.mesh.ranks, ...pair.target.mesh.ranks])].sort((a, b) => a - b)
  const renumber = (layout: MeshLayout): MeshLayout => ({
    ...layout,
    mesh: { ...layout.mesh, ranks: layout.mesh.ranks.map((rank) => ranks.indexOf(rank)) }
  })
  return { ...pair, source: renumber(pair.source), target: renumber(pair.target) }
}

/** Ranks that the tensors' meshes name, as a size of a group. */
export const worldOf = ({ source, target }: MeshPair): number =>
  1 + Math.max(...source.mesh.ranks, ...target.mesh.ranks)

/** A random pair of layouts in a line. */
export const pairText = ({ source, target, shape, sourceDtype, targetDtype }: MeshPair): string =>
  `${formatMeshLayout(source)} to ${formatMeshLayout(target)}, ${sourceDtype} to ${targetDtype} [${shape}]`

/** Plans of ranks 0 to the largest that the layouts name, and of `idle` more. */
export const plansOf = (
  specs: ReadonlyArray<MeshTensorSpec>,
  bucketBytes = 2 ** 20,
  idle = 0
): ReadonlyArray<MeshPlan> => {
  const index = Result.getOrThrow(indexLowering(specs, { bucketBytes }))
  return Array.from({ length: index.worldSize + idle }, (_, rank) => lowerRank(index, rank))
}

/** Values that no reduction makes inexact in any type of the tests, and that differ between neighbours and ranks. */
export const shardValues = (plan: MeshPlan, at: number, round: number): MeshArray => {
  const { sourceShape, sourceDtype } = plan.tensors[at]!
  const values = Array.from({ length: elementCount(sourceShape!) }, (_, element): ElementValue => {
    const value = 1 + ((element * 5 + plan.rank * 3 + at + round * 7) % 3)
    return sourceDtype === "int64" ? BigInt(value) : value
  })
  return arrayOf(sourceDtype, sourceShape!, values)
}

/** A rank's tensors; sources hold what `valuesOf` gives, destinations poison. */
export const sidesOf = Effect.fnUntraced(function* (plan: MeshPlan) {
  const engine = yield* TensorEngine
  const side = (which: "source" | "target") =>
    Effect.forEach(plan.tensors, (tensor) => {
      const shape = which === "source" ? tensor.sourceShape : tensor.targetShape
      const dtype = which === "source" ? tensor.sourceDtype : tensor.targetDtype
      return shape === null ? Effect.succeed(null) : engine.allocate(dtype, shape)
    })
  return { sources: yield* side("source"), targets: yield* side("target") }
})

/** A rank's part of each tensor; null where it has none. */
export type Shards = ReadonlyArray<Tensor | null>

/** Shards under the names of their tensors; undefined where there are none. */
export const dictOf = (plan: MeshPlan, shards: Shards) =>
  tensorDict(
    plan.tensors.flatMap(({ name }, at) => {
      const shard = shards[at]
      return shard === null || shard === undefined ? [] : [[name, shard] as const]
    })
  )

/** Writes the bytes of each shard that is there. */
export const setBytes = (shards: Shards, bytesOf: (at: number) => Uint8Array | number): void => {
  for (const [at, shard] of shards.entries()) {
    if (shard === null) continue
    const bytes = bytesOf(at)
    const own = tensorBytes(shard)!
    if (typeof bytes === "number") own.fill(bytes)
    else own.set(bytes)
  }
}

/** The first byte that differs from the oracle's, in words. */
export const judge = (outcome: MeshOutcome, rank: Rank, targets: Shards): string | undefined => {
  for (const [at, wanted] of (outcome.targets.get(rank) ?? []).entries()) {
    if (wanted === null) continue
    const got = tensorBytes(targets[at]!)!
    const wrong = wanted.bytes.findIndex((byte, place) => got[place] !== byte)
    if (wrong >= 0) {
      const element = Math.floor((wrong * 8) / bitsOf(wanted.dtype))
      return `rank ${rank}, tensor ${at}: element ${element} has byte ${got[wrong]} instead of ${wanted.bytes[wrong]}`
    }
  }
  return undefined
}

/** The value of an element, by tensor and index in the whole. */
export type ValuesOf = (plan: MeshPlan, at: number, round: number) => MeshArray

/** What all ranks must hold after a round. */
export const outcomeOf = (plans: ReadonlyArray<MeshPlan>, round = 0, valuesOf: ValuesOf = shardValues): MeshOutcome =>
  runMeshPlans(plans, (rank, at) => valuesOf(plans[rank]!, at, round))

/** One rank's part in several rounds with changed data: every fault in words, and the reports. */
export const runRounds = Effect.fnUntraced(function* (
  plans: ReadonlyArray<MeshPlan>,
  outcomes: ReadonlyArray<MeshOutcome>,
  rank: Rank,
  options: ExecuteOptions = {},
  valuesOf: ValuesOf = shardValues
) {
  const plan = plans[rank]!
  const { sources, targets } = yield* sidesOf(plan)
  const faults: Array<string> = []
  const reports = yield* Effect.forEach(outcomes, (outcome, round) =>
    Effect.gen(function* () {
      setBytes(sources, (at) => valuesOf(plan, at, round).bytes)
      setBytes(targets, () => poisonByte)
      const report = yield* executeReshardPlan(plan, dictOf(plan, sources), dictOf(plan, targets), options)
      const fault = judge(outcome, rank, targets)
      if (fault !== undefined) faults.push(`round ${round}: ${fault}`)
      for (const [at, source] of sources.entries()) {
        if (source === null) continue
        const kept = valuesOf(plan, at, round).bytes
        if (tensorBytes(source)!.some((byte, place) => byte !== kept[place])) faults.push(`source ${at} changed`)
      }
      return report
    })
  )
  return { faults, reports }
})
