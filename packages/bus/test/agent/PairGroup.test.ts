// SPDX-License-Identifier: Apache-2.0
/** Pairs within a group that all agents share: subgroups of it move the tensors, and agents outside are refused. */
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { replicate, shard } from "@tensorferry/core/layout/Placement"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import * as Effect from "effect/Effect"
import { type MakePairGroup, withinContext, withinGroup } from "../../src/agent/PairGroup.ts"
import { makeCluster } from "../cluster.ts"
import { faultOf, fill, makeTensor } from "../tensors.ts"

const all = <A, E, R>(effects: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.all(effects, { concurrency: "unbounded" })

describe("within a group", () => {
  it.live("two pairs of different agents move side by side, each in its own subgroup", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const groups = yield* makeInProcessGroups(4)
        const formed: Array<ReadonlyArray<number>> = []
        // Agents of one process: each takes the group of its own rank.
        const makeGroup: MakePairGroup = (request) =>
          Effect.tap(withinGroup(groups[request.members.agents[request.rank]!]!)(request), ({ members }) =>
            Effect.sync(() => formed.push(members))
          )
        const { start, memory } = yield* makeCluster({ makeGroup })
        const clients = yield* Effect.forEach([0, 1, 2, 3], (rank) => Effect.map(start(rank), ({ client }) => client))
        const [zero, one, two, three] = clients as [
          (typeof clients)[0],
          (typeof clients)[0],
          (typeof clients)[0],
          (typeof clients)[0]
        ]
        const side = (pair: string, local: string, remote: string, size = 1) => ({
          pair,
          local,
          remote,
          mesh: [size],
          placements: [size === 1 ? replicate : shard(0)]
        })
        // Agents 3 and 1 hold what agent 0 gets; 2 and 0 are a pair of their own.
        yield* all([
          three.initPair(side("w", "a", "b", 2)),
          one.initPair(side("w", "a", "b", 2)),
          zero.initPair(side("w", "b", "a")),
          two.initPair(side("v", "a", "b")),
          zero.initPair(side("v", "b", "a"))
        ])
        assert.deepStrictEqual([...new Set(formed.map((members) => members.join()))].sort(), ["1,3,0", "2,0"].sort())
        const shards = yield* Effect.forEach([2, 2, 4, 3, 3], (length) => makeTensor(memory, "float32", [length]))
        const [first, second, whole, from, to] = shards as [
          (typeof shards)[0],
          (typeof shards)[0],
          (typeof shards)[0],
          (typeof shards)[0],
          (typeof shards)[0]
        ]
        yield* all([
          one.registerTensors({ batch: "w", tensors: [["w", first]] }),
          three.registerTensors({ batch: "w", tensors: [["w", second]] }),
          zero.registerTensors({ batch: "w", tensors: [["w", whole]] }),
          two.registerTensors({ batch: "v", tensors: [["v", from]] }),
          zero.registerTensors({ batch: "v", tensors: [["v", to]] })
        ])
        fill(first, [1, 2])
        fill(second, [3, 4])
        fill(from, [7, 8, 9])
        yield* all([
          one.transfer("w", "send"),
          three.transfer("w", "send"),
          zero.transfer("w", "recv"),
          two.transfer("v", "send"),
          zero.transfer("v", "recv")
        ])
        assert.isUndefined(faultOf(whole, [1, 2, 3, 4]))
        assert.isUndefined(faultOf(to, [7, 8, 9]))
      })
    )
  )

  it.live("agents that are not of the group are refused by name", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const [group] = yield* makeInProcessGroups(2)
        const makeGroup = yield* Effect.provideService(withinContext, ProcessGroup, group!)
        const request = { members: { agents: [0, 2] } } as unknown as Parameters<MakePairGroup>[0]
        const error = yield* Effect.flip(makeGroup(request))
        assert.strictEqual(error.reason._tag, "InvalidGroup")
        assert.match(error.message, /agents 0, 2 are not all in a group of 2/)
      })
    )
  )
})
