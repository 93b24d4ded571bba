// SPDX-License-Identifier: Apache-2.0
/** Steps that ranks take together: everybody hears everybody, and one failure is the failure of all. */
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import type { CopyDriverError } from "@tensorferry/core/service/CopyDriver"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type DriverAgreement, makeDriverAgreement } from "../../src/driver/DriverAgreement.ts"
import { type Checked, driverErrors } from "../../src/driver/DriverErrors.ts"
import { decodeOutcome } from "../../src/driver/Outcome.ts"

const size = 3
const decodeNumber = decodeOutcome(Schema.Int)
const errorsOf = (rank: number) => driverErrors("some", rank, { TransportFailed: "Mend rank by rank." })
const failed = (rank: number): Checked<never> =>
  Result.fail(errorsOf(rank).fail("TransportFailed", `Rank ${rank} could not.`, { op: "prepare" }))

/** The same step on all ranks, as fibers of this process. */
const onAll = <A>(step: (agreement: DriverAgreement, rank: number) => Effect.Effect<A, CopyDriverError>) =>
  Effect.gen(function* () {
    const groups = yield* makeInProcessGroups(size)
    return yield* Effect.forEach(
      groups,
      (group) => Effect.result(step(makeDriverAgreement(group, errorsOf(group.rank), "prepare"), group.rank)),
      { concurrency: "unbounded" }
    )
  })

const details = <A>(results: ReadonlyArray<Result.Result<A, CopyDriverError>>) =>
  results.map((result) => (Result.isFailure(result) ? result.failure.reason.detail : result.success))

describe("agreement", () => {
  it.live("gives every rank what all reported", () =>
    Effect.gen(function* () {
      const results = yield* onAll((agreement, rank) =>
        agreement.agree("numbers", Result.succeed(rank * 10), decodeNumber)
      )
      assert.deepStrictEqual(details(results), [
        [0, 10, 20],
        [0, 10, 20],
        [0, 10, 20]
      ])
    })
  )

  it.live("fails on every rank with the first failure by rank, as its rank stated it", () =>
    Effect.gen(function* () {
      const results = yield* onAll((agreement, rank) =>
        agreement.settle("done", rank === 0 ? Result.succeed("fine") : failed(rank))
      )
      assert.deepStrictEqual(details(results), Array(size).fill("Rank 1 could not."))
      for (const result of results) {
        assert.isTrue(Result.isFailure(result))
        if (Result.isSuccess(result)) continue
        assert.deepInclude(result.failure.reason, { rank: 1, backend: "some", remedy: "Mend rank by rank." })
      }
    })
  )

  it.live("names the rank whose report cannot be read", () =>
    Effect.gen(function* () {
      const results = yield* onAll((agreement, rank) =>
        rank === 2
          ? Effect.asVoid(agreement.gather("numbers", Uint8Array.of(1, 2, 3)))
          : Effect.asVoid(agreement.agree("numbers", Result.succeed(1), decodeNumber))
      )
      assert.isTrue(Result.isSuccess(results[2]!))
      for (const result of results.slice(0, 2)) {
        assert.isTrue(Result.isFailure(result))
        if (Result.isFailure(result)) assert.deepInclude(result.failure.reason, { _tag: "InvalidProgram", peer: 2 })
      }
    })
  )

  it.live("shares what rank 0 makes, or its failure", () =>
    Effect.gen(function* () {
      const absence = { detail: "Rank 0 could not begin.", op: "connect", byteLength: 2 }
      let made = 0
      const shared = yield* onAll((agreement) =>
        agreement.fromRoot(
          "identity",
          () => {
            made += 1
            return Result.succeed(Uint8Array.of(7, 8))
          },
          absence
        )
      )
      assert.strictEqual(made, 1)
      assert.deepStrictEqual(details(shared), Array(size).fill(Uint8Array.of(7, 8)))
      const refused = yield* onAll((agreement) => agreement.fromRoot("identity", () => failed(0), absence))
      assert.deepStrictEqual(details(refused), ["Rank 0 could not.", absence.detail, absence.detail])
    })
  )
})
