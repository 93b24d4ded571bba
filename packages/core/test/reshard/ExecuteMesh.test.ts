// SPDX-License-Identifier: Apache-2.0
/**
 * Mesh plans carried out by all ranks with real bytes: recorded values, generated layouts, memory that both sides share,
 * limits of memory, and ranks that cannot take part.
 */

import { assert, describe, it } from "@effect/vitest"
import { layoutOf } from "@tensorferry/golden/meshLayouts"
import type { RedistributeCase } from "@tensorferry/golden/meshTransfers"
import { readGolden } from "@tensorferry/golden/readGolden"
import { loopbackLayer, makeLoopbackNetwork, strictLayer } from "@tensorferry/testing/Loopback"
import { meshPair } from "@tensorferry/testing/planning/meshArbitraries"
import { isReducible } from "@tensorferry/testing/planning/meshLaws"
import { arrayOf, type MeshOutcome, poisonByte } from "@tensorferry/testing/planning/meshOracle"
import {
  compact,
  dictOf,
  judge,
  outcomeOf,
  pairSpecs,
  pairText,
  plansOf,
  runRounds,
  setBytes,
  shardValues,
  sidesOf,
  specsOf,
  type ValuesOf,
  worldOf
} from "@tensorferry/testing/planning/meshSides"
import { isSoak } from "@tensorferry/testing/testLevel"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Arbitrary from "effect/Arbitrary"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { canonicalJson } from "../../src/base/Digest.ts"
import { bitsOf, type DType } from "../../src/base/DType.ts"
import { elementCount, type Shape } from "../../src/base/Region.ts"
import type { SourceChoice } from "../../src/ir/M2MMap.ts"
import type { MeshPlan } from "../../src/ir/MeshPlan.ts"
import type { ReshardPlan } from "../../src/ir/ReshardPlan.ts"
import type { MeshTensorSpec } from "../../src/planner/Lowering.ts"
import { planMesh } from "../../src/planner/MeshPlanner.ts"
import { checkPlans } from "../../src/planner/PlanCheck.ts"
import { type ExecuteOptions, executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { makeUpdateMemory } from "../../src/reshard/UpdateMemory.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"
import { type Tensor, tensorView } from "../../src/tensor/Tensor.ts"
import { tensorDict } from "../../src/tensor/TensorDict.ts"
import { cast } from "../../src/transform/Cast.ts"

const times = (usual: number) => (isSoak ? usual * 5 : usual)
const timeout = isSoak ? 900_000 : 60_000
const choices: ReadonlyArray<SourceChoice> = ["balanced", "etha"]

/** Transports by name; each call makes a network of its own. */
const transports = {
  gather: () => ({}),
  packed: () => {
    const network = makeLoopbackNetwork()
    return { driver: () => loopbackLayer(network, { gather: false }), stagingBytes: 1024 }
  },
  strict: () => {
    const network = makeLoopbackNetwork()
    return { driver: () => strictLayer(network) }
  },
  "strict and packed": () => {
    const network = makeLoopbackNetwork()
    return { driver: () => strictLayer(network, { gather: false }), stagingBytes: 512 }
  }
} as const

/** All ranks through these rounds; the faults of all of them. */
const faultsOf = (
  plans: ReadonlyArray<MeshPlan>,
  outcomes: ReadonlyArray<MeshOutcome>,
  transport: keyof typeof transports,
  options: Parameters<typeof runRounds>[3] = {},
  valuesOf?: ValuesOf
) =>
  Effect.map(
    runCluster({ ...transports[transport](), size: plans.length }, (rank) =>
      runRounds(plans, outcomes, rank, options, valuesOf)
    ),
    (ranks) => ranks.flatMap(({ faults }) => faults)
  )

describe("element values recorded with PyTorch DTensor", () => {
  const { cases } = readGolden("redistribute_values") as { readonly cases: ReadonlyArray<RedistributeCase> }
  /** Numbers the ranks anew: idle ones cost time in every run. */
  const amongItsRanks = (recorded: RedistributeCase): RedistributeCase => {
    const ranks = [...new Set([...recorded.source.mesh_ranks, ...recorded.target.mesh_ranks])].sort((a, b) => a - b)
    const layout = (side: RedistributeCase["source"]) => ({
      ...side,
      mesh_ranks: side.mesh_ranks.map((rank) => ranks.indexOf(rank))
    })
    const locals = (held: RedistributeCase["source_locals"]) =>
      Object.fromEntries(Object.entries(held).map(([rank, local]) => [ranks.indexOf(Number(rank)), local]))
    return {
      ...recorded,
      source: layout(recorded.source),
      target: layout(recorded.target),
      source_locals: locals(recorded.source_locals),
      target_locals: locals(recorded.target_locals)
    }
  }
  /** Where the source is not replicated, both choices move the same. */
  const hasNoChoice = (spec: MeshTensorSpec, plans: ReadonlyArray<MeshPlan>): boolean => {
    const moves = (of: ReadonlyArray<MeshPlan>) => canonicalJson(of.map((plan) => [plan.localChunks, plan.buckets]))
    return moves(plans) === moves(plansOf([{ ...spec, map: { ...spec.map, sourceChoice: "balanced" } }]))
  }
  const chosen = ["gather", "packed", "strict"] as const
  for (const sourceChoice of choices) {
    it.live(`arrive on every rank, ${sourceChoice}`, () =>
      Effect.gen(function* () {
        for (const [at, recorded] of cases.map(amongItsRanks).entries()) {
          const { tensor_shape: shape, source_locals, target_locals } = recorded
          const map = Result.getOrThrow(
            planMesh(layoutOf(recorded.source), layoutOf(recorded.target), { sourceChoice, tensorRank: shape.length })
          )
          const spec = { name: "w", shape, sourceDtype: "int64", targetDtype: "int64", map } as const
          const plans = plansOf([spec])
          if (sourceChoice === "etha" && !isSoak && hasNoChoice(spec, plans)) continue
          const held = (locals: RedistributeCase["source_locals"], rank: number) => {
            const local = locals[rank]
            return local === undefined ? null : arrayOf("int64", local.shape, local.data.map(BigInt))
          }
          const outcome: MeshOutcome = {
            targets: new Map(plans.map(({ rank }) => [rank, [held(target_locals, rank)]])),
            faults: [],
            wireBytes: 0,
            contributedBytes: 0
          }
          const valuesOf: ValuesOf = ({ rank }) => held(source_locals, rank)!
          // Every transport has its share of the cases; all of them where time allows.
          const mine = isSoak ? chosen : [chosen[(at + choices.indexOf(sourceChoice)) % 3]!]
          for (const transport of mine) {
            const faults = yield* faultsOf(plans, [outcome], transport, {}, valuesOf)
            assert.deepStrictEqual(faults, [], `${recorded.id}, ${transport}`)
          }
        }
      })
    )
  }
})

describe("generated layouts", () => {
  for (const isPartial of [false, true]) {
    it.live(
      `${isPartial ? "contributions" : "whole values"}: the oracle's bytes in two rounds, on every transport`,
      () =>
        Effect.gen(function* () {
          const seed = "mesh execution"
          const sampled = yield* Arbitrary.sampleEffect(meshPair({ isPartial }), { count: times(60), seed })
          // Every rank hears of every other one in each run, so large jobs are for when there is time.
          const pairs = sampled.map(compact).filter((pair) => isReducible(pair) && (isSoak || worldOf(pair) <= 12))
          let moved = 0
          for (const [at, pair] of pairs.entries()) {
            const specs = pairSpecs(pair, choices[at % 2]!)
            const plans = plansOf(specs, [64, 300, 2 ** 20][at % 3])
            const outcomes = [outcomeOf(plans, 0), outcomeOf(plans, 1)]
            moved += outcomes[0]!.wireBytes
            const transport = (["gather", "packed", "strict", "strict and packed"] as const)[at % 4]!
            const options = { waveBytes: [48, 2 ** 20, 100][at % 3]! }
            const faults = yield* faultsOf(plans, outcomes, transport, options)
            assert.deepStrictEqual(faults, [], `${transport}: ${pairText(pair)}`)
          }
          assert.isAbove(moved, 1000)
        }),
      timeout
    )
  }
})

/** Reports of all ranks after one round, whose bytes must be the oracle's. */
const updated = (
  specs: ReadonlyArray<MeshTensorSpec>,
  options: ExecuteOptions & { readonly bucketBytes?: number; readonly transport?: keyof typeof transports } = {}
) =>
  Effect.gen(function* () {
    const { bucketBytes, transport = "gather", ...mesh } = options
    const plans = plansOf(specs, bucketBytes, 1)
    const outcomes = [outcomeOf(plans)]
    assert.deepStrictEqual(outcomes[0]!.faults, [])
    const ranks = yield* runCluster({ ...transports[transport](), size: plans.length }, (rank) =>
      runRounds(plans, outcomes, rank, mesh)
    )
    assert.deepStrictEqual(
      ranks.flatMap(({ faults }) => faults),
      []
    )
    return ranks.map(({ reports }) => reports[0]!)
  })

describe("element types", () => {
  for (const transport of ["gather", "packed", "strict and packed"] as const) {
    it.live(`fault 15: mixed types in one bucket, narrow on the wire and wide at the end, ${transport}`, () =>
      Effect.gen(function* () {
        const tensors = [
          { shape: [7], from: "uint8" },
          { shape: [5, 3], from: "bfloat16", to: "float32" },
          { shape: [11], from: "float32", to: "bfloat16" },
          { shape: [1], from: "bfloat16", to: "float16" },
          { shape: [13], from: "int32", to: "float32" },
          { shape: [3, 1], from: "int64" },
          { shape: [], from: "float64", to: "float32" }
        ] as const
        for (const [from, to] of [
          ["2:R", "3@2:R"],
          ["2:S0", "3@1:R"]
        ] as const) {
          const specs = specsOf(from, to, from === "2:R" ? tensors : tensors.slice(0, 6))
          const reports = yield* updated(specs, { transport })
          assert.isAbove(reports[0]!.copy.remoteBytesSent, 0)
          assert.isAbove(reports.at(-2)!.bufferBytes, 0)
          // The last rank is in neither mesh.
          assert.strictEqual(reports.at(-1)!.copy.remoteOps, 0)
        }
      })
    )
  }
})

describe("reductions", () => {
  it.live("are in the plan's order to the bit, whatever the buckets, the waves and the transport", () =>
    Effect.gen(function* () {
      // Sums that depend on their order: large values that cancel, and small ones that get lost among them.
      const valuesOf: ValuesOf = (plan, at) => {
        const { sourceShape, sourceDtype } = plan.tensors[at]!
        const large = [2 ** 25, 1, -(2 ** 25), 3][plan.rank]!
        const count = elementCount(sourceShape!)
        return arrayOf(
          sourceDtype,
          sourceShape!,
          Array.from({ length: count }, (_, element) => large + (element % 5) / 8)
        )
      }
      const tensors = [{ shape: [13, 3] }, { shape: [8, 2], from: "bfloat16", to: "float32" }] as const
      const sums = new Set<string>()
      for (const order of ["0-0,1-1,2-2,3-3", "3-3,1-1,0-0,2-2"]) {
        for (const [at, bucketBytes] of [16, 100, 2 ** 20].entries()) {
          const plans = plansOf(specsOf(`4@${order}:P(sum)`, "3@1:S0", tensors, choices[at % 2]), bucketBytes)
          const outcome = outcomeOf(plans, 0, valuesOf)
          const transport = bucketBytes === 100 ? "strict and packed" : "gather"
          const options = { waveBytes: bucketBytes }
          assert.deepStrictEqual(yield* faultsOf(plans, [outcome], transport, options, valuesOf), [])
          sums.add(
            JSON.stringify([...outcome.targets.values()].map((held) => held.map((one) => one && [...one.bytes])))
          )
        }
      }
      // Members are reduced in ascending order, so neither the mesh's order nor anything else changes a bit.
      assert.strictEqual(sums.size, 1)
    })
  )
})

describe("memory that source and destination share", () => {
  /** Both sides of a rank in one memory, the destination some bytes further. */
  const inPlace = (specs: ReadonlyArray<MeshTensorSpec>, shift: number, transport: keyof typeof transports) =>
    Effect.gen(function* () {
      const plans = plansOf(specs, 64)
      const outcome = outcomeOf(plans)
      return yield* runCluster({ ...transports[transport](), size: plans.length }, (rank) =>
        Effect.gen(function* () {
          const plan = plans[rank]!
          const engine = yield* TensorEngine
          const [sources, targets]: [Array<Tensor | null>, Array<Tensor | null>] = [[], []]
          for (const { sourceShape, targetShape, sourceDtype, targetDtype } of plan.tensors) {
            const bytes = (dtype: DType, shape: Shape | null) =>
              shape === null ? 0 : (elementCount(shape) * bitsOf(dtype)) / 8
            const length = bytes(sourceDtype, sourceShape) + bytes(targetDtype, targetShape) + shift
            const { storage } = yield* engine.allocate("uint8", [length])
            const view = (dtype: DType, shape: Shape | null, byteOffset: number) =>
              shape === null ? null : Result.getOrThrow(tensorView(storage, dtype, shape, { byteOffset }))
            sources.push(view(sourceDtype, sourceShape, 0))
            targets.push(view(targetDtype, targetShape, shift))
          }
          setBytes(targets, () => poisonByte)
          setBytes(sources, (at) => shardValues(plan, at, 0).bytes)
          const report = yield* executeReshardPlan(plan, dictOf(plan, sources), dictOf(plan, targets), {
            waveBytes: 64
          })
          assert.strictEqual(judge(outcome, rank, targets), undefined)
          return report
        })
      )
    })
  const shape = [12, 10]
  for (const transport of ["gather", "strict and packed"] as const) {
    for (const shift of [0, 4]) {
      it.live(`nothing is overwritten before it was read, ${shift} bytes apart, ${transport}`, () =>
        Effect.gen(function* () {
          let saved = 0
          for (const [from, to] of [
            ["4:S0", "4:S1"],
            ["4:S0", "4@3-3,2-2,1-1,0-0:S0"],
            ["2x2:S0,R", "3@1:S1"],
            ["2x2:P(sum),S0", "3:S0"],
            ["3:P(max)", "3:R"],
            ["3:R", "3:S0"]
          ] as const) {
            for (const [fromType, toType] of [
              ["float32", "float32"],
              ["bfloat16", "float32"],
              ["float32", "bfloat16"]
            ] as const) {
              const reports = yield* inPlace(
                specsOf(from, to, [{ shape, from: fromType, to: toType }]),
                shift,
                transport
              )
              saved += reports.reduce((sum, { stagedBytes }) => sum + stagedBytes, 0)
            }
          }
          assert.isAbove(saved, 0)
        })
      )
    }
  }

  it.live("the same layout in the same memory: nothing moves at all", () =>
    Effect.gen(function* () {
      const reports = yield* inPlace(specsOf("2x2:S0,S1", "2x2:S0,S1", [{ shape }, { shape: [5, 7] }]), 0, "gather")
      for (const report of reports) {
        assert.strictEqual(report.stagedBytes + report.copy.remoteBytesSent + report.bufferBytes, 0)
      }
    })
  )
})

describe("memory of an update", () => {
  it.live("no rank holds a full copy that it does not keep", () =>
    Effect.gen(function* () {
      const tensors = Array.from({ length: 6 }, () => ({ shape: [64, 32], from: "bfloat16", to: "float32" }) as const)
      const wholeBytes = 6 * 64 * 32 * 4
      for (const transport of ["gather", "packed"] as const) {
        for (const [from, to] of [
          ["4:S0", "4@2:S1"],
          ["4:R", "4@4:S0"],
          ["2x2:P(sum),S0", "4:S1"]
        ] as const) {
          const options = { transport, bucketBytes: 512, waveBytes: 1024 }
          const reports = yield* updated(specsOf(from, to, tensors), options)
          for (const report of reports) {
            // Two waves of two buckets for each of at most six peers, both ways.
            assert.isAtMost(report.bufferBytes, 2 * 2 * 512 * 6 * 2)
            assert.isAtMost(report.bufferBytes + report.reducedBytes + report.copy.stagingBytes, wholeBytes / 2)
            assert.strictEqual(report.stagedBytes, 0)
          }
          assert.isAtLeast(Math.max(...reports.map(({ waves }) => waves)), 2)
          assert.isAbove(Math.max(...reports.map(({ bufferBytes }) => bufferBytes)), 0)
        }
      }
    })
  )

  it.live("a chunk longer than a buffer travels in parts, contributions too", () =>
    Effect.gen(function* () {
      for (const [from, to] of [
        ["1:R", "1@1:R"],
        ["3:P(sum)", "1@1:R"],
        ["3:P(avg)", "2@3:R"]
      ] as const) {
        for (const length of [1, 127, 128, 129, 1009]) {
          const tensors = [{ shape: [length, 2], from: "float32", to: "bfloat16" } as const]
          const reports = yield* updated(specsOf(from, to, tensors), { bucketBytes: 2 ** 20, waveBytes: 512 })
          for (const report of reports) assert.isAtMost(report.bufferBytes, 4 * 2 * 512)
        }
      }
    })
  )

  it.live("contributions to one box come in one wave, from ranks of several groups too", () =>
    Effect.gen(function* () {
      // Rank 3 contributes to both groups, ranks 1 and 2 to one each.
      const both = ["0-0,1-1,3-3", "0-0,2-2,3-3"].flatMap((ranks, group) =>
        specsOf(`3@${ranks}:P(sum)`, "1@4:R", Array(3).fill({ shape: [16] }), "etha").map((spec, at) => ({
          ...spec,
          name: `${group}.${at}`
        }))
      )
      const [reducer] = yield* updated(both, { bucketBytes: 64, waveBytes: 64 })
      // Two contributions to a box of either group, in the wave under way and in the one being emptied.
      assert.strictEqual(reducer!.bufferBytes, 2 * 4 * 64)
      // Six tensors in waves of one, of which a group needs three, and one wave of results.
      assert.strictEqual(reducer!.waves, 6 + 1)
    })
  )

  it.live("an update like the one before uses its memory and its compiled program again", () =>
    Effect.gen(function* () {
      const specs = specsOf("3:S0", "2@1:S1", [{ shape: [9, 8], from: "bfloat16", to: "float32" }])
      const plans = plansOf(specs)
      const outcomes = [0, 1, 2].map((round) => outcomeOf(plans, round))
      const ranks = yield* runCluster({ size: plans.length }, (rank) =>
        Effect.flatMap(makeUpdateMemory, (memory) => runRounds(plans, outcomes, rank, { memory }))
      )
      for (const { faults, reports } of ranks) {
        assert.deepStrictEqual(faults, [])
        assert.deepStrictEqual(
          reports.map(({ copy }) => copy.reusedProgram),
          [false, true, true]
        )
      }
    })
  )
})

describe("an update that needs no memory", () => {
  it.live("is one run whatever the buckets, and is known again", () =>
    Effect.gen(function* () {
      const specs = specsOf("2:S0", "2@2:S1", [{ shape: [64, 32] }, { shape: [7, 9] }])
      const plans = plansOf(specs, 64)
      const ranks = yield* runCluster({ size: plans.length }, (rank) =>
        Effect.gen(function* () {
          const plan = plans[rank]!
          const { sources, targets } = yield* sidesOf(plan)
          const [source, destination] = [dictOf(plan, sources), dictOf(plan, targets)]
          return yield* Effect.forEach([0, 1, 2], (round) =>
            Effect.gen(function* () {
              setBytes(sources, (at) => shardValues(plan, at, round).bytes)
              setBytes(targets, () => poisonByte)
              const report = yield* executeReshardPlan(plan, source, destination)
              assert.strictEqual(judge(outcomeOf(plans, round), rank, targets), undefined)
              return report
            })
          )
        })
      )
      for (const reports of ranks) {
        assert.deepStrictEqual(
          reports.map(({ waves, bufferBytes, stagedBytes, copy }) => [
            waves,
            bufferBytes,
            stagedBytes,
            copy.reusedProgram
          ]),
          [false, true, true].map((isReused) => [1, 0, 0, isReused])
        )
      }
    })
  )
})

describe("an idle rank that knows an update", () => {
  it.live("takes part in as many runs as the others need this time", () =>
    Effect.gen(function* () {
      const specs = specsOf("1:R", "1@1:R", [{ shape: [64, 4], from: "float32", to: "bfloat16" }])
      const plans = plansOf(specs, 64, 1)
      const cluster = { size: plans.length, groupDeadline: Duration.seconds(10) }
      const waves = yield* runCluster(cluster, (rank) =>
        Effect.gen(function* () {
          const plan = plans[rank]!
          const { sources, targets } = yield* sidesOf(plan)
          const isIdle = rank === plans.length - 1
          const [source, destination] = isIdle ? [undefined, undefined] : [dictOf(plan, sources), dictOf(plan, targets)]
          const transforms = [{ transform: cast({ wireDtype: "float32" }) }, {}]
          return yield* Effect.forEach(transforms, (chosen) =>
            Effect.gen(function* () {
              setBytes(sources, (at) => shardValues(plan, at, 0).bytes)
              setBytes(targets, () => poisonByte)
              const options = { waveBytes: 128, ...(isIdle ? {} : chosen) }
              const report = yield* executeReshardPlan(plan, source, destination, options)
              assert.strictEqual(judge(outcomeOf(plans), rank, targets), undefined)
              return report.waves
            })
          )
        })
      )
      for (const counts of waves) assert.deepStrictEqual(counts, [1, 4])
    })
  )
})

describe("axes", () => {
  it.live("that are permuted on the way arrive in the destination's order", () =>
    Effect.gen(function* () {
      const region = (...shape: ReadonlyArray<number>) => shape.map((length) => [0, length] as const)
      const [rows, columns] = [6, 5]
      const common = { paramName: "w", taskId: 0, wireDtype: "float32", axes: [1, 0] } as const
      const tensor = (shape: ReadonlyArray<number>) => [
        { name: "w", resolvedName: "w", shape, dtype: "float32" as const }
      ]
      const base = {
        format: "tensorferry.reshard-plan",
        version: 2,
        aliases: [],
        taskCount: 1,
        rosterDigest: "x"
      } as const
      const plans: ReadonlyArray<ReshardPlan> = [
        {
          ...base,
          rank: 0,
          sourceTensors: tensor([rows, columns]),
          destinationTensors: [],
          sendOps: [
            { ...common, peerRank: 1, isSend: true, mySlice: region(rows, columns), peerSlice: region(columns, rows) }
          ],
          recvOps: []
        },
        {
          ...base,
          rank: 1,
          sourceTensors: [],
          destinationTensors: tensor([columns, rows]),
          sendOps: [],
          recvOps: [
            { ...common, peerRank: 0, isSend: false, mySlice: region(columns, rows), peerSlice: region(rows, columns) }
          ]
        }
      ]
      assert.deepStrictEqual(checkPlans(plans), [])
      const wrong = plans.map((plan) => ({ ...plan, recvOps: plan.recvOps.map((op) => ({ ...op, axes: [0, 0] })) }))
      assert.isNotEmpty(checkPlans(wrong))
      for (const gather of [true, false]) {
        const network = makeLoopbackNetwork()
        yield* runCluster({ size: 2, driver: () => loopbackLayer(network, { gather }), stagingBytes: 64 }, (rank) =>
          Effect.gen(function* () {
            const engine = yield* TensorEngine
            const held = yield* engine.allocate("float32", rank === 0 ? [rows, columns] : [columns, rows])
            const values = new Float32Array(held.storage.bytes!.buffer, held.storage.bytes!.byteOffset, rows * columns)
            for (const at of values.keys()) values[at] = rank === 0 ? at : -1
            const dict = tensorDict([["w", held]])
            yield* executeReshardPlan(plans[rank]!, rank === 0 ? dict : undefined, rank === 1 ? dict : undefined)
            if (rank === 0) return
            for (const [at, value] of values.entries()) {
              assert.strictEqual(value, (at % rows) * columns + Math.floor(at / rows))
            }
          })
        )
      }
    })
  )
})

it.live("progress is reported, hooks run once after the last byte, and earlier work is awaited", () =>
  Effect.gen(function* () {
    const plans = plansOf(specsOf("2:S0", "2@2:S1", [{ shape: [8, 8] }]), 64)
    const outcome = outcomeOf(plans)
    yield* runCluster({ size: plans.length }, (rank) =>
      Effect.gen(function* () {
        const plan = plans[rank]!
        const { sources, targets } = yield* sidesOf(plan)
        setBytes(targets, () => poisonByte)
        const seen: Array<readonly [number, number]> = []
        let refreshed = 0
        const destination = {
          ...dictOf(plan, targets),
          refreshCaches: [
            Effect.sync(() => {
              refreshed += 1
              assert.strictEqual(judge(outcome, rank, targets), undefined)
            })
          ]
        }
        yield* executeReshardPlan(plan, dictOf(plan, sources), destination, {
          waveBytes: 64,
          after: [{ await: Effect.sync(() => setBytes(sources, (at) => shardValues(plan, at, 0).bytes)) }],
          onProgress: (moved, total) => Effect.sync(() => void seen.push([moved, total]))
        })
        assert.strictEqual(refreshed, 1)
        if (rank >= 2) assert.deepStrictEqual(seen.at(-1), [128, 128])
        assert.isTrue(seen.every(([moved], at) => at === 0 || moved >= seen[at - 1]![0]))
      })
    )
  })
)
