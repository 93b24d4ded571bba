// SPDX-License-Identifier: Apache-2.0
/**
 * A model over the ranks of a test fleet: a source of four processes, two pipeline stages of two tensor-parallel ranks each, and
 * replicas of two processes, which cut some tensors along other dimensions than the source.
 */
import { createHash } from "node:crypto"
import type { Rank } from "@tensorferry/core/base/Ids"
import { modelLayout } from "@tensorferry/model/layout/ModelLayout"
import * as Result from "effect/Result"
import { type FleetLayout, indexLayout, type ShardLayout } from "../../src/shards/ShardLayout.ts"
import { byteRuns } from "../shards/byteRuns.ts"
import { fillWeights } from "./weights.ts"

const tensors = [0, 1, 2, 3]
  .flatMap((layer) => [
    { name: `layers.${layer}.attention`, shape: [96, 202] },
    { name: `layers.${layer}.mlp`, shape: [44, 130] },
    { name: `layers.${layer}.norm`, shape: [202] }
  ])
  .map((tensor) => ({ ...tensor, dtype: "bfloat16" as const }))

/** Ranks of the source. */
export const sourceRanks: ReadonlyArray<Rank> = [0, 1, 2, 3]
/** Ranks of each replica. */
export const replicaRanks: ReadonlyArray<ReadonlyArray<Rank>> = [
  [4, 5],
  [6, 7]
]

const layoutFor = (side: "source" | "destination") =>
  Result.getOrThrow(
    modelLayout({
      tensors,
      config: side === "source" ? { tp: 2, pp: 2, dp: 1 } : { tp: 2, pp: 1, dp: 2 },
      firstRank: side === "source" ? 0 : 4,
      rules: {
        layers: "layers.{}.",
        rules: [
          { match: "layers.*.attention", shard: side === "source" ? 0 : 1 },
          { match: "layers.*.mlp", shard: 0 },
          { match: "layers.*.norm", shard: "replicate" }
        ]
      }
    })
  ).roster

/** The same on all ranks. */
export const shardedLayout: FleetLayout = {
  source: layoutFor("source"),
  destination: layoutFor("destination"),
  replicas: replicaRanks
}

/** The layout as a rank sees it. */
export const shardsOfRank = (rank: Rank): ShardLayout =>
  Result.getOrThrow(indexLayout(shardedLayout, rank, sourceRanks.includes(rank) ? "source" : "replica"))

/** Fills the tensors of a rank with its part of a version. */
export const fillShards = ({ shares }: ShardLayout, local: ReadonlyMap<string, Uint8Array>, seed: number): void => {
  const whole = new Map(
    tensors.map(({ name, shape }) => [name, new Uint8Array(2 * shape.reduce((product, length) => product * length, 1))])
  )
  fillWeights(whole, seed)
  for (const share of shares) {
    for (const run of byteRuns(share, share.held)) {
      const from = whole.get(share.resolvedName)!.subarray(run.global, run.global + run.bytes)
      local.get(share.name)!.set(from, run.local)
    }
  }
}

/** The hash of what a rank holds of a version. */
export const shardHash = (rank: Rank, seed: number): string => {
  const shards = shardsOfRank(rank)
  const local = new Map(
    shards.tensors.map(({ name, shape }) => [
      name,
      new Uint8Array(2 * shape.reduce((product, length) => product * length, 1))
    ])
  )
  fillShards(shards, local, seed)
  const found = createHash("sha256")
  for (const name of [...local.keys()].sort()) found.update(local.get(name)!)
  return found.digest("hex")
}
