// SPDX-License-Identifier: Apache-2.0
/**
 * Destinations in the symmetric heap: peers write into them without a slot between, whatever the order of the simulated
 * devices' work; mixed with memory of the engine, in several rounds with new contents.
 */

import { assert, describe, it } from "@effect/vitest"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { CopyDriver, type CopyDriverShape } from "@tensorferry/core/service/CopyDriver"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine as Engine } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { runMembers } from "@tensorferry/testing"
import { isSoak } from "@tensorferry/testing/testLevel"
import {
  fillShare,
  judgeShare,
  makeRandom,
  makeShare,
  makeTransfers,
  randomTransfer,
  type Transfer
} from "@tensorferry/testing/transfers/randomTransfers"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import type { Scope } from "effect/Scope"
import { nvshmemOf } from "../src/CopyDriver.ts"
import type { NvshmemOptions } from "../src/options.ts"
import { assertClean, driverOf, engines, resetSimulator } from "./cluster.ts"
import { simulator } from "./simulator.ts"

type Services = CopyDriver | Engine | ProcessGroup | Scope

const onRanks = async <A>(
  settings: string,
  size: number,
  options: NvshmemOptions,
  program: (rank: number) => Effect.Effect<A, unknown, Services>
): Promise<ReadonlyArray<A>> => {
  resetSimulator(settings)
  const layer = Layer.provideMerge(driverOf(options), engines(options))
  const exits = await Effect.runPromise(runMembers({ size, groupDeadline: Duration.seconds(20) }, () => layer, program))
  const values = exits.map((exit) => (Exit.isFailure(exit) ? assert.fail(String(exit.cause)) : exit.value))
  assertClean(settings)
  return values
}

/** Transfers in several rounds, judged byte by byte; gives the paths taken. */
const round = (
  driver: CopyDriverShape,
  transfers: ReadonlyArray<Transfer>,
  rank: number,
  destinations: ReadonlyMap<number, Tensor>,
  rounds: number
) =>
  Effect.gen(function* () {
    const engine = yield* Engine
    const group = yield* ProcessGroup
    const share = yield* makeShare(engine, transfers, rank, destinations)
    const program = yield* driver.prepare(share.messages)
    for (let seed = 1; seed <= rounds; seed++) {
      yield* fillShare(engine, share, seed)
      yield* group.barrier("filled")
      yield* (yield* driver.start(program)).await
      yield* group.barrier("done")
      assert.deepStrictEqual(yield* judgeShare(engine, share, seed), [], `round ${seed}`)
    }
    return program.paths.map(({ path, reason }) => `${path}: ${reason}`)
  }).pipe(Effect.scoped)

/** Symmetric memory for the destinations that are picked; every rank asks for all of it. */
const symmetricFor = (
  driver: CopyDriverShape,
  transfers: ReadonlyArray<Transfer>,
  isPicked: (transfer: Transfer) => boolean
) =>
  Effect.gen(function* () {
    const memory = new Map<number, Tensor>()
    for (const transfer of transfers.filter(isPicked)) {
      memory.set(
        transfer.taskId,
        yield* nvshmemOf(driver)!.allocateSymmetric("uint8", [transfer.destination.byteLength])
      )
    }
    return memory
  })

const seeds = isSoak ? 300 : 12

