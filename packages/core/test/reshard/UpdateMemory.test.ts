// SPDX-License-Identifier: Apache-2.0
/** Buffers of updates: kept while they fit, one borrower each, freed with their scope; and the lists of local moves. */
import { assert, describe, it } from "@effect/vitest"
import { fillSide, judgeSide, oracleModel } from "@tensorferry/testing/planning/oracle"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { parametersOf } from "../../src/layout/Roster.ts"
import { estimatePlans } from "../../src/planner/Estimate.ts"
import * as Refit from "../../src/refit/Refit.ts"
import { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { PlanCache } from "../../src/reshard/PlanCache.ts"
import { makeUpdateMemory } from "../../src/reshard/UpdateMemory.ts"
import { CopyService } from "../../src/service/CopyService.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"
import { type Tensor, tensorBytes } from "../../src/tensor/Tensor.ts"
import { cast } from "../../src/transform/Cast.ts"
import { countingEngine, type EngineCalls } from "../countingEngine.ts"
import { plansOf, rosterOf, sidesOf } from "./executeSupport.ts"

describe("borrowing", () => {
  const engine = ReferenceEngine.make()
  /** One update that asks for these lengths; what it got. */
  const update = (memory: Effect.Success<typeof makeUpdateMemory>, lengths: ReadonlyArray<number>) =>
    Effect.scoped(
      Effect.gen(function* () {
        const lent = yield* memory.borrow(engine)
        return yield* Effect.forEach(lengths, (length) => lent.allocate("uint8", [length]))
      })
    )
  const generations = (tensors: ReadonlyArray<Tensor>) => tensors.map(({ storage }) => storage.generation)

  it.effect("the same requests get the same storages, in order, also of equal shapes", () =>
    Effect.gen(function* () {
      const memory = yield* makeUpdateMemory
      const first = yield* update(memory, [5, 7, 5, 0, 5])
      assert.strictEqual(new Set(generations(first)).size, 5)
      for (let round = 0; round < 3; round++) {
        assert.deepStrictEqual(generations(yield* update(memory, [5, 7, 5, 0, 5])), generations(first))
      }
      assert.isTrue(first.every(({ storage }) => !storage.isFreed()))
    })
  )

  it.effect("what an update did without is freed at its end, the rest stays", () =>
    Effect.gen(function* () {
      const memory = yield* makeUpdateMemory
      const [kept, dropped] = yield* update(memory, [5, 7])
      const [again] = yield* update(memory, [5])
      assert.strictEqual(again!.storage, kept!.storage)
      assert.deepStrictEqual([kept!.storage.isFreed(), dropped!.storage.isFreed()], [false, true])
    })
  )

  it.effect("everything is freed with the scope, and a failed request leaves nothing", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const memory = yield* Scope.provide(makeUpdateMemory, scope)
      const [tensor] = yield* update(memory, [5])
      yield* Effect.flip(update(memory, [5, 2 ** 40]))
      assert.isFalse(tensor!.storage.isFreed())
      yield* Scope.close(scope, Exit.void)
      assert.isTrue(tensor!.storage.isFreed())
    })
  )

  it.effect("two updates at one time share nothing", () =>
    Effect.gen(function* () {
      const memory = yield* makeUpdateMemory
      const [outer, inner] = yield* Effect.scoped(
        Effect.gen(function* () {
          const lent = yield* memory.borrow(engine)
          const own = yield* lent.allocate("uint8", [5])
          const [other] = yield* update(memory, [5])
          assert.isFalse(own.storage.isFreed())
          return [own, other!] as const
        })
      )
      assert.notStrictEqual(outer.storage.generation, inner.storage.generation)
    })
  )

  it.effect("memory that its owner freed is not lent again", () =>
    Effect.gen(function* () {
      const memory = yield* makeUpdateMemory
      const [lost] = yield* update(memory, [5])
      lost!.storage.free()
      const [next] = yield* update(memory, [5])
      assert.isFalse(next!.storage.isFreed())
      assert.notStrictEqual(next!.storage.generation, lost!.storage.generation)
    })
  )
})

