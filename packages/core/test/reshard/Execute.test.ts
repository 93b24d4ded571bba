// SPDX-License-Identifier: Apache-2.0
/**
 * `executeReshardPlan`: who takes part, casts, aliases, hooks, transforms, and tensors that do not fit their plan.
 */
import { assert, describe, it } from "@effect/vitest"
import { describeFault, judgeSide, oracleModel, runOracle } from "@tensorferry/testing/planning/oracle"
import { runCluster, runRanks } from "@tensorferry/testing/VirtualCluster"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { CopyService } from "../../src/service/CopyService.ts"
import { TensorEngine, tensorError } from "../../src/service/TensorEngine.ts"
import type { Tensor } from "../../src/tensor/Tensor.ts"
import { tensorBytes } from "../../src/tensor/Tensor.ts"
import { tensorDict } from "../../src/tensor/TensorDict.ts"
import { cast } from "../../src/transform/Cast.ts"
import { identity } from "../../src/transform/Identity.ts"
import { plainRegion, type ReshardTransform, transformError } from "../../src/transform/ReshardTransform.ts"
import { layoutOf, plansOf, rosterOf, sidesOf } from "./executeSupport.ts"

const clean = (faults: Effect.Success<ReturnType<typeof runOracle>>) =>
  assert.deepStrictEqual(faults.map(describeFault), [])

describe("roles", () => {
  it.live("collocated, disjoint and overlapping ranks", () =>
    Effect.gen(function* () {
      clean(yield* runOracle(rosterOf(2), rosterOf(3)))
      clean(yield* runOracle(rosterOf(3, { pp: 2 }), rosterOf(2, { firstRank: 6 })))
      clean(yield* runOracle(rosterOf(4), rosterOf(4, { firstRank: 2 })))
      clean(yield* runOracle(rosterOf(1), rosterOf(1)))
      clean(yield* runOracle(rosterOf(8), rosterOf(1, { dp: 3 })))
    })
  )

  it.live("idle ranks report nothing and all others are served", () =>
    Effect.gen(function* () {
      const model = oracleModel(rosterOf(2), rosterOf(1, { firstRank: 3 }))
      const plans = plansOf(model.source, model.destination, 5)
      const reports = yield* runCluster({ size: 5 }, (rank) =>
        Effect.gen(function* () {
          const { source, destination } = yield* sidesOf(model, rank)
          const report = yield* executeReshardPlan(plans[rank]!, source?.dict, destination?.dict)
          if (destination !== undefined) clean(yield* judgeSide(model, destination, rank))
          return report
        })
      )
      for (const idle of [2, 4]) {
        assert.strictEqual(reports[idle]!.copy.remoteOps, 0)
        assert.deepStrictEqual(reports[idle]!.writebacks, { direct: 0, copy: 0, transform: 0 })
      }
      assert.isAbove(reports[3]!.writebacks.direct, 0)
      assert.strictEqual(reports[0]!.copy.remoteBytesReceived, 0)
    })
  )
})

