// SPDX-License-Identifier: Apache-2.0
/**
 * The drivers between ranks of one process, where things go wrong: failures of one rank in a preparation, aborted
 * communicators, cancelled transfers, bounds of groups and staging.
 */

import { assert, describe, it } from "@effect/vitest"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { deviceOf } from "@tensorferry/gpu/TensorEngine"
import { assertClean, resetSimulator, simulatedLibraries, simulator } from "@tensorferry/simulators/gpu"
import { runMembers } from "@tensorferry/testing"
import { isSoak } from "@tensorferry/testing/testLevel"
import {
  carryOut,
  makeShare,
  makeTransfers,
  randomTransfer,
  readyShare,
  type Transfer
} from "@tensorferry/testing/transfers/randomTransfers"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type { Scope } from "effect/Scope"
import type { CudaOptions } from "../src/options.ts"
import type { DriverKind } from "../src/planning/route.ts"
import { driverOf, engines, kinds } from "./cluster.ts"

type Services = CopyDriver | TensorEngine | ProcessGroup | Scope

/** Runs a program on two ranks over a fresh simulated driver; what they give, by rank. */
const onRanks = async <A>(
  kind: DriverKind,
  settings: string,
  program: (rank: number) => Effect.Effect<A, unknown, Services>,
  options: CudaOptions = {},
  size = 2,
  groupDeadline = Duration.seconds(10)
): Promise<ReadonlyArray<A>> => {
  resetSimulator(settings)
  const layer = Layer.provideMerge(driverOf(kind, options), engines(options))
  const exits = await Effect.runPromise(runMembers({ size, groupDeadline }, () => layer, program))
  const values = exits.map((exit) => (Exit.isFailure(exit) ? assert.fail(String(exit.cause)) : exit.value))
  simulator.configure("clear=faults")
  assertClean()
  return values
}

const transfers = makeTransfers(11, 2)

/** One transfer that is right. */
const works = (rank: number, list: ReadonlyArray<Transfer> = transfers) =>
  Effect.map(carryOut(rank, list, 5), ({ wrong, program }) => {
    assert.deepStrictEqual(wrong, [])
    return program
  })

describe("a preparation", () => {
  for (const [what, kind, fault, reason] of [
    ["without memory for staging", "nccl", "fail=cudaMalloc:1:2", "TransportFailed"],
    ["without an identity for the communicator", "nccl", "fail=ncclGetUniqueId:1:3", "TransportFailed"],
    ["without a communicator", "nccl", "fail=ncclCommInitRankConfig:1:3", "TransportFailed"]
  ] as const) {
    it(`${what} on one rank fails on all, and the next one works`, { timeout: 60_000 }, async () => {
      await onRanks(
        kind,
        "seed=3",
        (rank) =>
          Effect.gen(function* () {
            const driver = yield* CopyDriver
            const group = yield* ProcessGroup
            const engine = yield* TensorEngine
            // Large enough that staging is a block of its own, which has to be allocated.
            const large = Array.from({ length: 40 }, (_, taskId) =>
              randomTransfer(taskId, taskId % 2, 1 - (taskId % 2), "uint8", [300, 211])
            )
            yield* Effect.scoped(
              Effect.gen(function* () {
                const share = yield* makeShare(engine, large, rank)
                yield* group.barrier("allocated")
                if (rank === 0) simulator.configure(fault)
                yield* group.barrier("planted")
                const failed = yield* Effect.result(driver.prepare(share.messages))
                if (Result.isSuccess(failed)) return assert.fail("It succeeded.")
                assert.strictEqual(failed.failure.reason._tag, reason)
                yield* group.barrier("failed")
                if (rank === 0) simulator.configure("clear=faults")
                yield* group.barrier("cleared")
              })
            )
            yield* works(rank, large)
          }),
        { stagingBytes: 2 ** 21 },
        2,
        // So long the other rank waits where this one has no communicator.
        Duration.seconds(3)
      )
    })
  }

  it.each(kinds)("of %s names the task where both ends differ, on both", async (kind) => {
    const answers = await onRanks(kind, "", (rank) =>
      Effect.gen(function* () {
        const driver = yield* CopyDriver
        const engine = yield* TensorEngine
        const tensor = yield* engine.allocate("uint8", [rank === 0 ? 4 : 5])
        const direction = rank === 0 ? ("send" as const) : ("recv" as const)
        const parts = [{ taskId: 41, part: 0, tensor }]
        const error = yield* Effect.flip(
          driver.prepare([{ peer: 1 - rank, direction, index: 0, parts, byteLength: 4 }])
        )
        yield* works(rank)
        return error
      })
    )
    for (const { reason } of answers) {
      assert.strictEqual(reason._tag, "InvalidProgram")
      assert.strictEqual(reason.taskId, 41)
    }
  })

  it.each(kinds)("of %s refuses host memory and unknown ranks on all ranks", async (kind) => {
    const answers = await onRanks(kind, "", (rank) =>
      Effect.gen(function* () {
        const driver = yield* CopyDriver
        const engine = yield* TensorEngine
        const storage = yield* engine.wrapHost(new Uint8Array(4))
        const tensor = { ...(yield* engine.allocate("uint8", [4])), storage, device: storage.device }
        const errors = []
        for (const [peer, wrong] of [
          [1, tensor],
          [7, yield* engine.allocate("uint8", [4])]
        ] as const) {
          const parts = [{ taskId: 3, part: 0, tensor: wrong }]
          const messages = rank === 0 ? [{ peer, direction: "send" as const, index: 0, parts, byteLength: 4 }] : []
          errors.push((yield* Effect.flip(driver.prepare(messages))).reason)
        }
        yield* works(rank)
        return errors
      })
    )
    for (const reasons of answers) {
      assert.deepStrictEqual(
        reasons.map(({ _tag }) => _tag),
        ["InvalidProgram", "InvalidProgram"]
      )
    }
  })
})

