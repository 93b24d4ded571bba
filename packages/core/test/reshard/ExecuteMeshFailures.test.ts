// SPDX-License-Identifier: Apache-2.0
/**
 * Ranks that cannot take part in an update between meshes, fail in the middle of it or leave it: a typed error on every
 * rank, never a wait without end, and the next update works.
 */

import { assert, describe, it } from "@effect/vitest"
import { delayedLayer, makeDelays } from "@tensorferry/testing/DelayedEngine"
import { loopbackLayer, makeLoopbackNetwork } from "@tensorferry/testing/Loopback"
import { poisonByte } from "@tensorferry/testing/planning/meshOracle"
import {
  dictOf,
  judge,
  outcomeOf,
  plansOf,
  type Shards,
  setBytes,
  shardValues,
  sidesOf,
  specsOf
} from "@tensorferry/testing/planning/meshSides"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import { isSoak } from "@tensorferry/testing/testLevel"
import { type RankServices, runCluster, runRanks } from "@tensorferry/testing/VirtualCluster"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import type { Rank } from "../../src/base/Ids.ts"
import type { MeshPlan } from "../../src/ir/MeshPlan.ts"
import { meshOps } from "../../src/planner/MeshOps.ts"
import { type ExecuteOptions, executeReshardPlan, type ReshardReport } from "../../src/reshard/executeReshardPlan.ts"
import type { UpdateFailure } from "../../src/reshard/PlanRuns.ts"
import { TensorEngine, type TensorEngineShape, tensorError } from "../../src/service/TensorEngine.ts"
import type { Tensor } from "../../src/tensor/Tensor.ts"

/** Contributions, reductions, casts at both ends and several waves, on ranks that are in both meshes or in one. */
const specs = [
  ...specsOf("2x2:P(sum),S0", "3@1:R", [
    { shape: [8, 3], from: "float32", to: "bfloat16" },
    { shape: [7, 2], from: "float32" }
  ]),
  ...specsOf("3:S0", "2x2:R,S1", [{ shape: [9, 4], from: "bfloat16", to: "float32" }]).map((spec) => ({
    ...spec,
    name: "head.weight"
  }))
]
const plans = plansOf(specs, 40)
const outcome = outcomeOf(plans)
const settings = { waveBytes: 40 }

interface Memory {
  readonly sources: Shards
  readonly targets: Shards
}

const memoryOf = (plan: MeshPlan) =>
  Effect.tap(sidesOf(plan), ({ sources, targets }) =>
    Effect.sync(() => {
      setBytes(sources, (at) => shardValues(plan, at, 0).bytes)
      setBytes(targets, () => poisonByte)
    })
  )

const update = (rank: Rank, { sources, targets }: Memory, options: ExecuteOptions = settings, plan = plans[rank]!) =>
  executeReshardPlan(plan, dictOf(plans[rank]!, sources), dictOf(plans[rank]!, targets), options)

/** The update that must work after what failed. */
const works = (rank: Rank, memory: Memory) =>
  Effect.gen(function* () {
    setBytes(memory.targets, () => poisonByte)
    yield* update(rank, memory)
    assert.strictEqual(judge(outcome, rank, memory.targets), undefined)
  })

type Attempt = (rank: Rank, memory: Memory) => Effect.Effect<ReshardReport, UpdateFailure, RankServices>

/** One attempt that fails on every rank and one update that works; each rank's error. */
const failing = (attempt: Attempt, options: { readonly gather?: boolean } = {}) =>
  Effect.suspend(() => {
    const network = makeLoopbackNetwork()
    return runCluster({ size: plans.length, driver: () => loopbackLayer(network, options) }, (rank) =>
      Effect.gen(function* () {
        const memory = yield* memoryOf(plans[rank]!)
        const error = yield* Effect.flip(attempt(rank, memory))
        yield* works(rank, memory)
        return error
      })
    )
  })

const at =
  (rank: Rank, wrong: MeshPlan): Attempt =>
  (own, memory) =>
    update(own, memory, settings, own === rank ? wrong : plans[own]!)

