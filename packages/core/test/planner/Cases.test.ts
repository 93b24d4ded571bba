// SPDX-License-Identifier: Apache-2.0
/**
 * Failures that others in this field have reported, and faults of the systems that this one follows, each as its kind:
 * the test states what must happen instead.
 *
 * Not here, because the kind cannot occur or is tested elsewhere:
 * - replicas of a tied tensor with different bytes: planners see layouts and no bytes; replicas are equal by contract.
 * - whole and missing files are the checkpoint tests' business; here is the plan's side of completeness.
 * - a killed process is tested with processes; here a rank leaves its group.
 */
import { assert, describe, it } from "@effect/vitest"
import { copyCases } from "@tensorferry/testing/Conformance"
import { allToAll, runTransfers, type Transfer } from "@tensorferry/testing/conformance/transfers"
import { makeFault } from "@tensorferry/testing/Faulty"
import { loopbackLayer, makeLoopbackNetwork, strictLayer } from "@tensorferry/testing/Loopback"
import { coverageLaw, payloadLaw } from "@tensorferry/testing/planning/laws"
import {
  describeFault,
  heldIndices,
  judgeSide,
  oracleModel,
  runOracle,
  runRoundTrip
} from "@tensorferry/testing/planning/oracle"
import { type ClusterOf, runCluster, runCopyCase, runRanks } from "@tensorferry/testing/VirtualCluster"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as TestClock from "effect/testing/TestClock"
import { byteLengthOf } from "../../src/base/DType.ts"
import {
  chunkInterval,
  elementCount,
  type Interval,
  isRepresentable,
  regionShape,
  type Shape
} from "../../src/base/Region.ts"
import { copyServiceLayer } from "../../src/copy/CopyServiceLayer.ts"
import { matchLocalOpsByTaskId } from "../../src/copy/matchLocalOps.ts"
import type { ReshardPlan } from "../../src/ir/ReshardPlan.ts"
import {
  type ParameterMetadata,
  type ParameterMetadataInput,
  parameterMetadata
} from "../../src/layout/ParameterMetadata.ts"
import { parametersOf, type Roster, rosterFromParameters } from "../../src/layout/Roster.ts"
import { packParts } from "../../src/planner/Bucketing.ts"
import { estimatePlans } from "../../src/planner/Estimate.ts"
import { checkPlan, opByteLength } from "../../src/planner/PlanCheck.ts"
import { buildReshardPlan, indexRosters, measuredPlanRank } from "../../src/planner/RosterPlanner.ts"
import { executeReshardPlan } from "../../src/reshard/executeReshardPlan.ts"
import { CopyDriver } from "../../src/service/CopyDriver.ts"
import { CopyService } from "../../src/service/CopyService.ts"
import { ProcessGroup } from "../../src/service/ProcessGroup.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"
import { makeStorage } from "../../src/tensor/Storage.ts"
import { isContiguous, sliceTensor, tensorBytes, tensorView } from "../../src/tensor/Tensor.ts"
import { tensorDict } from "../../src/tensor/TensorDict.ts"
import { layoutOf, plansOf, sidesOf } from "../reshard/executeSupport.ts"

const range = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, at) => at)

/** The roster of one parameter, stated rank by rank; `ranks` are its tensor-parallel group. */
const cutBy = (
  ranks: ReadonlyArray<number>,
  input: (at: number) => Partial<ParameterMetadataInput> & { readonly shape: Shape },
  name = "layer.weight"
): Roster =>
  rosterFromParameters(
    ranks.map((rank, at) => [
      rank,
      [
        parameterMetadata({
          name,
          dtype: "float32",
          ownerRank: rank,
          isTp: true,
          tensorParallelGroupRanks: ranks,
          ...input(at)
        })
      ]
    ])
  )

const replicated = (ranks: ReadonlyArray<number>, shape: Shape, name = "layer.weight"): Roster =>
  cutBy(ranks, () => ({ shape, isTp: false }), name)

/** Rows cut at these intervals, one list per rank. */
const rows = (ranks: ReadonlyArray<number>, lists: ReadonlyArray<ReadonlyArray<Interval>>, columns: number): Roster =>
  cutBy(ranks, (at) => ({
    shape: [lists[at]!.reduce((sum, [start, stop]) => sum + stop - start, 0), columns],
    partitionOffsets: lists[at]!
  }))

const isClean = (source: Roster, destination: Roster) =>
  Effect.map(runOracle(source, destination), (faults) => assert.deepStrictEqual(faults.map(describeFault), []))

const refusal = (source: Roster, destination: Roster) => {
  const made = buildReshardPlan(source, destination, destination.members[0]!.rank)
  assert.isTrue(Result.isFailure(made), "the planner accepts it")
  const error = Result.getOrThrow(Result.flip(made))
  assert.isAbove(error.remedy.length, 0)
  return error
}

