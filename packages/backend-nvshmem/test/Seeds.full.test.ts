// SPDX-License-Identifier: Apache-2.0
/**
 * Random batches over both paths under many orders of the simulated devices' work and of what arrives: poisoned
 * destinations, three rounds, new contents and new memory, and at the end nothing objected to and nothing left.
 */

import { assert, describe, it } from "@effect/vitest"
import { isSoak } from "@tensorferry/testing/testLevel"
import { runBatch } from "@tensorferry/testing/transfers/randomBatches"
import { makeRandom, makeTransfers } from "@tensorferry/testing/transfers/randomTransfers"
import * as Layer from "effect/Layer"
import { assertClean, driverOf, engines, paths, resetSimulator } from "./cluster.ts"

const seeds = isSoak ? 1000 : 20

describe.each(paths)("%s", (path) => {
  it(`moves ${seeds} random batches right`, { timeout: 60_000 + seeds * 3000 }, async () => {
    for (let seed = 1; seed <= seeds; seed++) {
      const random = makeRandom(seed)
      const options = {
        path,
        slotBytes: 2 ** (12 + random.below(4)),
        slots: 1 + random.below(4),
        copyEngineBytes: 2 ** (8 + random.below(10))
      }
      const ranks = 2 + (seed % 3)
      resetSimulator(`seed=${seed}${path === "put" ? " peers=none" : ""}`)
      const layer = Layer.provideMerge(driverOf(options), engines(options))
      const wrong = await runBatch(makeTransfers(seed, ranks), ranks, layer)
      assert.deepStrictEqual(wrong, [], `${path}, seed ${seed}`)
      assertClean(`of ${path}, seed ${seed}`)
    }
  })
})