describe("plans that do not fit", () => {
  it.live("another rank's plan, and plans that were changed", () =>
    Effect.gen(function* () {
      const own = plans[1]!
      const [first, ...buckets] = own.buckets
      const withChunk = (change: object): MeshPlan => {
        const [entry, ...entries] = first!.entries
        const changed = { ...entry!, chunk: { ...entry!.chunk, ...change } }
        return { ...own, buckets: [{ ...first!, entries: [changed, ...entries] }, ...buckets] }
      }
      const changes: ReadonlyArray<MeshPlan> = [
        plans[2]!,
        { ...own, buckets },
        { ...own, localChunks: own.localChunks.slice(1) },
        withChunk({ transferDtype: "float64" }),
        withChunk({ srcSliceTuples: [[0, 1000]] }),
        withChunk({ tensor: 99 })
      ]
      for (const [which, wrong] of changes.entries()) {
        const errors = yield* failing(at(1, wrong))
        for (const [rank, error] of errors.entries()) {
          const expected = rank === 1 ? "InvalidPlan" : "TransferFailed"
          assert.strictEqual(error.reason._tag, expected, `change ${which}: ${error.message}`)
          assert.strictEqual(error.reason.rank, 1)
        }
      }
    })
  )

  it.live("a rank with another plan is named, with the tensor, before a byte moves", () =>
    Effect.gen(function* () {
      const others = (change: (name: string) => object) =>
        plansOf(
          specs.map((spec) => ({ ...spec, ...change(spec.name) })),
          40
        )
      const wider = others((name) => (name === "head.weight" ? { sourceDtype: "float16" } : {}))
      const renamed = others((name) => (name === "layers.1.weight" ? { name: "other" } : {}))
      const coarser = plansOf(specs, 80)
      for (const [plansOfOne, named] of [
        [renamed, "other"],
        [coarser, "buckets of different sizes"],
        [plansOf(specs.slice(0, 2), 40), "head.weight"]
      ] as const) {
        const seen: Array<Uint8Array> = []
        const errors = yield* failing((rank, memory) =>
          Effect.gen(function* () {
            const plan = rank === 2 ? plansOfOne[2]! : plans[rank]!
            const tensors = (shards: Shards) => ({
              ...dictOf(plans[rank]!, shards),
              aliases: new Map([["other", "layers.1.weight"]])
            })
            const run = executeReshardPlan(plan, tensors(memory.sources), tensors(memory.targets), settings)
            return yield* Effect.onError(run, () =>
              Effect.sync(() => {
                for (const target of memory.targets) if (target !== null) seen.push(target.storage.bytes!.slice())
              })
            )
          })
        )
        for (const error of errors) {
          assert.deepStrictEqual([error._tag, error.reason._tag, error.reason.rank], ["CopyError", "Mismatch", 2])
          assert.include(error.message, named)
        }
        assert.isTrue(seen.every((bytes) => bytes.every((byte) => byte === poisonByte)))
      }
      assert.notStrictEqual(wider[0]!.sharedDigest, plans[0]!.sharedDigest)
    })
  )

  it.live("settings that differ, and settings that cannot be", () =>
    Effect.gen(function* () {
      const reasons = (errors: ReadonlyArray<{ readonly reason: { readonly _tag: string; readonly rank?: number } }>) =>
        errors.map(({ reason }) => `${reason._tag} ${reason.rank}`)
      const differ = yield* failing((rank, memory) => update(rank, memory, { waveBytes: rank === 3 ? 80 : 40 }))
      assert.deepStrictEqual(reasons(differ), ["Mismatch 3", "Mismatch 3", "Mismatch 3", "Mismatch 3"])
      for (const waveBytes of [0, 1.5, -1]) {
        const errors = yield* failing((rank, memory) => update(rank, memory, rank === 0 ? { waveBytes } : settings))
        assert.deepStrictEqual(reasons(errors), [
          "InvalidPlan 0",
          "TransferFailed 0",
          "TransferFailed 0",
          "TransferFailed 0"
        ])
      }
    })
  )
})

