// SPDX-License-Identifier: Apache-2.0
/** Updates whose source and destination lie in the same memory: every byte as if they lay apart. */
import { assert, describe, it } from "@effect/vitest"
import { loopbackLayer, makeLoopbackNetwork } from "@tensorferry/testing/Loopback"
import { describeFault, fillSide, judgeSide, oracleModel } from "@tensorferry/testing/planning/oracle"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { byteLengthOf, type DType } from "../../src/base/DType.ts"
import { elementCount } from "../../src/base/Region.ts"
import { parameterMetadata } from "../../src/layout/ParameterMetadata.ts"
import { rosterFromParameters } from "../../src/layout/Roster.ts"
import { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"
import type { Storage } from "../../src/tensor/Storage.ts"
import { type Tensor, tensorBytes, tensorView } from "../../src/tensor/Tensor.ts"
import { tensorDict } from "../../src/tensor/TensorDict.ts"
import { cast } from "../../src/transform/Cast.ts"
import { identity } from "../../src/transform/Identity.ts"
import { countingEngine, type EngineCalls } from "../countingEngine.ts"
import { plansOf, rosterOf, sidesOf } from "./executeSupport.ts"

const view = (storage: Storage, dtype: DType, shape: ReadonlyArray<number>, byteOffset: number): Tensor =>
  Result.getOrThrow(tensorView(storage, dtype, shape, { byteOffset }))

/** Memory of `byteLength` bytes that are all different from their neighbours. */
const memory = Effect.fnUntraced(function* (byteLength: number, start: number) {
  const engine = yield* TensorEngine
  const tensor = yield* engine.allocate("uint8", [byteLength])
  tensorBytes(tensor)!.forEach((_, at, bytes) => {
    bytes[at] = (start + at * 7) & 255
  })
  return tensor
})

/** A tensor `w` of a rank. */
const holding = (ownerRank: number, dtype: DType, shape: ReadonlyArray<number>) =>
  rosterFromParameters([[ownerRank, [parameterMetadata({ name: "w", dtype, shape, ownerRank })]]])

const drivers = [
  ["gather", () => ({})],
  [
    "packed",
    () => {
      const network = makeLoopbackNetwork()
      return { driver: () => loopbackLayer(network, { gather: false }), stagingBytes: 1024 }
    }
  ]
] as const

describe("within a rank", () => {
  for (const length of [1, 2, 255, 257, 1009]) {
    for (const [from, to] of [
      [0, 1],
      [1, 0],
      [0, 127],
      [127, 0]
    ] as const) {
      it.effect(`${length} bytes from byte ${from} to byte ${to}`, () =>
        runCluster({ size: 1 }, () =>
          Effect.gen(function* () {
            const roster = holding(0, "uint8", [length])
            const [plan] = plansOf(roster, roster, 1)
            const whole = yield* memory(length + 127, 3)
            const expected = tensorBytes(whole)!.slice()
            expected.copyWithin(to, from, from + length)
            const dict = (offset: number) => tensorDict([["w", view(whole.storage, "uint8", [length], offset)]])
            const report = yield* executeReshardPlan(plan!, dict(from), dict(to))
            assert.deepStrictEqual(tensorBytes(whole), expected)
            // Regions that do not meet need no buffer.
            assert.strictEqual(report.stagedSends, Math.abs(to - from) < length ? 1 : 0)
          })
        )
      )
    }
  }

  it.effect("two storages over the same bytes", () =>
    runCluster({ size: 1 }, () =>
      Effect.gen(function* () {
        const roster = holding(0, "uint8", [9])
        const [plan] = plansOf(roster, roster, 1)
        const whole = yield* memory(12, 3)
        const expected = tensorBytes(whole)!.slice()
        expected.copyWithin(3, 0, 9)
        const twin: Storage = { ...whole.storage, generation: whole.storage.generation + 1_000_000 }
        const report = yield* executeReshardPlan(
          plan!,
          tensorDict([["w", view(whole.storage, "uint8", [9], 0)]]),
          tensorDict([["w", view(twin, "uint8", [9], 3)]])
        )
        assert.strictEqual(report.stagedSends, 1)
        assert.deepStrictEqual(tensorBytes(whole), expected)
      })
    )
  )

  it.effect("a wider type over a narrower one", () =>
    runCluster({ size: 1 }, () =>
      Effect.gen(function* () {
        const length = 101
        const [plan] = plansOf(holding(0, "bfloat16", [length]), holding(0, "float32", [length]), 1)
        const whole = yield* memory(byteLengthOf("float32", length), 1)
        const halves = new Uint16Array(tensorBytes(whole)!.slice(0, 2 * length).buffer)
        const dict = (dtype: DType) => tensorDict([["w", view(whole.storage, dtype, [length], 0)]])
        yield* executeReshardPlan(plan!, dict("bfloat16"), dict("float32"))
        assert.deepStrictEqual(
          [...new Uint32Array(tensorBytes(whole)!.slice().buffer)],
          [...halves].map((half) => half * 65_536)
        )
      })
    )
  )
})

/** Ranks 0 and 1 hold the source, ranks 1 and 2 the destination; on rank 1 both lie in one memory. */
const shifted = (forms: "dense" | "padded") => {
  const shape = [26, 5]
  const input = {
    tensors: [
      { name: "rows", dtype: "float32" as const, shape },
      { name: "columns", dtype: "float32" as const, shape: [5, 26] }
    ],
    rules: {
      rules: [
        { match: "rows", shard: 0 },
        { match: "columns", shard: 1 }
      ]
    }
  }
  return oracleModel(rosterOf(2, input), rosterOf(2, { ...input, firstRank: 1 }), [forms])
}

describe("between ranks", () => {
  for (const [name, options] of drivers) {
    for (const form of ["dense", "padded"] as const) {
      for (const transform of [undefined, identity, cast({ wireDtype: "float64" })]) {
        it.live(`${name}, ${form}, ${transform?.name ?? "no transform"}: a shard gives way to another`, () =>
          Effect.gen(function* () {
            const model = shifted(form)
            const plans = plansOf(model.source, model.destination, 3)
            const reports = yield* runCluster({ ...options(), size: 3 }, (rank) =>
              Effect.gen(function* () {
                const { source, destination } = yield* sidesOf(model, rank)
                const target = rank === 1 ? source! : destination
                if (rank === 1) yield* fillSide(model, source!)
                const report = yield* executeReshardPlan(
                  plans[rank]!,
                  source?.dict,
                  target?.dict,
                  transform === undefined ? {} : { transform }
                )
                if (destination !== undefined) {
                  const judged = { ...destination, placed: target!.placed, dict: target!.dict }
                  assert.deepStrictEqual((yield* judgeSide(model, judged, rank)).map(describeFault), [])
                }
                return report
              })
            )
            const staged = reports.map(({ stagedSends }) => stagedSends)
            assert.deepStrictEqual(staged, transform?.name.startsWith("cast") ? [0, 0, 0] : [0, 2, 0])
          })
        )
      }
    }
  }
})

it.live("what a cast overwrites at the end may still be read by others: it is copied first", () =>
  Effect.gen(function* () {
    // Rank 0 sends to rank 1, which holds both sides in one memory and sends its own shard on to rank 2.
    const shard = (dtype: DType, ranks: ReadonlyArray<number>) =>
      rosterFromParameters(
        ranks.map((rank, at) => {
          const input = { resolvedName: `w${at}`, name: "w", dtype, shape: [13], ownerRank: rank }
          return [rank, [parameterMetadata(input)]] as const
        })
      )
    const plans = plansOf(shard("bfloat16", [0, 1]), shard("float32", [1, 2]), 3)
    const reports = yield* runCluster({ size: 3 }, (rank) =>
      Effect.gen(function* () {
        const whole = yield* memory(52, rank)
        const dict = (dtype: DType) => tensorDict([["w", view(whole.storage, dtype, [13], 0)]])
        const sent = tensorBytes(whole)!.slice(0, 26)
        const report = yield* executeReshardPlan(
          plans[rank]!,
          rank < 2 ? dict("bfloat16") : undefined,
          rank > 0 ? dict("float32") : undefined
        )
        return { report, sent, held: tensorBytes(whole)!.slice() }
      })
    )
    for (const rank of [1, 2]) {
      const halves = [...new Uint16Array(reports[rank - 1]!.sent.buffer)]
      assert.deepStrictEqual(
        [...new Uint32Array(reports[rank]!.held.buffer)],
        halves.map((half) => half * 65_536)
      )
    }
    assert.deepStrictEqual(
      reports.map(({ report }) => report.stagedSends),
      [0, 1, 0]
    )
  })
)

it.live("the same layout in the same memory: nothing is copied, and the bytes stay", () =>
  Effect.gen(function* () {
    const model = oracleModel(rosterOf(2), rosterOf(2))
    const plans = plansOf(model.source, model.destination, 2)
    const calls: Array<EngineCalls> = []
    yield* runCluster({ size: 2, engine: countingEngine(calls) }, (rank) =>
      Effect.gen(function* () {
        const { source } = yield* sidesOf(model, rank)
        const before = calls[rank]!.batches.length
        const report = yield* executeReshardPlan(plans[rank]!, source!.dict, source!.dict)
        assert.strictEqual(report.stagedSends, 0)
        assert.isAbove(report.copy.localOps, 0)
        assert.strictEqual(calls[rank]!.batches.length, before)
        assert.deepStrictEqual(yield* judgeSide(model, source!, rank), [])
      })
    )
  })
)

it.effect("one source region kept in place and copied to a second tensor as well", () =>
  runCluster({ size: 1 }, () =>
    Effect.gen(function* () {
      const metadata = (name: string) =>
        parameterMetadata({ name, resolvedName: name, dtype: "uint8", shape: [7], ownerRank: 0 })
      const roster = rosterFromParameters([[0, [metadata("w"), metadata("v")]]])
      const [plan] = plansOf(roster, roster, 1)
      const whole = yield* memory(14, 5)
      const [low, high] = [view(whole.storage, "uint8", [7], 0), view(whole.storage, "uint8", [7], 7)]
      const expected = tensorBytes(whole)!.slice()
      expected.copyWithin(7, 0, 7)
      const source = tensorDict([
        ["w", low],
        ["v", low]
      ])
      const destination = tensorDict([
        ["w", low],
        ["v", high]
      ])
      const report = yield* executeReshardPlan(plan!, source, destination)
      assert.strictEqual(report.stagedSends, 0)
      assert.strictEqual(elementCount(low.shape), 7)
      assert.deepStrictEqual(tensorBytes(whole), expected)
    })
  )
)
