/**
 * Random batches over every driver under many orders of the simulated device's work: poisoned destinations, three rounds,
 * new contents and new memory, and at the end nothing objected to and nothing left.
 */
import { assert, describe, it } from "@effect/vitest"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { runMembers } from "@tensorferry/core/testing"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import type { CudaOptions } from "../src/options.ts"
import type { DriverKind } from "../src/planning/route.ts"
import { assertClean, driverOf, engines, kinds, resetSimulator } from "./cluster.ts"
import { fillShare, judgeShare, makeRandom, makeShare, makeTransfers } from "./random.ts"

const seeds = process.env.TENSORFERRY_TEST_FULL === undefined ? 20 : 1000
const rounds = 3

/** One rank: the same batch three times, and then again in memory that was allocated anew. */
const rankProgram = (seed: number, ranks: number) => (rank: number) =>
  Effect.gen(function* () {
    const driver = yield* CopyDriver
    const engine = yield* TensorEngine
    const group = yield* ProcessGroup
    const wrong: Array<string> = []
    const transfers = makeTransfers(seed, ranks)
    const transfer = (generation: number) =>
      Effect.gen(function* () {
        const share = yield* makeShare(engine, transfers, rank)
        const program = yield* driver.prepare(share.messages)
        for (let round = 0; round < rounds; round++) {
          yield* fillShare(engine, share, generation * rounds + round)
          yield* group.barrier("filled")
          const running = yield* driver.start(program)
          yield* running.await
          yield* group.barrier("done")
          wrong.push(...(yield* judgeShare(engine, share, generation * rounds + round)))
          yield* group.barrier("judged")
        }
      })
    for (let generation = 0; generation < 2; generation++) yield* Effect.scoped(transfer(generation))
    return wrong
  })

const runSeed = async (kind: DriverKind, seed: number, options: CudaOptions = {}): Promise<void> => {
  const ranks = 2 + (seed % 3)
  resetSimulator(`seed=${seed}`)
  const layer = engines(options)
  const exits = await Effect.runPromise(
    runMembers({ size: ranks }, () => Layer.provideMerge(driverOf(kind, options), layer), rankProgram(seed, ranks))
  )
  for (const exit of exits) {
    if (Exit.isFailure(exit)) assert.fail(`${kind}, seed ${seed}: ${String(exit.cause)}`)
    assert.deepStrictEqual(exit.value, [], `${kind}, seed ${seed}`)
  }
  assertClean(`of ${kind}, seed ${seed}`)
}

describe.each(kinds)("%s", (kind) => {
  it(`moves ${seeds} random batches right`, { timeout: 60_000 + seeds * 3000 }, async () => {
    for (let seed = 1; seed <= seeds; seed++) {
      const random = makeRandom(seed)
      await runSeed(kind, seed, {
        stagingBytes: 2 ** (16 + random.below(4)),
        directBytes: 2 ** (10 + random.below(8)),
        copyEngineBytes: 2 ** (8 + random.below(10))
      })
    }
  })
})