describe("plans that would be cut without end", () => {
  it.live("are refused, whatever a file states", () =>
    Effect.gen(function* () {
      const lowered = plans.map(meshOps)
      for (const wrong of [{ reductionBytes: Number.MAX_SAFE_INTEGER }, { reductionBytes: 2 ** 40, waveBytes: 1 }]) {
        const errors = yield* failing((rank, memory) =>
          executeReshardPlan(
            rank === 1 ? { ...lowered[1]!, ...wrong } : lowered[rank]!,
            dictOf(plans[rank]!, memory.sources),
            dictOf(plans[rank]!, memory.targets)
          )
        )
        assert.deepStrictEqual(
          errors.map(({ reason }) => `${reason._tag} ${reason.rank}`),
          [0, 1, 2, 3].map((rank) => (rank === 1 ? "InvalidPlan 1" : "TransferFailed 1"))
        )
      }
    })
  )
})

describe("tensors that do not fit", () => {
  const freed = (tensor: Tensor) =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const engine = yield* TensorEngine
      const gone = yield* Scope.provide(Effect.orDie(engine.allocate(tensor.dtype, tensor.shape)), scope)
      yield* Scope.close(scope, Exit.void)
      return gone
    })
  const other = (dtype: Tensor["dtype"], shape: (tensor: Tensor) => ReadonlyArray<number>) => (tensor: Tensor) =>
    Effect.orDie(TensorEngine.use((engine) => engine.allocate(dtype, shape(tensor))))
  const changes = [
    ["a missing tensor", "TensorMissing", () => Effect.succeed(null)],
    ["freed storage", "TensorMissing", freed],
    ["another type", "TensorMismatch", other("int32", ({ shape }) => shape)],
    ["another shape", "TensorMismatch", other("float32", ({ shape }) => [...shape, 1])]
  ] as const
  for (const side of ["sources", "targets"] as const) {
    for (const [what, tag, change] of changes) {
      it.live(`${what} among the ${side}`, () =>
        Effect.gen(function* () {
          const errors = yield* failing((rank, memory) =>
            Effect.gen(function* () {
              if (rank !== 1) return yield* update(rank, memory)
              const [first, ...rest] = memory[side]
              return yield* update(rank, { ...memory, [side]: [yield* change(first!), ...rest] })
            })
          )
          for (const [rank, error] of errors.entries()) {
            assert.strictEqual(error.reason._tag, rank === 1 ? tag : "TransferFailed")
            assert.strictEqual(error.reason.rank, 1)
            assert.include(error.message, "layers.0.weight")
          }
        })
      )
    }
  }
})