describe("element types", () => {
  const column = (dtype: "float32" | "bfloat16", firstRank: number) =>
    rosterOf(1, {
      firstRank,
      tensors: [{ name: "w", dtype, shape: [5] }],
      rules: { rules: [{ match: "w", shard: "replicate" }] }
    })

  /** One tensor from rank 0 to rank 1: the bytes that arrive, and both reports. */
  const send = (from: "float32" | "bfloat16", to: "float32" | "bfloat16", bytes: Uint8Array) =>
    Effect.gen(function* () {
      const plans = plansOf(column(from, 0), column(to, 1), 2)
      return yield* runCluster({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const engine = yield* TensorEngine
          const tensor = yield* engine.allocate(rank === 0 ? from : to, [5])
          if (rank === 0) tensorBytes(tensor)!.set(bytes)
          const dict = tensorDict([["w", tensor]])
          const report = yield* rank === 0
            ? executeReshardPlan(plans[0]!, dict)
            : executeReshardPlan(plans[1]!, undefined, dict)
          return { report, bytes: tensorBytes(tensor)!.slice() }
        })
      )
    })

  it.live("float32 to bfloat16 travels narrow and rounds once, ties to even", () =>
    Effect.gen(function* () {
      const words = [0x3f800000, 0x3f808000, 0x3f818000, 0x7f7fffff, 0x80000001]
      const [source, destination] = yield* send("float32", "bfloat16", new Uint8Array(Uint32Array.from(words).buffer))
      assert.deepStrictEqual([...new Uint16Array(destination!.bytes.buffer)], [0x3f80, 0x3f80, 0x3f82, 0x7f80, 0x8000])
      assert.strictEqual(source!.report.copy.remoteBytesSent, 10)
      assert.deepStrictEqual(destination!.report.writebacks, { direct: 1, copy: 0, transform: 0 })
    })
  )

  it.live("bfloat16 to float32 travels narrow and is widened at the destination", () =>
    Effect.gen(function* () {
      const halves = [0x3f80, 0xbf81, 0x0001, 0x7f80, 0x4049]
      const [source, destination] = yield* send("bfloat16", "float32", new Uint8Array(Uint16Array.from(halves).buffer))
      assert.deepStrictEqual(
        [...new Uint32Array(destination!.bytes.buffer)],
        halves.map((half) => half * 65_536)
      )
      assert.strictEqual(source!.report.copy.remoteBytesSent, 10)
      assert.deepStrictEqual(destination!.report.writebacks, { direct: 0, copy: 1, transform: 0 })
    })
  )

  it.live("equal types move as bits", () =>
    Effect.gen(function* () {
      const words = [0x7f800001, 0xffc12345, 0, 1, 0x80000000]
      const bytes = new Uint8Array(Uint32Array.from(words).buffer)
      const [, destination] = yield* send("float32", "float32", bytes)
      assert.deepStrictEqual(destination!.bytes, bytes)
    })
  )

  it.live("casts between any layouts, collocated too", () =>
    Effect.gen(function* () {
      clean(yield* runOracle(rosterOf(2), rosterOf(3, { dtype: "bfloat16" })))
      clean(yield* runOracle(rosterOf(3, { dtype: "bfloat16" }), rosterOf(2)))
      clean(yield* runOracle(rosterOf(2, { dtype: "float16" }), rosterOf(3, { dtype: "bfloat16", firstRank: 1 })))
      clean(yield* runOracle(rosterOf(2, { dtype: "int32" }), rosterOf(2, { dtype: "int8" })))
    })
  )
})

describe("interruption", () => {
  it.live("an update that is interrupted while it casts leaves nothing in the queue", () =>
    Effect.gen(function* () {
      const column = (dtype: "float32" | "bfloat16") =>
        rosterOf(1, {
          tensors: [
            { name: "cast", dtype, shape: [5] },
            { name: "plain", dtype: "float32", shape: [5] }
          ],
          rules: { rules: [{ match: "*", shard: "replicate" }] }
        })
      const [plan] = plansOf(column("float32"), column("bfloat16"), 1)
      yield* runCluster({ size: 1 }, () =>
        Effect.gen(function* () {
          const engine = yield* TensorEngine
          const make = (dtype: "float32" | "bfloat16") =>
            Effect.gen(function* () {
              const first = yield* engine.allocate(dtype, [5])
              const second = yield* engine.allocate("float32", [5])
              return tensorDict([
                ["cast", first],
                ["plain", second]
              ])
            })
          const [source, destination] = [yield* make("float32"), yield* make("bfloat16")]
          const started = yield* Deferred.make<void>()
          const stuck = { ...engine, copy: () => Effect.andThen(Deferred.succeed(started, undefined), Effect.never) }
          const update = executeReshardPlan(plan!, source, destination)
          const fiber = yield* Effect.forkChild(Effect.provideService(update, TensorEngine, stuck))
          yield* Deferred.await(started)
          yield* Fiber.interrupt(fiber)
          const report = yield* update
          assert.strictEqual(report.copy.localOps, 2)
        })
      )
    })
  )
})