describe("symmetric destinations", () => {
  it(`hold what was sent, among others, in ${seeds} random batches`, { timeout: 60_000 + seeds * 3000 }, async () => {
    let straight = 0
    for (let seed = 1; seed <= seeds; seed++) {
      const random = makeRandom(seed)
      const size = 2 + (seed % 2)
      const transfers = makeTransfers(seed, size)
      const share = random.pick([0.5, 1])
      const picked = new Set(transfers.filter(() => random.next() < share).map(({ taskId }) => taskId))
      const options = { slotBytes: 2 ** (12 + random.below(4)), slots: 1 + random.below(3), copyEngineBytes: 2 ** 10 }
      const reasons = await onRanks(`seed=${seed}`, size, options, (rank) =>
        Effect.gen(function* () {
          const driver = yield* CopyDriver
          const memory = yield* symmetricFor(driver, transfers, ({ taskId }) => picked.has(taskId))
          return yield* round(driver, transfers, rank, memory, 3)
        })
      )
      straight += reasons.flat().filter((reason) => reason.includes("symmetric tensors")).length
    }
    assert.isAbove(straight, seeds / 2)
  })

  it("are not copied out of a slot", { timeout: 60_000 }, async () => {
    const transfers = [randomTransfer(3, 0, 1, "float32", [64, 128])]
    const launchesOf = async (isSymmetric: boolean) => {
      await onRanks("seed=5", 2, { slotBytes: 2 ** 16 }, (rank) =>
        Effect.gen(function* () {
          const driver = yield* CopyDriver
          const memory = yield* symmetricFor(driver, transfers, () => isSymmetric)
          return yield* round(driver, transfers, rank, memory, 1)
        })
      )
      return simulator.report().calls.cuLaunchKernel ?? 0
    }
    // One kernel packs or writes; without a slot none unpacks.
    const [slotted, straight] = [await launchesOf(false), await launchesOf(true)]
    assert.strictEqual(slotted - straight, 1)
    assert.isAbove(straight, 0)
  })

  it("are reached through slots where the option path asks for puts", { timeout: 60_000 }, async () => {
    const transfers = [randomTransfer(4, 1, 0, "bfloat16", [33, 65])]
    const reasons = await onRanks("seed=6", 2, { path: "put" }, (rank) =>
      Effect.gen(function* () {
        const driver = yield* CopyDriver
        const memory = yield* symmetricFor(driver, transfers, () => true)
        return yield* round(driver, transfers, rank, memory, 2)
      })
    )
    assert.isTrue(reasons.flat().every((reason) => reason.startsWith("put")))
  })

  it.each([
    ["float32", "symmetric tensors"],
    // Elements of half a byte may begin within one.
    ["float4_e2m1fn", "slots"]
  ] as const)(
    "are known to the driver of a copy service, which is another one: %s by %s",
    { timeout: 60_000 },
    async (dtype, way) => {
      resetSimulator("seed=9")
      const driver = driverOf({})
      const layer = Layer.merge(copyServiceLayer(driver), driver).pipe(Layer.provideMerge(engines({})))
      const exits = await Effect.runPromise(
        runMembers(
          { size: 2, groupDeadline: Duration.seconds(20) },
          () => layer,
          (rank) =>
            Effect.gen(function* () {
              const [service, engine] = [yield* CopyService, yield* Engine]
              const theirs = yield* nvshmemOf(yield* CopyDriver)!.allocateSymmetric(dtype, [32, 8])
              const mine = yield* engine.allocate(dtype, [32, 8])
              yield* engine.fill(mine, 40 + rank)
              yield* engine.fill(theirs, 0xee)
              yield* service.submitSend(mine, 1 - rank, rank)
              yield* service.submitRecv(theirs, 1 - rank, 1 - rank)
              const { peers } = yield* service.run()
              const bytes = new Uint8Array(byteLengthOf(dtype, 32 * 8))
              const storage = yield* engine.wrapHost(bytes)
              yield* engine.copy([{ dst: { ...theirs, device: storage.device, storage, byteOffset: 0 }, src: theirs }])
              assert.isTrue(bytes.every((byte) => byte === 41 - rank))
              return peers.map(({ reason }) => reason).join()
            })
        )
      )
      for (const exit of exits) {
        assert.isTrue(Exit.isSuccess(exit), String(exit))
        if (Exit.isSuccess(exit)) assert.include(exit.value, way)
      }
      assertClean()
    }
  )

  it("of different lengths are refused on every rank, and the next ones are not", { timeout: 60_000 }, async () => {
    const details = await onRanks("seed=7", 2, {}, (rank) =>
      Effect.gen(function* () {
        const driver = nvshmemOf(yield* CopyDriver)!
        const failed = yield* Effect.flip(driver.allocateSymmetric("uint8", [rank + 1]))
        const tensor = yield* driver.allocateSymmetric("float32", [4])
        return { detail: failed.reason.detail, shape: tensor.shape }
      })
    )
    assert.match(details[0]!.detail, /Rank 1 asks for 2 bytes .* this rank asks for 1/)
    assert.match(details[1]!.detail, /Rank 0 asks for 1 bytes .* this rank asks for 2/)
    assert.deepStrictEqual(details[0]!.shape, [4])
  })

  it("for which the heap has no room fail on every rank", { timeout: 60_000 }, async () => {
    const tags = await onRanks("seed=8", 2, {}, () =>
      Effect.gen(function* () {
        const driver = nvshmemOf(yield* CopyDriver)!
        const failed = yield* Effect.flip(driver.allocateSymmetric("uint8", [2 ** 44]))
        return failed.reason.detail
      })
    )
    for (const detail of tags) assert.include(detail, "no 17592186044416 bytes left")
  })
})