const transports: Record<string, ClusterOf<never>> = {
  gather: () => ({}),
  packed: () => {
    const network = makeLoopbackNetwork()
    return { driver: () => loopbackLayer(network, { gather: false }), stagingBytes: 4096 }
  },
  strict: () => {
    const network = makeLoopbackNetwork()
    return { driver: () => strictLayer(network, { gather: false }) }
  }
}

/** A conformance case by name, on every transport. */
const onEveryTransport = (name: string) =>
  Effect.gen(function* () {
    const copyCase = copyCases.find((known) => known.name === name)!
    for (const clusterOf of Object.values(transports)) {
      const result = yield* runCopyCase(clusterOf)(copyCase)
      assert.deepStrictEqual(result, { name, status: "passed", detail: "" })
    }
  })

describe("layout arithmetic", () => {
  it.live("declared widths are kept, never guessed from the number of ranks", () =>
    Effect.gen(function* () {
      const offsets: ReadonlyArray<Interval> = [
        [0, 2],
        [2, 5],
        [5, 9],
        [9, 14]
      ]
      const source = cutBy(range(4), (at) => ({
        shape: [2, offsets[at]![1] - offsets[at]![0]],
        partitionDim: 1,
        partitionOffsets: [offsets[at]!]
      }))
      const destination = replicated([0], [2, 14])
      const [plan] = plansOf(source, destination, 4)
      assert.deepStrictEqual(
        plan!.recvOps.map((op) => op.mySlice[1]!).sort((a, b) => a[0] - b[0]),
        [...offsets]
      )
      yield* isClean(source, destination)
      // The same widths without offsets say nothing about where they lie.
      assert.isTrue(
        Result.isFailure(
          buildReshardPlan(
            cutBy(range(4), (at) => ({ shape: [2, 2 + at], partitionDim: 1 })),
            destination,
            0
          )
        )
      )
    })
  )

  it.live("there and back neither grows nor changes a tensor", () =>
    Effect.gen(function* () {
      for (const world of [2, 3, 4]) {
        for (const length of range(2 * world + 2)) {
          const sharded = rows(
            range(world),
            range(world).map((at) => {
              const [start, stop] = chunkInterval(length, world, at)
              return start < stop ? [[start, stop] as const] : []
            }),
            3
          )
          const faults = yield* runRoundTrip(sharded, replicated(range(world), [length, 3]))
          assert.deepStrictEqual(faults.map(describeFault), [], `${length} rows on ${world} ranks`)
        }
      }
    })
  )

  it("an empty shard lies behind all others and shares no offset with one", () => {
    assert.deepStrictEqual(
      range(4).map((at) => chunkInterval(5, 4, at)),
      [
        [0, 2],
        [2, 4],
        [4, 5],
        [5, 5]
      ]
    )
    const pieces = range(30).map((at) => chunkInterval(512, 30, at))
    assert.deepStrictEqual(
      pieces.map(([start, stop]) => stop - start),
      [...range(28).map(() => 18), 8, 0]
    )
    const real = pieces.filter(([start, stop]) => start < stop)
    assert.isFalse(real.some(([start]) => start === pieces[29]![0]))
    const layout = layoutOf(4, {
      tensors: [{ name: "w", dtype: "float32", shape: [5] }],
      rules: { rules: [{ match: "w", shard: 0 }] }
    })
    assert.deepStrictEqual(
      layout.ranks.map((rank) => layout.tensorsOf(rank)[0]!.pieces.map((piece) => piece.global)),
      [[[[0, 2]]], [[[2, 4]]], [[[4, 5]]], []]
    )
  })

  it.live("a short shard has strides of its own", () =>
    Effect.gen(function* () {
      const columns = (tp: number, firstRank = 0) =>
        layoutOf(tp, {
          firstRank,
          tensors: [{ name: "w", dtype: "float32", shape: [3, 9] }],
          rules: { rules: [{ match: "w", shard: 1 }] }
        }).roster
      const source = columns(2)
      assert.deepStrictEqual(parametersOf(source, 1)[0]!.shape, [3, 4])
      yield* runCluster({ size: 1 }, () =>
        Effect.gen(function* () {
          const tensor = yield* TensorEngine.use((engine) => engine.allocate("float32", [3, 4]))
          assert.deepStrictEqual(tensor.strides, [4, 1])
          assert.isTrue(isContiguous(tensor))
        })
      )
      // With every form of memory: dense, transposed and padded.
      yield* isClean(source, columns(3))
      yield* isClean(columns(3), columns(1, 3))
    })
  )

  it.live("fewer key and value heads than ranks: row intervals decide, not whole heads", () =>
    Effect.gen(function* () {
      // Two groups of 8 query, 2 key and 2 value rows, cut in eighths.
      const source = rows(
        range(8),
        range(8).map((at) => [[3 * at, 3 * at + 3]]),
        2
      )
      const destination = rows(
        [8],
        [
          [
            [0, 8],
            [12, 20],
            [8, 10],
            [20, 22],
            [10, 12],
            [22, 24]
          ]
        ],
        2
      )
      yield* isClean(source, destination)
      const plan = plansOf(source, destination, 9)[8]!
      const sendersOf = (start: number, stop: number) => [
        ...new Set(
          plan.recvOps.filter((op) => op.mySlice[0]![0] < stop && op.mySlice[0]![1] > start).map((op) => op.peerRank)
        )
      ]
      assert.sameMembers(sendersOf(0, 16), [0, 1, 2, 4, 5, 6])
      assert.sameMembers(sendersOf(16, 20), [2, 3, 6, 7])
      assert.sameMembers(sendersOf(20, 24), [3, 7])
    })
  )

  it.live("a permutation of rows across the cut dimension gives the same for every degree", () =>
    Effect.gen(function* () {
      const order = [0, 2, 1, 3, 4, 6, 5, 7]
      for (const degree of [1, 2, 4, 8]) {
        const share = 8 / degree
        const permuted = (ranks: ReadonlyArray<number>) =>
          rows(
            ranks,
            ranks.map((_, at) => order.slice(at * share, (at + 1) * share).map((row) => [row, row + 1] as const)),
            2
          )
        const plain = (ranks: ReadonlyArray<number>) =>
          rows(
            ranks,
            ranks.map((_, at) => [[at * share, (at + 1) * share]]),
            2
          )
        yield* isClean(plain(range(degree)), permuted(range(degree)))
        yield* isClean(permuted(range(degree)), replicated([degree], [8, 2]))
        const held = range(degree).flatMap((rank) => heldIndices(parametersOf(permuted(range(degree)), rank)[0]!)[0]!)
        assert.deepStrictEqual(held, order)
      }
    })
  )

  it.live("another placement of the same byte count is moved, or refused where it is not declared", () =>
    Effect.gen(function* () {
      const byColumns = cutBy([0, 1], (at) => ({
        shape: [4, 2],
        partitionDim: 1,
        partitionOffsets: [[2 * at, 2 * at + 2]]
      }))
      const byRows = rows([0, 1], [[[0, 2]], [[2, 4]]], 4)
      yield* isClean(byColumns, byRows)
      const model = oracleModel(byColumns, byRows)
      const plans = plansOf(byColumns, byRows, 2)
      yield* runCluster({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const { source } = yield* sidesOf(model, rank)
          const engine = yield* TensorEngine
          const wrong = tensorDict([["layer.weight", yield* engine.allocate("float32", [4, 2])]])
          const error = yield* Effect.flip(executeReshardPlan(plans[rank]!, source!.dict, wrong))
          assert.include(error.message, "[4,2]")
          assert.include(error.message, "[2,4]")
        })
      )
    })
  )

  it("every shape says whether it is local or global, so no degree is applied twice", () => {
    const layout = layoutOf(2, {
      tensors: [{ name: "embed", dtype: "float32", shape: [6, 2] }],
      rules: { rules: [{ match: "embed", shard: 0 }] }
    })
    assert.deepStrictEqual(
      layout.ranks.map((rank) => layout.tensorsOf(rank)[0]!.shape),
      [
        [3, 2],
        [3, 2]
      ]
    )
    assert.deepStrictEqual(parametersOf(layout.roster, 1)[0]!.shape, [3, 2])
    // A global shape stated as a local one makes a tensor of twelve rows, which is not the model's.
    const doubled = cutBy([0, 1], () => ({ shape: [6, 2] }), "embed")
    const error = refusal(doubled, layout.roster)
    assert.include(["SizeConservation", "ShapeMismatch"], error.kind)
    assert.strictEqual(error.paramName, "embed")
  })

  it.live("padding rows never travel", () =>
    Effect.gen(function* () {
      const source = rows(range(4), [[[0, 3]], [[3, 6]], [[6, 9]], [[9, 10]]], 1)
      const destination = rows([0, 1], [[[0, 5]], [[5, 10]]], 1)
      const plans = plansOf(source, destination, 4)
      const got = yield* runCluster({ size: 4 }, (rank) =>
        Effect.gen(function* () {
          const engine = yield* TensorEngine
          const stored = yield* engine.allocate("float32", [3, 1])
          tensorBytes(stored)!.fill(0xee)
          const held = rank === 3 ? 1 : 3
          const real = Result.getOrThrow(
            sliceTensor(stored, [
              [0, held],
              [0, 1]
            ])
          )
          new Float32Array(stored.storage.bytes!.buffer).set(range(held).map((row) => rank * 3 + row))
          const padded = yield* engine.allocate("float32", [6, 1])
          tensorBytes(padded)!.fill(0x11)
          const into = Result.getOrThrow(
            sliceTensor(padded, [
              [0, 5],
              [0, 1]
            ])
          )
          yield* executeReshardPlan(
            plans[rank]!,
            tensorDict([["layer.weight", real]]),
            rank < 2 ? tensorDict([["layer.weight", into]]) : undefined
          )
          return tensorBytes(padded)!.slice()
        })
      )
      for (const rank of [0, 1]) {
        assert.deepStrictEqual(
          [...new Float32Array(got[rank]!.buffer)].slice(0, 5),
          range(5).map((row) => rank * 5 + row)
        )
        assert.isTrue(got[rank]!.subarray(20).every((byte) => byte === 0x11))
        assert.isFalse(got[rank]!.includes(0xee))
      }
    })
  )

  it.live("a tied tensor on two stages has one owner; elsewhere it is a declared alias", () =>
    Effect.gen(function* () {
      const tied = (pp: number, firstRank = 0) =>
        layoutOf(2, {
          pp,
          firstRank,
          tensors: [
            { name: "embed", dtype: "float32", shape: [6, 2] },
            { name: "layers.0.w", dtype: "float32", shape: [3] },
            { name: "layers.1.w", dtype: "float32", shape: [3] }
          ],
          rules: {
            rules: [
              { match: "embed", shard: 0 },
              { match: "head", shard: 0, stage: "last" },
              { match: "*", shard: "replicate" }
            ],
            aliases: [{ name: "head", of: "embed" }]
          }
        }).roster
      for (const [from, to] of [
        [1, 1],
        [1, 2],
        [2, 1],
        [2, 2]
      ] as const) {
        yield* isClean(tied(from), tied(to))
        yield* isClean(tied(from), tied(to, 2 * from))
      }
      const together = plansOf(tied(2), tied(1), 4)
      assert.isFalse(together.some((plan) => plan.recvOps.some((op) => op.paramName === "head")))
    })
  )

  it("completeness is counted by element, not by name", () => {
    const source = rows(
      range(8),
      range(8).map((at) => [[at, at + 1]]),
      2
    )
    const destination = rows(
      range(4),
      range(4).map((at) => [[2 * at, 2 * at + 2]]),
      2
    )
    const plans = plansOf(source, destination, 8)
    for (const plan of plans.slice(0, 4)) {
      assert.deepStrictEqual(
        plan.recvOps.map((op) => op.peerRank),
        [2 * plan.rank, 2 * plan.rank + 1]
      )
      for (const op of plan.recvOps) {
        const faults = checkPlan({ ...plan, recvOps: plan.recvOps.filter((other) => other !== op) })
        assert.isTrue(
          faults.some(({ detail }) => detail.includes("2 of 4 elements")),
          faults[0]?.message
        )
      }
    }
  })

  it.live("pairs move their payload and nothing for the largest pair's sake", () =>
    Effect.gen(function* () {
      const sizes = (from: number, to: number) => (from === 1 && to === 2 ? 1 << 20 : 64)
      const transfers: ReadonlyArray<Transfer> = range(16).map((at) => {
        const [from, to] = [Math.floor(at / 4), at % 4]
        return { from, to, taskId: at, shape: [sizes(from, to)] }
      })
      const network = makeLoopbackNetwork()
      const options = { size: 4, driver: () => loopbackLayer(network, { gather: false }), stagingBytes: 1 << 20 }
      const reports = yield* runCluster(options, (rank) => Effect.scoped(runTransfers(rank, transfers)))
      const sent = reports.reduce((sum, report) => sum + report.remoteBytesSent, 0)
      assert.strictEqual(sent, (1 << 20) + 11 * 64)
      for (const report of reports) assert.isAtMost(report.stagingBytes, 1 << 20)
    })
  )

  it("the estimate shows the bytes before the run", () => {
    const plans = plansOf(layoutOf(4).roster, layoutOf(3, { firstRank: 2 }).roster, 5)
    assert.deepStrictEqual(payloadLaw(plans), [])
    assert.strictEqual(
      estimatePlans(plans).totalBytes,
      plans.flatMap((plan) => plan.recvOps).reduce((sum, op) => sum + opByteLength(op), 0)
    )
  })
})

