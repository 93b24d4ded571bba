// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import { partial, replicate, shard } from "@tensorferry/core/layout/Placement"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import * as Effect from "effect/Effect"
import { all, clientOf, inScope, startAgents } from "./processes.ts"
import { hasLmdb } from "./support.ts"
import { faultOf, fill, makeTensor, ranksOf, type SideLayout, sourceValues, targetValues } from "./tensors.ts"

describe("clusters of processes", () => {
  it.live.skipIf(!hasLmdb)(
    "4 and 8 agents, with shards, replicas and sums, several pairs, both ways",
    () =>
      inScope((folder) =>
        Effect.gen(function* () {
          const memory = yield* HostMemory
          const pairs: Readonly<Record<string, readonly [SideLayout, SideLayout]>> = {
            w: [
              { mesh: [2, 2], placements: [shard(0), shard(1)] },
              { mesh: [4, 2], placements: [shard(0), replicate] }
            ],
            g: [
              { mesh: [2, 2], placements: [replicate, shard(0)] },
              { mesh: [4, 2], placements: [partial("sum"), shard(0)] }
            ]
          }
          yield* startAgents(12, folder, 60_000)
          const clients = yield* Effect.forEach(
            Array.from({ length: 12 }, (_, rank) => rank),
            (rank) => clientOf(rank, folder)
          )
          const placeAt = (rank: number) => (rank < 4 ? ([0, rank] as const) : ([1, rank - 4] as const))
          yield* all(
            clients.flatMap((client, rank) =>
              Object.entries(pairs).map(([pair, sides]) => {
                const [side] = placeAt(rank)
                return client.initPair({
                  pair,
                  local: side === 0 ? "a" : "b",
                  remote: side === 0 ? "b" : "a",
                  ...sides[side]
                })
              })
            )
          )
          const shape = [24, 20]
          for (const [batch, names, sources] of [
            ["weights", ["w", "w"], [0, 1, 0]],
            ["both", ["g", "w"], [1, 1]]
          ] as const) {
            const tensors = yield* Effect.forEach(clients, (_, rank) => {
              const [side, place] = placeAt(rank)
              return Effect.forEach(names, (pair) =>
                Effect.map(
                  makeTensor(memory, "float32", sourceValues(pairs[pair]![side], shape, place, 0).local),
                  (tensor) => [pair as string, tensor] as const
                )
              )
            })
            yield* all(
              clients.map((client, rank) =>
                client.registerTensors({ batch, tensors: tensors[rank]!, bucketBytes: 256 })
              )
            )
            for (const [round, source] of sources.entries()) {
              for (const [rank, own] of tensors.entries()) {
                const [side, place] = placeAt(rank)
                for (const [pair, tensor] of own) {
                  if (side === source) fill(tensor, sourceValues(pairs[pair]![side], shape, place, round).values)
                  else tensor.storage.bytes!.fill(0xa5)
                }
              }
              yield* all(
                clients.map((client, rank) => client.transfer(batch, placeAt(rank)[0] === source ? "send" : "recv"))
              )
              for (const [rank, own] of tensors.entries()) {
                const [side, place] = placeAt(rank)
                if (side === source) continue
                for (const [pair, tensor] of own) {
                  const { values } = targetValues(pairs[pair]![source], pairs[pair]![side], shape, place, round)
                  assert.isUndefined(faultOf(tensor, values), `${batch}, round ${round}, rank ${rank}, pair ${pair}`)
                }
              }
            }
            yield* all(clients.map((client) => client.cleanupBatch(batch)))
          }
          assert.strictEqual(ranksOf(pairs.w![1]), 8)
        })
      ),
    300_000
  )
})