describe("aliases", () => {
  const tied = (tp: number, firstRank = 0) =>
    rosterOf(tp, {
      firstRank,
      tensors: [{ name: "embed.weight", dtype: "float32", shape: [10, 3] }],
      rules: {
        rules: [
          { match: "embed.weight", shard: 0 },
          { match: "head.weight", shard: 0, stage: "last" }
        ],
        aliases: [{ name: "head.weight", of: "embed.weight" }]
      }
    })

  it.live("a tied tensor is moved once and seen under both names", () =>
    Effect.gen(function* () {
      const [source, destination] = [tied(2), tied(3, 2)]
      clean(yield* runOracle(source, destination))
      const plans = plansOf(source, destination, 5)
      assert.isTrue(plans.every((plan) => plan.recvOps.every((op) => op.paramName === "embed.weight")))
      assert.deepStrictEqual(plans[2]!.aliases, [["head.weight", "embed.weight"]])
    })
  )

  it.live("two memories under one alias are refused on every rank", () =>
    Effect.gen(function* () {
      const model = oracleModel(tied(2), tied(2))
      const plans = plansOf(model.source, model.destination, 2)
      const exits = yield* runRanks({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const { source, destination } = yield* sidesOf(model, rank)
          const engine = yield* TensorEngine
          const clone = yield* engine.allocate("float32", [5, 3])
          const tensors = [...destination!.dict.tensors].map(
            ([name, tensor]) => [name, rank === 1 && name === "head.weight" ? clone : tensor] as const
          )
          return yield* Effect.flip(executeReshardPlan(plans[rank]!, source!.dict, tensorDict(tensors)))
        })
      )
      const errors = exits.map((exit) => (Exit.isSuccess(exit) ? exit.value : undefined))
      assert.deepStrictEqual(
        errors.map((error) => [error?._tag, error?.reason._tag]),
        [
          ["CopyError", "TransferFailed"],
          ["ReshardError", "AliasMismatch"]
        ]
      )
      for (const error of errors) assert.include(error!.message, "head.weight")
    })
  )
})

describe("refresh hooks", () => {
  it.live("run once after the last byte, and not after a failure", () =>
    Effect.gen(function* () {
      const model = oracleModel(rosterOf(2), rosterOf(2))
      const plans = plansOf(model.source, model.destination, 2)
      const outcomes = yield* runCluster({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const { source, destination } = yield* sidesOf(model, rank)
          const seen: Array<boolean> = []
          const context = yield* Effect.context<TensorEngine>()
          const hook = judgeSide(model, destination!, rank).pipe(
            Effect.orDie,
            Effect.flatMap((faults) => Effect.sync(() => void seen.push(faults.length === 0))),
            Effect.provideContext(context)
          )
          const fresh = { ...destination!.dict, refreshCaches: [hook] }
          const failing = rank === 0 ? { ...plans[0]!, rank: 1 } : plans[1]!
          yield* Effect.flip(executeReshardPlan(failing, source!.dict, fresh))
          const afterFailure = seen.length
          yield* executeReshardPlan(plans[rank]!, source!.dict, fresh)
          return { afterFailure, seen }
        })
      )
      for (const outcome of outcomes) assert.deepStrictEqual(outcome, { afterFailure: 0, seen: [true] })
    })
  )
})