describe("preparations, again and again", () => {
  const cycles = isSoak ? 10_000 : 150

  it.each(kinds)(
    `of %s leave nothing, whether they work or the peer's part is refused: ${cycles} times`,
    {
      timeout: 60_000 + cycles * 300
    },
    async (kind) => {
      const held: Array<string> = []
      await onRanks(kind, "seed=4", (rank) =>
        Effect.gen(function* () {
          const [driver, engine, group] = [yield* CopyDriver, yield* TensorEngine, yield* ProcessGroup]
          const share = yield* makeShare(engine, transfers, rank)
          const stranger = yield* engine.wrapHost(new Uint8Array(64))
          const broken = share.messages.map((message) => ({
            ...message,
            parts: message.parts.map((part) => ({
              ...part,
              tensor: { ...part.tensor, storage: stranger, device: stranger.device }
            }))
          }))
          for (let cycle = 0; cycle < cycles; cycle++) {
            const isBroken = cycle % 2 === 1
            // Whoever is in order has registered its memory before it hears that the other is not.
            const prepared = yield* driver
              .prepare(isBroken && rank === 1 ? broken : share.messages)
              .pipe(Effect.result, Effect.scoped)
            assert.strictEqual(Result.isFailure(prepared), isBroken, `cycle ${cycle}`)
            yield* group.barrier("prepared")
            // What is made once for all preparations is there after the first few.
            const isCounted = rank === 0 && (cycle === 19 || cycle === cycles - 1)
            if (isCounted) held.push(JSON.stringify(simulator.report().live))
            yield* group.barrier("counted")
          }
          yield* works(rank)
        })
      )
      assert.strictEqual(held.length, 2)
      assert.strictEqual(held[1], held[0])
    }
  )
})