describe("failures in the middle", () => {
  /** An engine that fails at its n-th call. */
  const failingAt = (engine: TensorEngineShape, step: number, calls: { count: number }): TensorEngineShape => {
    const call = <A, R>(op: string, work: Effect.Effect<A, ReturnType<typeof tensorError>, R>) =>
      Effect.suspend(() =>
        calls.count++ === step
          ? Effect.fail(tensorError("DeviceFailure", { op, detail: `Step ${step} failed.`, remedy: "None." }))
          : work
      )
    return {
      ...engine,
      allocate: (...request) => call("allocate", engine.allocate(...request)),
      copy: (moves) => call("copy", engine.copy(moves)),
      reduce: (...request) => call("reduce", engine.reduce(...request))
    }
  }
  for (const gather of [true, false]) {
    it.live(`the engine of a rank fails at any of its steps, ${gather ? "gather" : "packed"}`, () =>
      Effect.gen(function* () {
        for (const wrong of isSoak ? [0, 1, 2, 3] : [1]) {
          for (let step = 0, isOver = false; !isOver; step++) {
            const calls = { count: 0 }
            const network = makeLoopbackNetwork()
            const cluster = { size: plans.length, driver: () => loopbackLayer(network, { gather }) }
            const results = yield* runCluster(cluster, (rank) =>
              Effect.gen(function* () {
                const memory = yield* memoryOf(plans[rank]!)
                const engine = yield* TensorEngine
                const attempt = update(rank, memory).pipe(
                  Effect.provideService(TensorEngine, rank === wrong ? failingAt(engine, step, calls) : engine),
                  Effect.result
                )
                const result = yield* attempt
                yield* works(rank, memory)
                return result
              })
            )
            isOver = calls.count <= step
            for (const result of results) {
              assert.strictEqual(result._tag, isOver ? "Success" : "Failure", `step ${step}`)
              if (result._tag === "Failure") {
                assert.strictEqual(result.failure.reason.rank, wrong, result.failure.message)
                assert.include(result.failure.message, `Step ${step} failed`)
              }
            }
            assert.isBelow(step, 200)
            if (isOver) assert.isAtLeast(step, 2)
          }
        }
      })
    )
  }

  const assertTold = (error: UpdateFailure, rank: Rank) => {
    assert.deepStrictEqual([error.reason._tag, error.reason.rank], ["TransferFailed", rank], error.message)
    assert.include(error.message, "interrupted")
  }

  /** Rank 1 is interrupted at a point that it tells of, and all others hear of it. */
  const interrupted = (
    stall: (
      reached: Deferred.Deferred<void>,
      attempt: ReturnType<typeof update>
    ) => Effect.Effect<ReshardReport, UpdateFailure, RankServices>
  ) =>
    runCluster({ size: plans.length, groupDeadline: Duration.seconds(20) }, (rank) =>
      Effect.gen(function* () {
        const memory = yield* memoryOf(plans[rank]!)
        if (rank === 1) {
          const reached = yield* Deferred.make<void>()
          const fiber = yield* Effect.forkChild(stall(reached, update(rank, memory)))
          yield* Deferred.await(reached)
          yield* Fiber.interrupt(fiber)
        } else assertTold(yield* Effect.flip(update(rank, memory)), 1)
        yield* works(rank, memory)
      })
    )
  const hang = (reached: Deferred.Deferred<void>) => Effect.andThen(Deferred.succeed(reached, undefined), Effect.never)

  it.live("a rank is interrupted in the middle of a wave", () =>
    Effect.gen(function* () {
      const plain = plansOf(specsOf("2:S0", "2@2:S1", [{ shape: [8, 8] }]))
      const wanted = outcomeOf(plain)
      const delays = makeDelays(5)
      const engine = delayedLayer(() => ReferenceEngine.make(), delays)
      yield* runCluster({ size: plain.length, engine, groupDeadline: Duration.seconds(20) }, (rank) =>
        Effect.gen(function* () {
          const { sources, targets } = yield* memoryOf(plain[rank]!)
          const run = executeReshardPlan(plain[rank]!, dictOf(plain[rank]!, sources), dictOf(plain[rank]!, targets))
          if (rank === 2) {
            const fiber = yield* Effect.forkChild(run)
            // Each receiver has a message of each sender to copy.
            while (delays.waiting() < 4) yield* Effect.yieldNow
            yield* Fiber.interrupt(fiber)
            yield* Effect.forkScoped(delays.releaseAlways)
          } else assertTold(yield* Effect.flip(run), 2)
          yield* run
          assert.strictEqual(judge(wanted, rank, targets), undefined)
        })
      )
    })
  )

  for (const step of [0, 1, 2, 3]) {
    it.live(`a rank is interrupted between two waves, while it works on step ${step}`, () =>
      interrupted((reached, attempt) =>
        Effect.flatMap(TensorEngine, (engine) => {
          let calls = 0
          const call: <A, E>(work: Effect.Effect<A, E>) => Effect.Effect<A, E> = (work) =>
            Effect.suspend(() => (calls++ >= step ? hang(reached) : work))
          return Effect.provideService(attempt, TensorEngine, {
            ...engine,
            copy: (moves) => call(engine.copy(moves)),
            reduce: (...request) => call(engine.reduce(...request))
          })
        })
      )
    )
  }

  it.live("a rank that left fails the others with its name", () =>
    Effect.gen(function* () {
      const exits = yield* runRanks({ size: plans.length, groupDeadline: Duration.seconds(20) }, (rank) =>
        Effect.gen(function* () {
          const memory = yield* memoryOf(plans[rank]!)
          if (rank === 2) return yield* Effect.fail("gone" as const)
          return yield* Effect.flip(update(rank, memory))
        })
      )
      for (const [rank, exit] of exits.entries()) {
        if (rank === 2) continue
        assert.isTrue(Exit.isSuccess(exit))
        if (Exit.isSuccess(exit))
          assert.deepStrictEqual([exit.value.reason._tag, exit.value.reason.peer], ["PeerGone", 2])
      }
    })
  )
})