describe("writebacks", () => {
  it.live("that fail on one rank fail the update on all, naming rank and parameter; the next update works", () =>
    Effect.gen(function* () {
      const model = oracleModel(rosterOf(2), rosterOf(3))
      const plans = plansOf(model.source, model.destination, 3)
      const outcomes = yield* runCluster({ size: 3 }, (rank) =>
        Effect.gen(function* () {
          const { source, destination } = yield* sidesOf(model, rank)
          let refreshed = 0
          const hook = Effect.sync(() => {
            refreshed += 1
          })
          const dict = { ...destination!.dict, refreshCaches: [hook] }
          const transform: ReshardTransform = {
            ...identity,
            finalizeRecv: (op) =>
              rank === 1 && op.paramName === "norm.weight"
                ? Effect.fail(
                    transformError("UnsupportedTensor", {
                      paramName: op.paramName,
                      detail: "It cannot be finished.",
                      remedy: "Choose another transform."
                    })
                  )
                : Effect.void
          }
          const error = yield* Effect.flip(executeReshardPlan(plans[rank]!, source?.dict, dict, { transform }))
          const afterFailure = refreshed
          yield* executeReshardPlan(plans[rank]!, source?.dict, dict)
          return { error, afterFailure, refreshed, faults: yield* judgeSide(model, destination!, rank) }
        })
      )
      for (const [rank, { error, afterFailure, refreshed, faults }] of outcomes.entries()) {
        assert.strictEqual(error._tag, rank === 1 ? "ReshardError" : "CopyError")
        assert.strictEqual(error.reason.rank, 1)
        assert.strictEqual(error.reason.paramName, "norm.weight")
        assert.deepStrictEqual([afterFailure, refreshed], [0, 1])
        assert.deepStrictEqual(faults.map(describeFault), [])
      }
    })
  )
})

describe("tensors that do not fit their plan", () => {
  type Change = (name: string, tensor: Tensor) => Effect.Effect<Tensor | undefined, never, TensorEngine | Scope.Scope>
  const changes: ReadonlyArray<readonly [string, string, Change]> = [
    ["a missing tensor", "TensorMissing", () => Effect.as(Effect.void, undefined)],
    [
      "another shape",
      "TensorMismatch",
      () => Effect.orDie(TensorEngine.use((engine) => engine.allocate("float32", [1, 5])))
    ],
    [
      "another element type",
      "TensorMismatch",
      (_, tensor) => Effect.orDie(TensorEngine.use((engine) => engine.allocate("int32", tensor.shape)))
    ],
    [
      "freed storage",
      "TensorMissing",
      (_, tensor) =>
        Effect.gen(function* () {
          const scope = yield* Scope.make()
          const engine = yield* TensorEngine
          const freed = yield* Scope.provide(Effect.orDie(engine.allocate(tensor.dtype, tensor.shape)), scope)
          yield* Scope.close(scope, Exit.void)
          return freed
        })
    ]
  ]
  for (const side of ["source", "destination"] as const) {
    for (const [what, reason, change] of changes) {
      it.live(`${what} in the ${side} fails on every rank, and the next update works`, () =>
        Effect.gen(function* () {
          const model = oracleModel(rosterOf(2), rosterOf(3))
          const plans = plansOf(model.source, model.destination, 3)
          yield* runCluster({ size: 3 }, (rank) =>
            Effect.gen(function* () {
              const sides = yield* sidesOf(model, rank)
              const spoilt: Array<readonly [string, Tensor]> = []
              for (const [name, tensor] of sides[side]?.dict.tensors ?? []) {
                const plain = tensor as Tensor
                const given = rank === 1 && name === "layers.0.up.weight" ? yield* change(name, plain) : plain
                if (given !== undefined) spoilt.push([name, given])
              }
              const dicts = { source: sides.source?.dict, destination: sides.destination?.dict }
              const wrong = { ...dicts, ...(sides[side] === undefined ? {} : { [side]: tensorDict(spoilt) }) }
              const error = yield* Effect.flip(executeReshardPlan(plans[rank]!, wrong.source, wrong.destination))
              assert.strictEqual(error.reason._tag, rank === 1 ? reason : "TransferFailed")
              assert.strictEqual(error.reason.rank, 1)
              assert.include(error.message, "layers.0.up.weight")
              yield* executeReshardPlan(plans[rank]!, dicts.source, dicts.destination)
              clean(yield* judgeSide(model, sides.destination!, rank))
            })
          )
        })
      )
    }
  }

  it.live("another rank's plan, a damaged plan and a failed fence fail on every rank", () =>
    Effect.gen(function* () {
      const model = oracleModel(rosterOf(2), rosterOf(2))
      const plans = plansOf(model.source, model.destination, 2)
      yield* runCluster({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const { source, destination } = yield* sidesOf(model, rank)
          const own = plans[rank]!
          const attempts = [
            executeReshardPlan(rank === 0 ? plans[1]! : own, source!.dict, destination!.dict),
            executeReshardPlan(
              rank === 0 ? { ...own, recvOps: own.recvOps.slice(1) } : own,
              source!.dict,
              destination!.dict
            ),
            executeReshardPlan(own, source!.dict, destination!.dict, {
              after:
                rank === 0
                  ? [{ await: Effect.fail(tensorError("DeviceFailure", { detail: "The kernel failed.", remedy: "" })) }]
                  : []
            })
          ]
          const reasons: Array<string> = []
          for (const attempt of attempts) reasons.push((yield* Effect.flip(attempt)).reason._tag)
          assert.deepStrictEqual(
            reasons,
            rank === 0
              ? ["InvalidPlan", "InvalidPlan", "WritebackFailed"]
              : ["TransferFailed", "TransferFailed", "TransferFailed"]
          )
          yield* executeReshardPlan(own, source!.dict, destination!.dict)
          clean(yield* judgeSide(model, destination!, rank))
        })
      )
    })
  )
})