describe("a communicator", () => {
  it("that was aborted breaks its programs, and the next preparation connects again", { timeout: 60_000 }, async () => {
    await onRanks("nccl", "seed=4", (rank) =>
      Effect.gen(function* () {
        const { driver, group, program } = yield* readyShare(rank, transfers, 0)
        // Rank 1 never starts: rank 0's messages wait until they are aborted.
        if (rank === 0) {
          const running = yield* driver.start(program)
          assert.isFalse(yield* running.isComplete)
          yield* running.cancel
          assert.isTrue(yield* running.isComplete)
          assert.isTrue(Result.isFailure(yield* Effect.result(running.await)))
          const { reason } = yield* Effect.flip(driver.start(program))
          assert.strictEqual(reason._tag, "Broken")
          assert.strictEqual(reason.scope, "service")
        }
        yield* group.barrier("cancelled")
        yield* works(rank)
        // The old program is of the old connection, also on the rank that cancelled nothing.
        assert.strictEqual((yield* Effect.flip(driver.start(program))).reason._tag, "Broken")
      })
    )
  })

  it("that makes no progress is abandoned by an interruption, and the next preparation connects again", async () => {
    await onRanks("nccl", "seed=5", (rank) =>
      Effect.gen(function* () {
        const { driver, group, program } = yield* readyShare(rank, transfers, 0)
        if (rank === 0) simulator.configure("stall=ncclGroupEnd:1")
        yield* group.barrier("planted")
        const running = yield* driver.start(program)
        yield* Effect.timeoutOption(Effect.exit(running.await), "100 millis")
        yield* running.cancel
        yield* group.barrier("cancelled")
        yield* works(rank)
      })
    )
  })

  it("is made once for all preparations", async () => {
    await onRanks("nccl", "", (rank) =>
      Effect.gen(function* () {
        for (let round = 0; round < 3; round++) yield* works(rank, makeTransfers(round + 20, 2))
        yield* (yield* ProcessGroup).barrier("done")
        assert.strictEqual(simulator.report().calls.ncclGetUniqueId, 1)
      })
    )
  })

  it("is not made where no message needs it", async () => {
    await onRanks("cuda", "", (rank) => works(rank))
    assert.isUndefined(simulator.report().calls.ncclGetUniqueId)
  })

  it("is missing: the backend says so when it is built, and cuda where it is needed", async () => {
    const libraries = { ...simulatedLibraries, collectives: ["/none/libnccl.so"] }
    resetSimulator("peers=none")
    const exits = await Effect.runPromise(
      runMembers(
        { size: 2 },
        () => Layer.provideMerge(driverOf("nccl", { libraries }), engines({ libraries })),
        (rank) => works(rank)
      )
    )
    for (const exit of exits) assert.include(String(Exit.isFailure(exit) ? exit.cause : ""), "TENSORFERRY_NCCL")
    const answers = await onRanks("cuda", "peers=none", (rank) => Effect.flip(works(rank)), { libraries })
    for (const { message } of answers) {
      assert.include(message, "UnreachableMemory")
      assert.include(message, "cannot access each other")
      assert.include(message, "nccl")
    }
  })
})

describe("windows", () => {
  it("bound groups and staging, and overlap nothing that must not", { timeout: 120_000 }, async () => {
    const stagingBytes = 2 ** 17
    const many = Array.from({ length: 900 }, (_, taskId) =>
      randomTransfer(taskId, taskId % 3, ((taskId % 3) + 1 + (taskId % 2)) % 3, "uint8", [3, 1 + (taskId % 300)])
    )
    const held = await onRanks(
      "nccl",
      "seed=9",
      (rank) =>
        Effect.gen(function* () {
          const engine = yield* TensorEngine
          const driver = yield* CopyDriver
          const { memory } = deviceOf(engine)!
          const share = yield* makeShare(engine, many, rank)
          const before = memory.blocks().byteLength
          yield* driver.prepare(share.messages)
          const after = memory.blocks().byteLength
          yield* works(rank, many)
          return after - before
        }),
      { stagingBytes, directBytes: 64 },
      3
    )
    for (const bytes of held) assert.isAtMost(bytes, stagingBytes)
  })

  it("never hold more than 512 operations", { timeout: 120_000 }, async () => {
    const many = Array.from({ length: 3000 }, (_, taskId): Transfer => {
      const view = { dtype: "uint8" as const, shape: [64], strides: [1], byteOffset: 0, byteLength: 64 }
      return { taskId, from: taskId % 2, to: 1 - (taskId % 2), source: view, destination: view }
    })
    await onRanks("nccl", "seed=9", (rank) => works(rank, many), { directBytes: 1 })
    const { nccl } = simulator.report()
    assert.isAtMost(nccl.maxGroup, 512)
    assert.isAbove(nccl.maxGroup, 400)
  })
})