/** Experts over one expert-parallel group, two names for two ways of keeping them. */
const experts = (
  count: number,
  ranks: ReadonlyArray<number>,
  options: {
    readonly style?: "list" | "grouped"
    readonly dataParallel?: ReadonlyArray<number>
    readonly prefix?: string
  } = {}
): Roster => {
  const perRank = count / ranks.length
  return rosterFromParameters(
    ranks.map((rank) => [
      rank,
      range(perRank).map((local) =>
        parameterMetadata({
          name:
            options.style === "list"
              ? `${options.prefix ?? ""}mlp.local_experts.${local}.fc1.weight`
              : `${options.prefix ?? ""}mlp.experts.fc1.weight${local}`,
          shape: [3, 2],
          dtype: "float32",
          ownerRank: rank,
          isEp: true,
          numExperts: count,
          expertParallelGroupRanks: ranks,
          tensorParallelGroupRanks: [rank],
          dataParallelGroupRanks: options.dataParallel ?? [rank]
        })
      )
    ])
  )
}

describe("names and experts", () => {
  it.live("local expert numbers become global ones, each once", () =>
    Effect.gen(function* () {
      for (const style of ["list", "grouped"] as const) {
        const roster = experts(8, range(4), { style })
        const names = range(4).flatMap((rank) => parametersOf(roster, rank).map((parameter) => parameter.resolvedName))
        assert.strictEqual(new Set(names).size, 8)
        assert.deepStrictEqual(
          names.map((name) => Number(/(?:weight|local_experts\.)(\d+)/.exec(name)![1])),
          range(8)
        )
        yield* isClean(roster, experts(8, range(2), { style }))
        yield* isClean(roster, experts(8, [4, 5, 6, 7, 8, 9, 10, 11], { style }))
      }
      const twice = (rank: number): ReadonlyArray<ParameterMetadata> =>
        ["a", "b"].map((name) =>
          parameterMetadata({ name, resolvedName: "expert.0", shape: [2], dtype: "float32", ownerRank: rank })
        )
      const error = refusal(rosterFromParameters([[0, twice(0)]]), rosterFromParameters([[0, twice(0).slice(0, 1)]]))
      assert.strictEqual(error.kind, "DuplicateName")
    })
  )

  it.live("redundant experts: every slot is filled once from one map", () =>
    Effect.gen(function* () {
      const map = [0, 1, 2, 3, 1]
      const slot = (rank: number, local: string, logical: number) =>
        parameterMetadata({
          name: local,
          resolvedName: `mlp.experts.fc1.weight${logical}`,
          globalExpertIndex: logical,
          shape: [3, 2],
          dtype: "float32",
          ownerRank: rank
        })
      const slots = rosterFromParameters(map.map((logical, at) => [4 + at, [slot(4 + at, "slot.weight", logical)]]))
      yield* isClean(experts(4, range(4)), slots)
      const plans = plansOf(experts(4, range(4)), slots, 9)
      assert.deepStrictEqual(
        plans.slice(4).map((plan) => plan.recvOps.map((op) => op.peerRank)),
        map.map((logical) => [logical])
      )
      assert.deepStrictEqual(coverageLaw(plans), [])
      // Two slots of one rank with one name cannot be told apart, so they are refused and not overwritten.
      const together = rosterFromParameters([[4, map.map((logical, at) => slot(4, `slot.${at}`, logical))]])
      assert.strictEqual(refusal(experts(4, range(4)), together).kind, "DuplicateName")
    })
  )

  it.live("parts carry their identity, whatever the order in which each side lists them", () =>
    Effect.gen(function* () {
      const transfers: ReadonlyArray<Transfer> = [
        { from: 0, to: 1, taskId: 30, dtype: "bfloat16", shape: [4] },
        { from: 0, to: 1, taskId: 20, dtype: "float32", shape: [2] },
        { from: 0, to: 1, taskId: 10, dtype: "bfloat16", shape: [4] }
      ]
      for (const clusterOf of Object.values(transports)) {
        yield* runCluster({ ...clusterOf(), size: 2 }, (rank) =>
          Effect.scoped(runTransfers(rank, transfers, { order: { reverse: rank === 0 } }))
        )
      }
      // Equal bytes in another order of types are no match.
      const exits = yield* runRanks({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const service = yield* CopyService
          const engine = yield* TensorEngine
          const half = yield* engine.allocate("bfloat16", [4])
          const full = yield* engine.allocate("float32", [2])
          const [first, second] = rank === 0 ? [half, full] : [full, half]
          for (const [at, tensor] of [first, second].entries()) {
            yield* rank === 0 ? service.submitSend(tensor, 1, at) : service.submitRecv(tensor, 0, at)
          }
          return (yield* Effect.flip(service.run())).reason._tag
        })
      )
      assert.deepStrictEqual(
        exits.map((exit) => (Exit.isSuccess(exit) ? exit.value : exit)),
        ["Mismatch", "Mismatch"]
      )
    })
  )

  it.live("a cached plan finds buffers that were freed and allocated again", () =>
    Effect.gen(function* () {
      const model = oracleModel(layoutOf(2, { pp: 2 }).roster, layoutOf(2).roster)
      const plans = plansOf(model.source, model.destination, 4)
      yield* runCluster({ size: 4 }, (rank) =>
        Effect.gen(function* () {
          for (let round = 0; round < 3; round++) {
            yield* Effect.scoped(
              Effect.gen(function* () {
                const { source, destination } = yield* sidesOf(model, rank, round)
                yield* executeReshardPlan(plans[rank]!, source?.dict, destination?.dict)
                if (destination !== undefined)
                  assert.deepStrictEqual(yield* judgeSide(model, destination, rank, round), [])
              })
            )
          }
        })
      )
    })
  )
})

