// SPDX-License-Identifier: Apache-2.0
/** `Refit`: prepared once, swapped many times, with buffers that move in between; and the cache of plans. */
import { assert, describe, it } from "@effect/vitest"
import { describeFault, fillSide, judgeSide, type OracleModel, oracleModel } from "@tensorferry/testing/planning/oracle"
import { runCluster, runRanks } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import { parameterMetadata } from "../../src/layout/ParameterMetadata.ts"
import { parametersOf } from "../../src/layout/Roster.ts"
import * as Refit from "../../src/refit/Refit.ts"
import { PlanCache, PlanCacheCapacity } from "../../src/reshard/PlanCache.ts"
import { CopyService } from "../../src/service/CopyService.ts"
import { cast } from "../../src/transform/Cast.ts"
import { identity } from "../../src/transform/Identity.ts"
import { rosterOf, sidesOf } from "../reshard/executeSupport.ts"

const prepare = (model: OracleModel, rank: number) =>
  Refit.prepare({ source: parametersOf(model.source, rank), destination: parametersOf(model.destination, rank) })

describe("prepare", () => {
  it.effect("a rank that states nonsense fails every rank at once, by name", () =>
    Effect.gen(function* () {
      const wrong = parameterMetadata({ name: "w", shape: [1.5], dtype: "float32", ownerRank: 1 })
      const exits = yield* runRanks({ size: 3 }, (rank) =>
        Effect.flip(Refit.prepare({ source: rank === 1 ? [wrong] : [] })).pipe(Effect.provide(PlanCache.layer))
      )
      for (const exit of exits) {
        assert.isTrue(Exit.isSuccess(exit))
        if (!Exit.isSuccess(exit)) continue
        assert.strictEqual(exit.value._tag, "ReshardError")
        if (exit.value._tag !== "ReshardError") continue
        assert.strictEqual(exit.value.reason._tag, "ExchangeFailed")
        assert.strictEqual(exit.value.reason.peer, 1)
      }
    })
  )
})

describe("swap", () => {
  for (const [name, firstRank] of [
    ["collocated", 0],
    ["overlapping", 1],
    ["disjoint", 2]
  ] as const) {
    it.live(`${name}: three rounds with new values, kept and reallocated buffers`, () =>
      Effect.gen(function* () {
        const model = oracleModel(rosterOf(2), rosterOf(3, { firstRank }))
        yield* runCluster({ size: 5 }, (rank) =>
          Effect.gen(function* () {
            const refit = yield* prepare(model, rank)
            const kept = yield* sidesOf(model, rank)
            for (let round = 0; round < 3; round++) {
              // The same buffers with new values.
              if (kept.source !== undefined) yield* fillSide(model, kept.source, round)
              const report = yield* refit.swap(kept.source?.dict, kept.destination?.dict)
              assert.strictEqual(report.copy.reusedProgram, false)
              if (kept.destination !== undefined) {
                const faults = yield* judgeSide(model, kept.destination, rank, round)
                assert.deepStrictEqual(faults.map(describeFault), [])
              }
              // Buffers that exist for one swap only, after those of the round before were freed.
              yield* Effect.scoped(
                Effect.gen(function* () {
                  const fresh = yield* sidesOf(model, rank, round + 10)
                  yield* refit.swap(fresh.source?.dict, fresh.destination?.dict)
                  if (fresh.destination === undefined) return
                  const faults = yield* judgeSide(model, fresh.destination, rank, round + 10)
                  assert.deepStrictEqual(faults.map(describeFault), [])
                })
              )
            }
          }).pipe(Effect.provide(PlanCache.layer))
        )
      })
    )
  }

  it.live("keeps its compiled program while the buffers stay", () =>
    Effect.gen(function* () {
      const model = oracleModel(rosterOf(2), rosterOf(2))
      yield* runCluster({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const refit = yield* prepare(model, rank)
          const { source, destination } = yield* sidesOf(model, rank)
          const reused: Array<boolean> = []
          for (let round = 0; round < 3; round++) {
            yield* fillSide(model, source!, round)
            reused.push((yield* refit.swap(source!.dict, destination!.dict)).copy.reusedProgram)
            assert.deepStrictEqual(yield* judgeSide(model, destination!, rank, round), [])
          }
          assert.deepStrictEqual(reused, [false, true, true])
        }).pipe(Effect.provide(PlanCache.layer))
      )
    })
  )

  for (const transform of [identity, cast({ wireDtype: "float32" })]) {
    it.live(`${transform.name}: remote and within a rank, three rounds`, () =>
      Effect.gen(function* () {
        const model = oracleModel(rosterOf(2, { dtype: "bfloat16" }), rosterOf(2, { dtype: "bfloat16", firstRank: 1 }))
        yield* runCluster({ size: 3 }, (rank) =>
          Effect.gen(function* () {
            const refit = yield* prepare(model, rank)
            const { source, destination } = yield* sidesOf(model, rank)
            for (let round = 0; round < 3; round++) {
              if (source !== undefined) yield* fillSide(model, source, round)
              yield* refit.swap(source?.dict, destination?.dict, { transform })
              if (destination !== undefined)
                assert.deepStrictEqual(yield* judgeSide(model, destination, rank, round), [])
            }
          }).pipe(Effect.provide(PlanCache.layer))
        )
      })
    )
  }

  it.live("a failed swap leaves the next one working", () =>
    Effect.gen(function* () {
      const model = oracleModel(rosterOf(2), rosterOf(2, { firstRank: 1 }))
      yield* runCluster({ size: 3 }, (rank) =>
        Effect.gen(function* () {
          const refit = yield* prepare(model, rank)
          const { source, destination } = yield* sidesOf(model, rank)
          const error = yield* Effect.flip(refit.swap(rank === 0 ? undefined : source?.dict, destination?.dict))
          assert.strictEqual(error.reason.rank, 0)
          yield* refit.swap(source?.dict, destination?.dict)
          if (destination !== undefined) assert.deepStrictEqual(yield* judgeSide(model, destination, rank), [])
        }).pipe(Effect.provide(PlanCache.layer))
      )
    })
  )
})

