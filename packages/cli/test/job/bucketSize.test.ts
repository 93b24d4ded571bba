// SPDX-License-Identifier: Apache-2.0
/**
 * The agreed size of buckets: one number on all ranks, from the rank that has least.
 */
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { partAlignment } from "@tensorferry/core/planner/Bucketing"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { agreeOnBucketBytes, type BucketMeans, bucketBytesFor } from "../../src/job/bucketSize.ts"

const agree = (means: ReadonlyArray<BucketMeans>) =>
  Effect.gen(function* () {
    const groups = yield* makeInProcessGroups(means.length, { deadline: Duration.seconds(5) })
    const agreeing = groups.map((group, rank) =>
      Effect.provideService(agreeOnBucketBytes(means[rank]!), ProcessGroup, group)
    )
    return yield* Effect.result(Effect.all(agreeing, { concurrency: "unbounded" }))
  }).pipe(Effect.scoped)

const plenty = { freeBytes: 2 ** 36, bytesPerSecond: 1e10, startSeconds: 0.001 }

describe("the size of buckets", () => {
  it("follows from memory and link speed", () => {
    const budget = { freeBytes: 8e9, buffers: 8, bytesPerSecond: 20e9, startSeconds: 20e-6 }
    assert.strictEqual(bucketBytesFor(budget), 12_800_000)
    assert.strictEqual(bucketBytesFor({ ...budget, freeBytes: 16e6 }), 1_000_000)
    assert.strictEqual(bucketBytesFor({ ...budget, freeBytes: 0 }), partAlignment)
    assert.strictEqual(bucketBytesFor({ ...budget, startSeconds: 0 }), 65_536)
    assert.strictEqual(bucketBytesFor({ ...budget, freeBytes: 1e15, startSeconds: 1 }), 2 ** 28)
  })

  it.live("is that of the rank with least memory and of the slowest link, on every rank", () =>
    Effect.gen(function* () {
      const scarce = { ...plenty, freeBytes: 2 ** 25 }
      const slow = { ...plenty, bytesPerSecond: 1e9 }
      // Two channels to each of two others, two waves of two buckets.
      const budget = { ...plenty, buffers: 4 * 2 * 2 }
      for (const [means, wanted] of [
        [[plenty, plenty, plenty], bucketBytesFor(budget)],
        [[plenty, scarce, plenty], bucketBytesFor({ ...budget, freeBytes: 2 ** 25 })],
        [[slow, plenty, plenty], bucketBytesFor({ ...budget, bytesPerSecond: 1e9 })],
        [[plenty, plenty, { ...plenty, freeBytes: -1 }], bucketBytesFor({ ...budget, freeBytes: 0 })]
      ] as const) {
        const agreed = yield* agree(means)
        assert.strictEqual(agreed._tag, "Success")
        if (agreed._tag === "Success") assert.deepStrictEqual(agreed.success, [wanted, wanted, wanted])
      }
      const sizes = new Set([
        bucketBytesFor(budget),
        bucketBytesFor({ ...budget, freeBytes: 2 ** 25 }),
        bucketBytesFor({ ...budget, bytesPerSecond: 1e9 })
      ])
      assert.strictEqual(sizes.size, 3)
    })
  )

  it.live("fails on every rank where one states no number", () =>
    Effect.gen(function* () {
      const agreed = yield* agree([plenty, { ...plenty, freeBytes: Number.NaN }])
      assert.strictEqual(agreed._tag, "Failure")
      if (agreed._tag === "Failure") assert.deepStrictEqual(agreed.failure.ranks, [1])
    })
  )
})