describe("ordering and rendezvous", () => {
  it.live("both ranks send first, over a transport without buffers", () => onEveryTransport("both ranks send first"))
  it.live("a receiver shorter than its sender is refused", () =>
    onEveryTransport("refuses a receiver shorter than the sender")
  )
  it.live("a receiver longer than its sender is refused", () =>
    onEveryTransport("refuses a receiver longer than the sender")
  )
  it.live("unpaired operations are listed and nothing starts", () => onEveryTransport("lists every unpaired operation"))

  it.live("ranks that chose different backends or settings say so on both sides", () =>
    Effect.gen(function* () {
      const network = makeLoopbackNetwork()
      const renamed = (name: string) =>
        Layer.effect(
          CopyDriver,
          Effect.map(CopyDriver, (driver) => ({ ...driver, name }))
        ).pipe(Layer.provide(loopbackLayer(network)))
      const exits = yield* runRanks({ size: 2, driver: (rank) => renamed(rank === 0 ? "wire" : "memory") }, () =>
        Effect.flatMap(CopyService, (service) => Effect.flip(service.run()))
      )
      for (const exit of exits) {
        assert.isTrue(Exit.isSuccess(exit))
        if (!Exit.isSuccess(exit)) continue
        assert.strictEqual(exit.value.reason._tag, "Incompatible")
        assert.include(exit.value.message, "wire")
        assert.include(exit.value.message, "memory")
      }
    })
  )

  it.effect("a rank that dies is named within the deadline, and the others go on without it", () =>
    Effect.gen(function* () {
      for (const step of [0, 1, 2]) {
        const network = makeLoopbackNetwork()
        const again = makeLoopbackNetwork()
        const fiber = yield* Effect.forkChild(
          runRanks(
            {
              size: 3,
              groupDeadline: Duration.seconds(2),
              driver: (rank, group) =>
                rank === 2
                  ? makeFault({ step, action: { _tag: "Leave", leave: group.leave } }).wrap(loopbackLayer(network))
                  : loopbackLayer(network)
            },
            (rank) =>
              Effect.gen(function* () {
                const error = yield* Effect.flip(Effect.scoped(runTransfers(rank, allToAll(3))))
                if (rank === 2) return "gone"
                assert.strictEqual(error._tag, "CopyError")
                if (error._tag === "CopyError") assert.include(error.ranks, 2)
                const group = yield* ProcessGroup
                const two = yield* group.subgroup([0, 1])
                yield* Effect.scoped(runTransfers(rank, allToAll(2))).pipe(
                  Effect.provide(
                    copyServiceLayer(loopbackLayer(again)).pipe(Layer.provide(Layer.succeed(ProcessGroup, two))),
                    { local: true }
                  )
                )
                return "went on"
              })
          ),
          { startImmediately: true }
        )
        for (let second = 0; second < 12; second++) yield* TestClock.adjust("1 second")
        const exits = yield* Fiber.join(fiber)
        assert.deepStrictEqual(
          exits.map((exit) => (Exit.isSuccess(exit) ? exit.value : exit)),
          ["went on", "went on", "gone"]
        )
      }
    })
  )

  it.live("more senders than receivers", () =>
    Effect.gen(function* () {
      yield* onEveryTransport("more senders than receivers")
      yield* isClean(replicated(range(4), [7, 3]), replicated([4, 5], [7, 3]))
      yield* isClean(replicated(range(4), [7, 3]), replicated([0, 1], [7, 3]))
    })
  )

  it("sizes around 2^32 and far above are exact", () => {
    for (const bytes of [2 ** 32 - 1, 2 ** 32, 2 ** 32 + 1]) {
      assert.strictEqual(byteLengthOf("uint8", bytes), bytes)
      const storage = makeStorage({
        device: { family: "cpu", index: 0 },
        address: 0n,
        byteLength: bytes,
        release: () => {}
      })
      const view = Result.getOrThrow(tensorView(storage, "uint8", [bytes]))
      assert.strictEqual(Result.getOrThrow(sliceTensor(view, [[bytes - 1, bytes]])).byteOffset, bytes - 1)
      assert.isTrue(Result.isFailure(tensorView(storage, "uint8", [bytes + 1])))
      const packed = packParts([bytes, 7], 2 ** 40)
      assert.isAtLeast(
        packed.reduce((sum, message) => sum + message.byteLength, 0),
        bytes + 7
      )
      assert.isAtLeast(packed[0]!.parts[1]!.byteOffset, bytes)
    }
    const whole = 131_072
    const square = (firstRank: number, dim: number) =>
      layoutOf(4, {
        firstRank,
        tensors: [{ name: "w", dtype: "float32", shape: [whole, whole] }],
        rules: { rules: [{ match: "w", shard: dim }] }
      }).roster
    const plans = plansOf(square(0, 0), square(4, 1), 8)
    const ops = plans.flatMap((plan) => plan.recvOps)
    assert.strictEqual(ops.length, 16)
    for (const op of ops) assert.strictEqual(opByteLength(op), 2 ** 32)
    assert.strictEqual(estimatePlans(plans).totalBytes, 2 ** 36)
    assert.strictEqual(
      ops.reduce((sum, op) => sum + elementCount(regionShape(op.mySlice)), 0),
      whole * whole
    )
    assert.isFalse(isRepresentable([2 ** 30, 2 ** 30], 8))
  })
})

