// SPDX-License-Identifier: Apache-2.0
/**
 * Mesh planning at scale: the map between two meshes of 512 ranks and one rank's plan for 1000 tensors, on one core.
 */

import { median } from "@tensorferry/core/base/Numbers"
import { deviceMesh } from "@tensorferry/core/layout/DeviceMesh"
import { meshLayout, type Placement, replicate, shard } from "@tensorferry/core/layout/Placement"
import { indexLowering, lowerRank } from "@tensorferry/core/planner/Lowering"
import { planMesh } from "@tensorferry/core/planner/MeshPlanner"
import * as Result from "effect/Result"
import { type BenchResult, sample } from "./measure.ts"

const tensorCount = 1000

interface MeshCase {
  readonly name: string
  readonly source: readonly [ReadonlyArray<number>, ReadonlyArray<Placement>]
  readonly target: readonly [ReadonlyArray<number>, ReadonlyArray<Placement>]
  /** The tensors' shapes: all alike, or no two. */
  readonly shapeOf: (at: number) => ReadonlyArray<number>
}

const cases: ReadonlyArray<MeshCase> = [
  {
    name: "2x4x8x8 R,S0,S1,R -> 8x8x4x2 S0,R,S1,R, one shape",
    source: [
      [2, 4, 8, 8],
      [replicate, shard(0), shard(1), replicate]
    ],
    target: [
      [8, 8, 4, 2],
      [shard(0), replicate, shard(1), replicate]
    ],
    shapeOf: () => [4096, 4096]
  },
  {
    name: "2x4x8x8 R,S0,S1,R -> 8x8x4x2 S0,R,S1,R, 1000 uneven shapes",
    source: [
      [2, 4, 8, 8],
      [replicate, shard(0), shard(1), replicate]
    ],
    target: [
      [8, 8, 4, 2],
      [shard(0), replicate, shard(1), replicate]
    ],
    shapeOf: (at) => [4001 + at, 3001 + 2 * at]
  },
  {
    name: "2x4x8x8 S0,S0,S0,S0 -> 8x8x4x2 S1,S1,S1,S1, one shape",
    source: [
      [2, 4, 8, 8],
      [shard(0), shard(0), shard(0), shard(0)]
    ],
    target: [
      [8, 8, 4, 2],
      [shard(1), shard(1), shard(1), shard(1)]
    ],
    shapeOf: () => [4096, 4096]
  }
]

export const mesh = (): ReadonlyArray<BenchResult> =>
  cases.map(({ name, source, target, shapeOf }): BenchResult => {
    const layout = ([shape, placements]: MeshCase["source"], firstRank: number) =>
      Result.getOrThrow(Result.flatMap(deviceMesh({ shape, firstRank }), (made) => meshLayout(made, placements)))
    const [from, to] = [layout(source, 0), layout(target, 512)]
    const seconds = sample(5, () => {
      const map = Result.getOrThrow(planMesh(from, to))
      const tensors = Array.from({ length: tensorCount }, (_, at) => ({
        name: `weight ${at}`,
        shape: shapeOf(at),
        sourceDtype: "bfloat16" as const,
        targetDtype: "bfloat16" as const,
        map
      }))
      lowerRank(Result.getOrThrow(indexLowering(tensors)), 3)
    })
    return {
      case: `map and lower ${tensorCount} tensors for one of 512 -> 512 ranks: ${name}`,
      unit: "s",
      ours: median(seconds),
      target: 1,
      lowerIsBetter: true
    }
  })
