// SPDX-License-Identifier: Apache-2.0
/**
 * MNIST there and back: every tensor-parallel degree from 1 to 8, with and without two pipeline stages. Shards of
 * [10, 128] are uneven for most degrees and empty for some.
 */
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { fullRegion } from "@tensorferry/core/base/Region"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import type { ModelLayout } from "@tensorferry/model/layout/ModelLayout"
import { openModel } from "@tensorferry/model/openModel"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { readRules } from "../../src/model/Rules.ts"
import { assertNothingRuns, endAll, isSoak, scratch, start, temporaryNames } from "../support/command.ts"
import { config, driver, engine, layoutOf, memoryFiles } from "../support/inProcess.ts"
import { assertSameModel, mnist, mnistRules } from "../support/models.ts"

afterEach(endAll)

const combinations = [1, 2].flatMap((pp) => [1, 2, 3, 4, 5, 6, 7, 8].map((tp) => ({ tp, pp, dp: 1 })))

const allocate = Effect.fnUntraced(function* (layout: ModelLayout, rank: number, poison: number) {
  const kernels = yield* TensorEngine
  const locals = layout.tensorsOf(rank)
  const tensors = yield* Effect.forEach(locals, ({ dtype, shape }) => kernels.allocate(dtype, shape))
  for (const tensor of tensors) yield* kernels.fill(tensor, poison)
  return locals.map((local, at) => ({ ...local, tensor: tensors[at]!, bytes: tensorBytes(tensors[at]!)! }))
})

type Held = Effect.Success<ReturnType<typeof allocate>>

const dict = (held: Held) => tensorDict(held.map(({ name, tensor }) => [name, tensor] as const))

describe("MNIST there and back", () => {
  for (const to of combinations) {
    it.live(`tp=${to.tp},pp=${to.pp} in one process`, () =>
      Effect.gen(function* () {
        const before = memoryFiles()
        const model = yield* openModel(mnist)
        const rules = yield* readRules(mnistRules)
        const wide = layoutOf({ tensors: model.tensors, rules, config: to })
        const whole = layoutOf({ tensors: model.tensors, rules, config: config("tp=1") })
        const there = Result.getOrThrow(indexRosters(whole.roster, wide.roster))
        const back = Result.getOrThrow(indexRosters(wide.roster, whole.roster))

        const assertRegions = Effect.fnUntraced(function* (held: Held) {
          for (const { name, pieces, bytes } of held) {
            assert.isAtMost(pieces.length, 1)
            const expected = new Uint8Array(bytes.length).fill(0x11)
            for (const { global } of pieces) yield* model.readRegion(name, global, expected)
            assert.strictEqual(Buffer.compare(bytes, expected), 0, `${name} ${JSON.stringify(pieces)}`)
          }
        })

        const moved = yield* runCluster({ size: to.tp * to.pp, driver, engine }, (rank) =>
          Effect.gen(function* () {
            const source = yield* allocate(whole, rank, 0x33)
            for (const { name, shape, bytes } of source) yield* model.readRegion(name, fullRegion(shape), bytes)
            const shards = yield* allocate(wide, rank, 0xa5)
            const first = yield* executeReshardPlan(planRank(there, rank), dict(source), dict(shards))
            yield* assertRegions(shards)
            const returned = yield* allocate(whole, rank, 0x77)
            yield* executeReshardPlan(planRank(back, rank), dict(shards), dict(returned))
            yield* assertRegions(returned)
            return first.copy.localBytes + first.copy.remoteBytesReceived
          })
        )
        // Both matrices are cut along the first dimension, so each byte lands on one rank.
        const total = (128 * 784 + 10 * 128) * 4
        assert.strictEqual(
          moved.reduce((sum, bytes) => sum + bytes, 0),
          total
        )
        assert.strictEqual(memoryFiles(), before)
      })
    )
  }

  const throughProcesses = isSoak
    ? combinations
    : combinations.filter(({ tp, pp }) => [11, 21, 61, 22].includes(tp * 10 + pp))
  for (const { tp, pp } of throughProcesses) {
    it(`tp=${tp},pp=${pp} with a process per rank`, async () => {
      using folder = scratch()
      const [shards, whole] = [join(folder.path, "shards"), join(folder.path, "whole")]
      const there = start(["reshard", mnist, "--to", `tp=${tp},pp=${pp}`, "--rules", mnistRules, "--out", shards])
      const first = await there.ended
      assert.strictEqual(first.code, 0, first.stderr)
      await assertNothingRuns(there)
      await assertSameModel(shards, mnist)
      const back = start(["reshard", shards, "--to", "tp=1", "--out", whole])
      const second = await back.ended
      assert.strictEqual(second.code, 0, second.stderr)
      await assertNothingRuns(back)
      await assertSameModel(whole, mnist)
      assert.deepStrictEqual(temporaryNames(folder.path), [])
    })
  }
})
