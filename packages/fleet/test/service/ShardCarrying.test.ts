// SPDX-License-Identifier: Apache-2.0
/** Proof of a version that is cut over processes: sums of a source, sums of a replica, and who is named where they are wrong. */
import { assert, describe, it } from "@effect/vitest"
import { HostMemory as HostMemoryLayers, TensorEngine as TensorEngineLayers } from "@tensorferry/backend-torch-copy"
import { KeyValueStoreMemory } from "@tensorferry/bus"
import { KeyValueStore } from "@tensorferry/bus/store/KeyValueStore"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount } from "@tensorferry/core/base/Region"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { type Tensor, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type { Scope } from "effect/Scope"
import * as Stream from "effect/Stream"
import { shardCarrying } from "../../src/service/ShardCarrying.ts"
import { emptyFleet, type FleetMember } from "../../src/version/FleetLog.ts"
import { manifestOf } from "../../src/version/Manifest.ts"
import { fillShards, shardsOfRank, sourceRanks } from "./shardedWeights.ts"

const memberOf = (rank: Rank): FleetMember => ({
  id: `m${rank}`,
  rank,
  role: sourceRanks.includes(rank) ? "source" : "replica"
})

const makeRank = (rank: Rank, members: ReadonlyArray<Rank>, deadline = "10 seconds") =>
  Effect.gen(function* () {
    const memory = yield* HostMemory
    const layout = shardsOfRank(rank)
    const entries = yield* Effect.forEach(layout.tensors, ({ name, dtype, shape }) =>
      Effect.map(memory.allocate(byteLengthOf(dtype, elementCount(shape))), (storage): readonly [string, Tensor] => [
        name,
        Result.getOrThrow(tensorView(storage, dtype, shape))
      ])
    )
    const weights = new Map(entries)
    const fill = (seed: number): void =>
      fillShards(layout, new Map([...weights].map(([name, tensor]) => [name, tensorBytes(tensor)!])), seed)
    fill(1)
    const carrying = shardCarrying({
      layout,
      self: memberOf(rank),
      store: yield* KeyValueStore,
      root: "f/",
      live: () => undefined,
      fleets: Stream.concat(Stream.make({ ...emptyFleet, members: members.map(memberOf) }), Stream.never),
      deadline: Duration.fromInputUnsafe(deadline as Duration.Input)
    })
    return { rank, weights, fill, carrying }
  })

const layers = Layer.mergeAll(KeyValueStoreMemory.layerMemory, HostMemoryLayers.layer, TensorEngineLayers.layer())
const run = <A, E>(program: Effect.Effect<A, E, Layer.Success<typeof layers> | Scope>) =>
  Effect.scoped(Effect.provide(program, Layer.fresh(layers)))

const together = { concurrency: "unbounded" } as const

/** The version that four processes of a source hold. */
const published = Effect.gen(function* () {
  const sources = yield* Effect.forEach(sourceRanks, (rank) => makeRank(rank, sourceRanks))
  const all = yield* Effect.forEach(sources, ({ carrying, weights }) => carrying.digests(weights, "one", 1), together)
  for (const digests of all) assert.deepStrictEqual(digests, all[0])
  return { sources, manifest: manifestOf(1, "one", all[0]!) }
})

describe("a version cut over processes", () => {
  it.live("has digests that do not depend on its layout: those of its source are those of a replica", () =>
    run(
      Effect.gen(function* () {
        const { sources, manifest } = yield* published
        assert.match(manifest.tensors["layers.0.attention"]!, /^bfloat16\[96, ?202\] [0-9a-f]{32}$/)
        const replica = yield* Effect.forEach([4, 5], (rank) => makeRank(rank, [4, 5]))
        yield* Effect.forEach(replica, ({ carrying, weights }) => carrying.prove(weights, manifest), together)
        assert.deepStrictEqual(
          sources.map(({ carrying }) => carrying.leads),
          [true, false, false, false]
        )
      })
    )
  )

  it.live("is not proven by any process of a replica where one of them holds another byte", () =>
    run(
      Effect.gen(function* () {
        const { manifest } = yield* published
        const replica = yield* Effect.forEach([4, 5], (rank) => makeRank(rank, [4, 5]))
        tensorBytes(replica[1]!.weights.get("layers.2.attention")!)![17]! ^= 4
        const prove = Effect.forEach(
          replica,
          ({ carrying, weights }) => Effect.result(carrying.prove(weights, manifest)),
          together
        )
        for (const result of yield* prove) {
          const error = Result.getOrThrow(Result.flip(result))
          assert.strictEqual(error.reason._tag, "NotProven")
          assert.match(error.message, /Ranks 4, 5 hold tensors of version 1 whose sums add up to/)
        }
        // What one process holds whole, it judges alone.
        replica[1]!.fill(1)
        tensorBytes(replica[1]!.weights.get("layers.3.norm")!)![0]! ^= 1
        const error = yield* Effect.flip(replica[1]!.carrying.prove(replica[1]!.weights, manifest))
        assert.strictEqual(error.reason.paramName, "layers.3.norm")
      })
    )
  )

  it.live("is proven by a process alone whose replica lacks the others, and by those when they join", () =>
    run(
      Effect.gen(function* () {
        const { manifest } = yield* published
        const first = yield* makeRank(4, [4])
        yield* first.carrying.prove(first.weights, manifest)
        const second = yield* makeRank(5, [4])
        second.fill(2)
        const error = yield* Effect.flip(second.carrying.prove(second.weights, manifest))
        assert.strictEqual(error.reason._tag, "NotProven")
        second.fill(1)
        yield* second.carrying.prove(second.weights, manifest)
      })
    )
  )

  it.live("is not published while a process of the source does not publish it, and says which", () =>
    run(
      Effect.gen(function* () {
        const sources = yield* Effect.forEach([0, 1, 3], (rank) => makeRank(rank, sourceRanks, "1 second"))
        const states = sources.map(({ carrying, weights, rank }) =>
          Effect.flip(carrying.digests(weights, rank === 3 ? "other" : "one", 1))
        )
        const [error] = yield* Effect.all(states, together)
        assert.strictEqual(error!.reason._tag, "DeadlineExceeded")
        assert.deepStrictEqual(error!.ranks, [2, 3])
        assert.include(error!.message, "Ranks 2, 3 of the source did not publish one within 1s")
      })
    )
  )
})