describe("repeated updates", () => {
  const narrow = rosterOf(2, { dtype: "bfloat16" })
  const cases = [
    ["casts before sending", rosterOf(2), rosterOf(3, { dtype: "bfloat16" }), {}],
    ["casts after receiving", narrow, rosterOf(3, { firstRank: 1 }), {}],
    ["a transform's buffers", narrow, rosterOf(3, { dtype: "bfloat16" }), { transform: cast({ wireDtype: "float32" }) }]
  ] as const
  for (const [name, source, destination, options] of cases) {
    it.live(`${name}: the second one allocates nothing and finds its program`, () =>
      Effect.gen(function* () {
        const model = oracleModel(source, destination)
        const calls: Array<EngineCalls> = []
        const seen = yield* runCluster({ size: 4, engine: countingEngine(calls) }, (rank) =>
          Effect.gen(function* () {
            const refit = yield* Refit.prepare({
              source: parametersOf(model.source, rank),
              destination: parametersOf(model.destination, rank)
            })
            const sides = yield* sidesOf(model, rank)
            const own = calls[rank]!
            const rounds: Array<readonly [allocations: number, reused: boolean]> = []
            for (let round = 0; round < 3; round++) {
              if (sides.source !== undefined) yield* fillSide(model, sides.source, round)
              const before = own.allocations
              const report = yield* refit.swap(sides.source?.dict, sides.destination?.dict, options)
              rounds.push([own.allocations - before, report.copy.reusedProgram])
              if (sides.destination !== undefined) {
                assert.deepStrictEqual(yield* judgeSide(model, sides.destination, rank, round), [])
              }
            }
            return rounds
          }).pipe(Effect.provide(PlanCache.layer))
        )
        assert.isAbove(
          seen.reduce((sum, [first]) => sum + first![0], 0),
          0
        )
        for (const [, ...later] of seen) {
          assert.deepStrictEqual(later, [
            [0, true],
            [0, true]
          ])
        }
      })
    )
  }

  it.live("without memory of their own: allocated for each, freed at its end", () =>
    Effect.gen(function* () {
      const model = oracleModel(rosterOf(2), rosterOf(2, { dtype: "bfloat16", firstRank: 2 }))
      const plans = plansOf(model.source, model.destination, 4)
      const calls: Array<EngineCalls> = []
      yield* runCluster({ size: 4, engine: countingEngine(calls) }, (rank) =>
        Effect.gen(function* () {
          const { source, destination } = yield* sidesOf(model, rank)
          const own = calls[rank]!
          for (let round = 0; round < 2; round++) {
            const [allocations, batches] = [own.allocations, own.batches.length]
            yield* executeReshardPlan(plans[rank]!, source?.dict, destination?.dict)
            if (rank >= 2) continue
            assert.isAbove(own.allocations, allocations)
            for (const { dst } of own.batches[batches]!) assert.isTrue(dst.storage.isFreed())
          }
        })
      )
    })
  )

  it("estimates count their buffers", () => {
    // Rank 0 casts 7*5 + 5*8 + 11 elements to two bytes each before it sends them; rank 1 has nothing to cast.
    const elements = 7 * 5 + 5 * 8 + 11
    const before = estimatePlans(plansOf(rosterOf(1), rosterOf(1, { dtype: "bfloat16", firstRank: 1 }), 2)).ranks
    assert.deepStrictEqual(
      before.map(({ bufferBytes, peakBytes }) => [bufferBytes, peakBytes]),
      [
        [2 * elements, 6 * elements],
        [0, 2 * elements]
      ]
    )
    const after = estimatePlans(plansOf(rosterOf(1, { dtype: "bfloat16" }), rosterOf(1), 1)).ranks
    // What a rank casts for itself needs no buffer.
    assert.deepStrictEqual([after[0]!.bufferBytes, after[0]!.peakBytes], [0, 6 * elements])
    const none = estimatePlans(plansOf(rosterOf(1), rosterOf(1), 1)).ranks
    assert.deepStrictEqual([none[0]!.bufferBytes, none[0]!.peakBytes], [0, 8 * elements])
  })
})

describe("moves within a rank", () => {
  it.effect("are the same list again while the memory stays, a new one when anything changed", () => {
    const calls: Array<EngineCalls> = []
    return runCluster({ size: 1, engine: countingEngine(calls) }, () =>
      Effect.gen(function* () {
        const service = yield* CopyService
        const engine = yield* TensorEngine
        const [from, to, other] = yield* Effect.all([
          engine.allocate("uint8", [6]),
          engine.allocate("uint8", [6]),
          engine.allocate("uint8", [6])
        ])
        const { batches } = calls[0]!
        const move = (src: Tensor, dst: Tensor) =>
          Effect.gen(function* () {
            tensorBytes(from)!.forEach((_, at, bytes) => {
              bytes[at] = batches.length * 16 + at
            })
            // New views of the same memory, as plans make them.
            yield* service.submitSend({ ...src }, 0, 1)
            yield* service.submitRecv({ ...dst }, 0, 1)
            yield* service.run()
            assert.deepStrictEqual(tensorBytes({ ...dst, dtype: "uint8" })!, tensorBytes({ ...src, dtype: "uint8" })!)
            return batches.at(-1)!
          })
        const first = yield* move(from, to)
        assert.strictEqual(yield* move(from, to), first)
        const shorter = yield* move({ ...from, shape: [4] }, { ...to, shape: [4] })
        assert.deepStrictEqual(shorter[0]!.dst.shape, [4])
        const later = yield* move({ ...from, shape: [4], byteOffset: 1 }, { ...to, shape: [4] })
        assert.strictEqual(later[0]!.src.byteOffset, 1)
        const typed = yield* move({ ...from, dtype: "int8" }, { ...to, dtype: "int8" })
        assert.strictEqual(typed[0]!.dst.dtype, "int8")
        const elsewhere = yield* move(from, other)
        assert.strictEqual(elsewhere[0]!.dst.storage, other.storage)
      })
    )
  })

  it.effect("to the very same place are left out", () => {
    const calls: Array<EngineCalls> = []
    return runCluster({ size: 1, engine: countingEngine(calls) }, () =>
      Effect.gen(function* () {
        const service = yield* CopyService
        const engine = yield* TensorEngine
        const tensor = yield* engine.allocate("uint8", [6])
        yield* service.submitSend(tensor, 0, 1)
        yield* service.submitRecv({ ...tensor }, 0, 1)
        const report = yield* service.run()
        assert.deepStrictEqual([report.localOps, report.localBytes], [1, 6])
        assert.deepStrictEqual(calls[0]!.batches, [])
      })
    )
  })
})
