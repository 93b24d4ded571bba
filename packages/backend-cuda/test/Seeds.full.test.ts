// SPDX-License-Identifier: Apache-2.0
/**
 * Random batches over every driver under many orders of the simulated device's work: poisoned destinations, three rounds,
 * new contents and new memory, and at the end nothing objected to and nothing left.
 */

import { assert, describe, it } from "@effect/vitest"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { isSoak } from "@tensorferry/testing/testLevel"
import { runBatch } from "@tensorferry/testing/transfers/randomBatches"
import { makeRandom, makeTransfers } from "@tensorferry/testing/transfers/randomTransfers"
import * as Layer from "effect/Layer"
import { driverOf, engines, kinds } from "./cluster.ts"

const seeds = isSoak ? 1000 : 20

describe.each(kinds)("%s", (kind) => {
  it(`moves ${seeds} random batches right`, { timeout: 60_000 + seeds * 3000 }, async () => {
    for (let seed = 1; seed <= seeds; seed++) {
      const random = makeRandom(seed)
      const options = {
        stagingBytes: 2 ** (16 + random.below(4)),
        directBytes: 2 ** (10 + random.below(8)),
        copyEngineBytes: 2 ** (8 + random.below(10))
      }
      const ranks = 2 + (seed % 3)
      resetSimulator(`seed=${seed}`)
      const layer = Layer.provideMerge(driverOf(kind, options), engines(options))
      const wrong = await runBatch(makeTransfers(seed, ranks), ranks, layer)
      assert.deepStrictEqual(wrong, [], `${kind}, seed ${seed}`)
      assertClean(`of ${kind}, seed ${seed}`)
    }
  })
})