describe("views and empty tensors", () => {
  it.live("transposed views keep their logical order on every transport", () =>
    onEveryTransport("transposed views and column slices arrive in logical order")
  )

  it.live("zero-size tensors and empty shards on every transport", () =>
    Effect.gen(function* () {
      yield* onEveryTransport("zero-size tensors")
      yield* onEveryTransport("three rows over four ranks, one of them empty")
      const three = (tp: number) =>
        layoutOf(tp, {
          tensors: [{ name: "w", dtype: "float32", shape: [3, 2] }],
          rules: { rules: [{ match: "w", shard: 0 }] }
        }).roster
      yield* isClean(three(4), three(2))
      yield* isClean(three(2), three(4))
      const none = (tp: number) =>
        layoutOf(tp, {
          tensors: [{ name: "w", dtype: "float32", shape: [1, 0, 2] }],
          rules: { rules: [{ match: "w", shard: 0 }] }
        }).roster
      const plans: ReadonlyArray<ReshardPlan> = plansOf(none(2), none(3), 3)
      assert.strictEqual(plans.flatMap((plan) => plan.recvOps).length, 0)
      assert.deepStrictEqual(
        plans.flatMap((plan) => [...checkPlan(plan)]),
        []
      )
      yield* isClean(none(2), none(3))
    })
  )
})

