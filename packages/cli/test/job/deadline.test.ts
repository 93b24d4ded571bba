// SPDX-License-Identifier: Apache-2.0
/** Deadlines that users state, and reports that ranks exchange. */
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import { chooseDeadline, parseDeadline } from "../../src/job/deadline.ts"
import type { RankReport } from "../../src/job/JobSpec.ts"
import { exchangeReports } from "../../src/job/joinedReports.ts"

describe("deadlines", () => {
  it("are whole milliseconds within a day", () => {
    const good = [
      ["90", 90_000],
      ["0.1", 100],
      ["1.0004", 1000],
      ["86400", 86_400_000],
      ["2 minutes", 120_000],
      ["500 millis", 500]
    ] as const
    for (const [text, millis] of good) assert.deepStrictEqual(parseDeadline(text), Result.succeed(millis), text)
    const bad = ["Infinity", "nonsense", "0", "0.0005", "-1", "86401", "2 days", "1e9 days", "99999999999999 days", " "]
    for (const text of bad) {
      const parsed = parseDeadline(text)
      assert.isTrue(Result.isFailure(parsed), text)
      if (!Result.isFailure(parsed)) continue
      assert.strictEqual(parsed.failure.reason._tag, "InvalidUsage")
      assert.include(parsed.failure.message, `TENSORFERRY_DEADLINE is "${text}"`)
      assert.include(parsed.failure.reason.remedy, "2 minutes")
    }
  })

  it.effect("come from the flag, the environment, or are a minute", () =>
    Effect.gen(function* () {
      const choose = (flag: number | undefined, environment: string | undefined) =>
        Effect.provideService(
          chooseDeadline(Option.fromUndefinedOr(flag)),
          ConfigProvider.ConfigProvider,
          ConfigProvider.fromEnvRecord(environment === undefined ? {} : { TENSORFERRY_DEADLINE: environment })
        )
      assert.strictEqual(yield* choose(undefined, undefined), 60_000)
      assert.strictEqual(yield* choose(undefined, ""), 60_000)
      assert.strictEqual(yield* choose(undefined, "5"), 5_000)
      assert.strictEqual(yield* choose(2.5, "5"), 2_500)
      assert.strictEqual(yield* choose(2.5, undefined), 2_500)
      assert.strictEqual((yield* Effect.flip(choose(2.5, "soon"))).reason._tag, "InvalidUsage")
    })
  )
})

describe("reports of ranks that a launcher started", () => {
  const reportOf = (rank: number): RankReport => ({
    rank,
    sourceBytes: 1,
    destinationBytes: 2,
    seconds: { copy: 0.5 },
    copy: {
      backend: "torch-copy",
      rank,
      localBytes: 0,
      localOps: 0,
      remoteBytesSent: 0,
      remoteBytesReceived: 0,
      remoteOps: 0,
      messages: 0,
      stagingBytes: 0,
      reusedProgram: false,
      phases: { handshake: 0, prepare: 0, pack: 0, local: 0, transfer: 0, unpack: 0, writeback: 0, outcome: 0 },
      peers: []
    },
    waves: 1,
    bufferBytes: 0,
    backendReason: "",
    tensorsVerified: 0,
    tensorsTraced: 0,
    elementsTraced: 0,
    bytesVerified: 0,
    planDigest: "",
    rosterDigest: "",
    peakMemory: 1
  })

  /** What each of three ranks gets where rank 1 sends `payload` in place of its report. */
  const exchange = (payload: string | undefined) =>
    Effect.scoped(
      Effect.gen(function* () {
        const groups = yield* makeInProcessGroups(3)
        return yield* Effect.forEach(
          groups,
          (group) =>
            Effect.exit(
              group.rank === 1 && payload !== undefined
                ? Effect.as(group.allGather("reports", new TextEncoder().encode(payload)), [])
                : exchangeReports(group, reportOf(group.rank))
            ),
          { concurrency: "unbounded" }
        )
      })
    )

  it.live("arrive on every rank, by rank", () =>
    Effect.gen(function* () {
      for (const exit of yield* exchange(undefined)) {
        assert.deepStrictEqual(exit, Exit.succeed([reportOf(0), reportOf(1), reportOf(2)]))
      }
    })
  )

  it.live("that are none are refused by every other rank, naming the one", () =>
    Effect.gen(function* () {
      const { copy: _, ...rest } = reportOf(1)
      const wrong = ["", "{", "null", JSON.stringify(rest), JSON.stringify({ ...reportOf(1), sourceBytes: "1" })]
      for (const payload of wrong) {
        const exits = yield* exchange(payload)
        for (const rank of [0, 2]) {
          const error = yield* Effect.flip(exits[rank]!)
          assert.strictEqual(error.reason._tag, "ProtocolViolation", payload)
          assert.deepStrictEqual(error.ranks, [1])
        }
      }
    })
  )
})