describe("transforms", () => {
  const updateWith = (transform: ReshardTransform, model = oracleModel(rosterOf(2), rosterOf(3, { firstRank: 1 }))) =>
    Effect.gen(function* () {
      const plans = plansOf(model.source, model.destination, 4)
      return yield* runCluster({ size: 4 }, (rank) =>
        Effect.gen(function* () {
          const { source, destination } = yield* sidesOf(model, rank)
          const report = yield* executeReshardPlan(plans[rank]!, source?.dict, destination?.dict, { transform })
          if (destination !== undefined) clean(yield* judgeSide(model, destination, rank))
          return report
        })
      )
    })

  it.live("identity moves what no transform would, remote and collocated", () =>
    Effect.gen(function* () {
      const reports = yield* updateWith(identity)
      assert.isAbove(reports[1]!.writebacks.transform, 0)
      assert.strictEqual(reports[1]!.writebacks.direct, 0)
      assert.isAbove(reports[1]!.copy.localOps, 0)
    })
  )

  it.live("cast sends the chosen parameters in another type", () =>
    Effect.gen(function* () {
      // The values of this model are whole numbers below 113, which every type here holds exactly.
      const narrow = oracleModel(rosterOf(2, { dtype: "bfloat16" }), rosterOf(3, { dtype: "float16", firstRank: 1 }))
      const wide = yield* updateWith(cast({ wireDtype: "float32" }), narrow)
      const chosen = yield* updateWith(cast({ wireDtype: "float32", parameters: ["norm.*"] }), narrow)
      const plain = yield* updateWith(cast({ wireDtype: "float32", parameters: [] }), narrow)
      const sent = (reports: typeof wide) => reports.reduce((sum, report) => sum + report.copy.remoteBytesSent, 0)
      assert.isAbove(sent(wide), sent(chosen))
      assert.strictEqual(sent(wide), 2 * sent(plain))
      assert.isAbove(chosen[1]!.writebacks.transform, 0)
      assert.isAbove(chosen[1]!.writebacks.copy, 0)
    })
  )

  it.live("two tensors of one task keep apart, remote and within a rank", () =>
    Effect.gen(function* () {
      const halves = (copyTo: "send" | "recv"): ReshardTransform["prepareSend"] =>
        Effect.fnUntraced(function* (op) {
          const engine = yield* TensorEngine
          const view = yield* plainRegion(op)
          const bytes = Effect.orDie(engine.allocate(view.dtype, view.shape))
          const [low, high] = yield* Effect.all([bytes, bytes])
          if (copyTo === "send") {
            yield* Effect.orDie(engine.copy([{ dst: low, src: view }]))
            yield* Effect.orDie(engine.fill(high, 0x3f))
          }
          return [low, high]
        })
      const split: ReshardTransform = {
        name: "value and constant",
        shouldTransform: (name) => name.includes("weight"),
        prepareSend: halves("send"),
        prepareRecv: halves("recv"),
        finalizeRecv: Effect.fnUntraced(function* (op, [low, high]) {
          const engine = yield* TensorEngine
          assert.isTrue(tensorBytes(high!)!.every((byte) => byte === 0x3f))
          const dst = yield* plainRegion(op)
          yield* Effect.orDie(engine.copy([{ dst, src: low! }]))
        })
      }
      const reports = yield* updateWith(split)
      assert.strictEqual(reports[1]!.copy.localOps, 2)
    })
  )
})