describe("prepare", () => {
  it.live("answers the same layouts from the cache and forgets the oldest", () =>
    Effect.gen(function* () {
      const models = [2, 3, 4].map((tp) => oracleModel(rosterOf(2), rosterOf(tp)))
      yield* runCluster({ size: 4 }, (rank) =>
        Effect.gen(function* () {
          const cache = yield* PlanCache
          const first = yield* prepare(models[0]!, rank)
          assert.strictEqual((yield* prepare(models[0]!, rank)).plan, first.plan)
          assert.strictEqual(yield* cache.hits, 1)
          yield* prepare(models[1]!, rank)
          yield* prepare(models[2]!, rank)
          assert.deepStrictEqual((yield* prepare(models[0]!, rank)).plan, first.plan)
          assert.strictEqual(yield* cache.hits, 1)
        }).pipe(
          Effect.provide(PlanCache.layer.pipe(Layer.provide(Layer.succeed(PlanCacheCapacity, 2))), { local: true })
        )
      )
    })
  )

  it.live("fails equally on every rank where layouts do not fit", () =>
    Effect.gen(function* () {
      const source = rosterOf(2)
      const other = rosterOf(2, {
        tensors: [{ name: "other", dtype: "float32", shape: [3] }],
        rules: { rules: [{ match: "*", shard: "replicate" }] }
      })
      const exits = yield* runRanks({ size: 2 }, (rank) =>
        Effect.flip(prepare(oracleModel(source, other), rank)).pipe(Effect.provide(PlanCache.layer))
      )
      const messages = exits.map((exit) => (Exit.isSuccess(exit) ? exit.value.message : "succeeded"))
      assert.include(messages[0], "other")
      assert.strictEqual(messages[0], messages[1])
    })
  )

  it.live("refuses ranks that state what others own", () =>
    Effect.gen(function* () {
      const source = rosterOf(2)
      const exits = yield* runRanks({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const service = yield* CopyService
          assert.strictEqual(service.rank, rank)
          return yield* Effect.flip(Refit.prepare({ source: parametersOf(source, 0) }))
        }).pipe(Effect.provide(PlanCache.layer))
      )
      for (const exit of exits) {
        assert.isTrue(Exit.isSuccess(exit))
        if (Exit.isSuccess(exit)) assert.include(exit.value.message, "Rank 1")
      }
    })
  )
})