describe("faults of the source systems", () => {
  it.live("1 experts go by their global number, also where ranks share one data-parallel list", () =>
    Effect.gen(function* () {
      for (const [from, to] of [
        [2, 4],
        [4, 1],
        [2, 1],
        [4, 2],
        [1, 4]
      ] as const) {
        const all = range(4)
        yield* isClean(experts(8, range(from), { dataParallel: all }), experts(8, range(to), { dataParallel: all }))
      }
    })
  )

  it.live("2 experts kept as a list are renumbered", () =>
    Effect.gen(function* () {
      yield* isClean(experts(8, range(2), { style: "list" }), experts(8, range(4), { style: "list" }))
      yield* isClean(experts(8, range(4), { style: "list" }), experts(8, [4], { style: "list" }))
    })
  )

  it.live("3 tied tensors are declared, under any prefix, and nothing else is filled from an embedding", () =>
    Effect.gen(function* () {
      const model = (names: ReadonlyArray<string>, aliasOf: string | null, rank: number) =>
        rosterFromParameters([
          [
            rank,
            names.map((name) =>
              parameterMetadata({
                name,
                shape: [4, 2],
                dtype: "float32",
                ownerRank: rank,
                aliasOf: name.endsWith("output_layer.weight") ? aliasOf : null
              })
            )
          ]
        ])
      const [embedding, head] = ["wrapped.module.embedding.weight", "wrapped.module.output_layer.weight"]
      yield* isClean(model([embedding, head], embedding, 0), model([embedding, head], null, 1))
      yield* isClean(model([embedding, head], embedding, 0), model([embedding, head], embedding, 1))
      const error = refusal(model([embedding], null, 0), model([embedding, head], null, 1))
      assert.strictEqual(error.kind, "MissingSource")
      assert.strictEqual(error.paramName, head)
      const other = "draft.output_layer.weight"
      assert.strictEqual(refusal(model([embedding, head], embedding, 0), model([other], null, 1)).paramName, other)
    })
  )

  it.live("4 legal layouts are planned: replicated and sharded, and cut along different dimensions", () =>
    Effect.gen(function* () {
      const ranks = range(4)
      const byRows = rows(
        ranks,
        ranks.map((at) => [[2 * at, 2 * at + 2]]),
        8
      )
      const byColumns = cutBy(ranks, (at) => ({
        shape: [8, 2],
        partitionDim: 1,
        partitionOffsets: [[2 * at, 2 * at + 2]]
      }))
      const whole = replicated(ranks, [8, 8])
      for (const from of [byRows, byColumns, whole])
        for (const to of [byRows, byColumns, whole]) yield* isClean(from, to)
      yield* isClean(
        cutBy(ranks, () => ({ shape: [2, 8] })),
        cutBy(ranks, () => ({ shape: [8, 2], partitionDim: 1 }))
      )
    })
  )

  it("5, 6, 7 what would lose or mix data is refused with the parameter's name", () => {
    const packed = (
      ranks: ReadonlyArray<number>,
      sizes: ReadonlyArray<number>,
      length = sizes.reduce((a, b) => a + b, 0)
    ) => cutBy(ranks, () => ({ shape: [length, 2], partitionSizes: sizes }))
    const one = (input: Partial<ParameterMetadataInput> & { readonly shape: Shape }) =>
      rosterFromParameters([
        [0, [parameterMetadata({ name: "layer.weight", dtype: "float32", ownerRank: 0, ...input })]]
      ])
    const refusals: ReadonlyArray<readonly [string, Roster, Roster]> = [
      ["fewer blocks on one side", packed([0, 1], [2, 2, 2]), packed([0, 1], [3, 3])],
      ["blocks that do not sum to the local length", packed([0, 1], [2, 2], 5), packed([0, 1], [2, 2], 5)],
      [
        "a destination rank outside of its own group",
        replicated([0], [4, 2]),
        rosterFromParameters([
          [
            5,
            [
              parameterMetadata({
                name: "layer.weight",
                shape: [2, 2],
                dtype: "float32",
                ownerRank: 5,
                isTp: true,
                tensorParallelGroupRanks: [0, 1]
              })
            ]
          ]
        ])
      ],
      ["replicas of another shape", replicated([0], [4, 2]), replicated([1], [4, 3])],
      [
        "another length of the dimension that is not cut",
        cutBy([0, 1], () => ({ shape: [2, 3] })),
        replicated([2], [4, 2])
      ],
      ["another number of dimensions", replicated([0], [4, 2]), replicated([1], [8])],
      ["a sharded tensor whose group is unknown", one({ shape: [2, 2], isTp: true }), replicated([1], [4, 2])],
      [
        "a partition dimension that does not exist",
        one({ shape: [2], isTp: true, partitionDim: 3, tensorParallelGroupRanks: [0] }),
        replicated([1], [2])
      ],
      [
        "lengths that do not divide",
        cutBy([0, 1], () => ({ shape: [3, 2] })),
        cutBy(range(4), () => ({ shape: [1, 2] }))
      ],
      ["intervals that overlap", rows([0, 1], [[[0, 3]], [[2, 4]]], 2), replicated([2], [5, 2])],
      ["intervals with a gap", rows([0, 1], [[[0, 2]], [[3, 5]]], 2), replicated([2], [5, 2])],
      [
        "types without a conversion",
        one({ shape: [4], dtype: "float4_e2m1fn" }),
        cutBy([1], () => ({ shape: [4], isTp: false }))
      ],
      ["nobody who holds it", replicated([0], [4], "other.weight"), replicated([1], [4])]
    ]
    for (const [what, source, destination] of refusals) {
      const error = refusal(source, destination)
      assert.strictEqual(error._tag, "PlanError", what)
      assert.strictEqual(error.paramName, "layer.weight", what)
      assert.notMatch(error.message, /undefined|NaN|TypeError|cannot read/i, what)
    }
  })

  it("8 one rank's plan of 2,048 costs what its own transfers cost, not the world's schedule", () => {
    const size = 2048
    const layout = (tp: number) =>
      layoutOf(tp, {
        dp: size / tp,
        tensors: range(200).map((at) => ({ name: `layers.${at}.w`, dtype: "bfloat16" as const, shape: [64, 8] })),
        rules: { rules: [{ match: "*", shard: 0 }] }
      }).roster
    const index = Result.getOrThrow(indexRosters(layout(8), layout(4)))
    for (const rank of [0, 1023, 2047]) {
      const { plan, work } = measuredPlanRank(index, rank)
      assert.isAbove(plan.recvOps.length, 0)
      assert.strictEqual(work.operations, plan.sendOps.length + plan.recvOps.length)
      // The world's schedule has taskCount operations; a rank looks at each destination once per kind of parameter.
      assert.isAtLeast(index.taskCount, size * 200)
      assert.isAtMost(work.pairs, 4 * size)
      assert.isBelow(work.pairs + work.operations, index.taskCount / 20)
    }
  })

  it.live("9 data and scale of one task keep their parts, within a rank and between ranks", () =>
    Effect.gen(function* () {
      const ops = range(4).map((at) => ({ taskId: at >> 1, part: at & 1 }))
      const match = matchLocalOpsByTaskId(ops, [...ops].reverse())
      assert.deepStrictEqual(
        match.pairs.map(({ send, recv }) => [send.taskId, send.part, recv.taskId, recv.part]),
        [
          [0, 0, 0, 0],
          [0, 1, 0, 1],
          [1, 0, 1, 0],
          [1, 1, 1, 1]
        ]
      )
      assert.deepStrictEqual([match.duplicates, match.unmatchedSends, match.unmatchedRecvs], [[], [], []])
      yield* onEveryTransport("parts of one task")
    })
  )
})