describe("an update with the plan and tensors of one before", () => {
  it.live("is recognised until a tensor is replaced or freed, and moves the current bytes", () =>
    Effect.gen(function* () {
      const model = oracleModel(rosterOf(2), rosterOf(3))
      const plans = plansOf(model.source, model.destination, 3)
      yield* runCluster({ size: 3 }, (rank) =>
        Effect.gen(function* () {
          const engine = yield* TensorEngine
          const { source, destination } = yield* sidesOf(model, rank)
          const update = executeReshardPlan(plans[rank]!, source?.dict, destination?.dict)
          assert.isFalse((yield* update).copy.reusedProgram)
          for (const tensor of destination!.dict.tensors.values()) yield* engine.fill(tensor as Tensor, 0xa5)
          assert.isTrue((yield* update).copy.reusedProgram)
          clean(yield* judgeSide(model, destination!, rank))

          // The dictionary holds another tensor under a name that it had before.
          const scope = yield* Scope.make()
          const held = destination!.dict.tensors as Map<string, Tensor>
          const name = "layers.0.up.weight"
          const old = held.get(name)!
          const fresh = yield* Scope.provide(engine.allocate(old.dtype, old.shape), scope)
          held.set(name, fresh)
          yield* engine.fill(fresh, 0xa5)
          yield* engine.fill(old, 0x5a)
          assert.isFalse((yield* update).copy.reusedProgram)
          const seen = yield* engine.allocate(old.dtype, old.shape)
          yield* engine.copy([{ dst: seen, src: old }])
          assert.isTrue(tensorBytes(seen)!.every((byte) => byte === 0x5a))
          yield* engine.copy([{ dst: old, src: fresh }])
          clean(yield* judgeSide(model, destination!, rank))

          yield* Scope.close(scope, Exit.void)
          const error = yield* Effect.flip(update)
          assert.strictEqual(error.reason._tag, "InvalidTensor")
          held.set(name, old)
          yield* update
          clean(yield* judgeSide(model, destination!, rank))
        })
      )
    })
  )
})

it.live("an update reports its progress and waits for the work before it", () =>
  Effect.gen(function* () {
    const model = oracleModel(rosterOf(2), layoutOf(2, { firstRank: 2 }).roster)
    const plans = plansOf(model.source, model.destination, 4)
    yield* runCluster({ size: 4 }, (rank) =>
      Effect.gen(function* () {
        const { source, destination } = yield* sidesOf(model, rank)
        const service = yield* CopyService
        assert.strictEqual(service.rank, rank)
        const seen: Array<number> = []
        const awaited: Array<true> = []
        yield* executeReshardPlan(plans[rank]!, source?.dict, destination?.dict, {
          after: [{ await: Effect.sync(() => void awaited.push(true)) }],
          onProgress: (moved, total) => Effect.sync(() => void seen.push(moved / Math.max(1, total)))
        })
        assert.deepStrictEqual(awaited, [true])
        if (destination !== undefined) assert.strictEqual(seen.at(-1), 1)
      })
    )
  })
)
