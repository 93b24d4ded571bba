// SPDX-License-Identifier: Apache-2.0
/**
 * What a known update costs a rank does not depend on how many ranks there are, but on how many it exchanges with: shown for
 * 1,024, or with the counts of hours 16,384, of which four exist.
 */
import { assert, describe, it } from "@effect/vitest"
import { withGhosts } from "@tensorferry/testing/GhostRanks"
import { make as makeReference } from "@tensorferry/testing/ReferenceEngine"
import { makeSharedFlags } from "@tensorferry/testing/SharedFlags"
import { makeSharedMemory, type SharedMemory, sharedMemoryLayer } from "@tensorferry/testing/SharedMemory"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { copyServiceLayer } from "../../src/copy/CopyServiceLayer.ts"
import { makeInProcessGroups } from "../../src/group/ProcessGroupInProcess.ts"
import { CopyService } from "../../src/service/CopyService.ts"
import { ProcessGroup, type ProcessGroupShape } from "../../src/service/ProcessGroup.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"
import { tensorBytes } from "../../src/tensor/Tensor.ts"

const rounds = 50
/** The first agreement of so many takes half a minute. */
const many = isSoak ? 16_384 : 1024
const limit = 300_000
/** Rank 1 receives from rank 0 and sends to rank 2; rank 3 rests, as all others do. */
const real = 4

/** What a rank told others. */
interface Told {
  readonly collectives: Array<string>
  /** The first bytes of its posts, which are their kinds, once for each receiver. */
  readonly posts: Array<number>
}

/** The first bytes of "Ready" and "Done". */
const [ready, done] = [2, 3]

/** Fails with what the rank told in the repetitions: a service that closes after a failure waits for nobody. */
const runRank = (group: ProcessGroupShape, memory: SharedMemory, { collectives, posts }: Told) =>
  Effect.gen(function* () {
    const service = yield* CopyService
    const engine = yield* TensorEngine
    const [into, from] = [yield* engine.allocate("uint8", [8]), yield* engine.allocate("uint8", [8])]
    const run = Effect.gen(function* () {
      if (group.rank === 1 || group.rank === 2) yield* service.submitRecv(into, group.rank - 1, group.rank)
      if (group.rank === 0 || group.rank === 1) yield* service.submitSend(from, group.rank + 1, group.rank + 1)
      yield* service.run()
    })
    yield* run
    collectives.length = 0
    posts.length = 0
    for (let round = 1; round <= rounds; round++) {
      tensorBytes(from)!.fill(round)
      yield* run
      if (group.rank === 1) assert.strictEqual(tensorBytes(into)![7], round)
    }
    yield* group.barrier("repeated")
    return yield* Effect.fail({ collectives: collectives.slice(0, -1), posts: [...posts] })
  }).pipe(
    Effect.provide(
      Layer.provideMerge(
        copyServiceLayer(sharedMemoryLayer(memory), { busyPoll: Duration.zero }),
        Layer.mergeAll(Layer.succeed(TensorEngine, makeReference()), Layer.succeed(ProcessGroup, group))
      )
    )
  )

/** What rank 1 told in the repetitions. */
const toldBy1 = (size: number, hasFlags: boolean) =>
  Effect.scoped(
    Effect.gen(function* () {
      const groups = yield* makeInProcessGroups(real, { deadline: Duration.seconds(20) })
      const memory = makeSharedMemory(hasFlags ? makeSharedFlags() : undefined)
      const all = yield* Effect.forEach(
        groups,
        (group) => {
          const told: Told = { collectives: [], posts: [] }
          const watch = {
            collective: (label: string) => void told.collectives.push(label),
            post: (to: ReadonlyArray<number>, payload: Uint8Array) => void told.posts.push(...to.map(() => payload[0]!))
          }
          return Effect.flip(runRank(withGhosts(group, size, watch), memory, told))
        },
        { concurrency: "unbounded" }
      )
      return all[1]! as Told
    })
  )

describe("a known update of a rank with two partners", () => {
  it.live(
    `among ${many} takes the messages that it takes among 4`,
    () =>
      Effect.gen(function* () {
        const few = yield* toldBy1(real, false)
        const round = [ready, ready, done, done]
        assert.deepStrictEqual(few, { collectives: [], posts: Array.from({ length: rounds }, () => round).flat() })
        assert.deepStrictEqual(yield* toldBy1(many, false), few)
      }),
    limit
  )

  it.live(
    `among ${many} takes none where the partners see its flags`,
    () =>
      Effect.gen(function* () {
        assert.deepStrictEqual(yield* toldBy1(many, true), { collectives: [], posts: [] })
      }),
    limit
  )
})
