// SPDX-License-Identifier: Apache-2.0
/** Exchanges among the ranks of a group: what each rank gets, and which failure all of them get. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import {
  exchange,
  exchangePayloads,
  exchangeResults,
  jsonPayloads,
  type Payloads,
  type UnreadableAnswer
} from "../../src/group/Exchange.ts"
import { makeInProcessGroups } from "../../src/group/ProcessGroupInProcess.ts"
import type { ProcessGroupShape } from "../../src/service/ProcessGroup.ts"

const Free = Schema.Struct({ bytes: Schema.Natural, host: Schema.NullOr(Schema.String) })
const Refusal = Schema.Struct({ why: Schema.String })

/** What every rank of three ends with. */
const onAll = <A, E>(call: (group: ProcessGroupShape) => Effect.Effect<A, E>) =>
  Effect.scoped(
    Effect.flatMap(makeInProcessGroups(3), (groups) =>
      Effect.forEach(groups, (group) => Effect.result(call(group)), { concurrency: "unbounded" })
    )
  )

describe("exchange", () => {
  it.effect("gives every rank the values of all, by rank", () =>
    Effect.gen(function* () {
      const results = yield* onAll((group) =>
        exchange(group, "free", Free, { bytes: group.rank * 10, host: group.rank === 1 ? null : "h" })
      )
      const expected = [0, 1, 2].map((rank) => ({ bytes: rank * 10, host: rank === 1 ? null : "h" }))
      for (const result of results) assert.deepStrictEqual(result, Result.succeed(expected))
    })
  )

  it.effect("names the first rank whose answer does not decode, on every rank", () =>
    Effect.gen(function* () {
      const answers = ['{"bytes":1,"host":null}', '{"bytes":-1,"host":null}', "noise"]
      const raw: Payloads<number, ReadonlyArray<unknown>, UnreadableAnswer> = {
        ...jsonPayloads(Free),
        encode: (rank) => new TextEncoder().encode(answers[rank])
      }
      for (const result of yield* onAll((group) => exchangePayloads(group, "free", raw, group.rank))) {
        const error = Result.isFailure(result) ? result.failure : undefined
        assert.strictEqual(error?._tag === "UnreadableAnswer" && error.rank, 1)
      }
    })
  )

  it.effect("lets a rank whose own value the schema excludes take part, and names it", () =>
    Effect.gen(function* () {
      const results = yield* onAll((group) =>
        exchange(group, "free", Free, { bytes: group.rank === 2 ? Number.NaN : 1, host: null })
      )
      for (const result of results) {
        assert.strictEqual(Result.isFailure(result) && result.failure._tag, "UnreadableAnswer")
        if (Result.isFailure(result) && result.failure._tag === "UnreadableAnswer") {
          assert.strictEqual(result.failure.rank, 2)
        }
      }
    })
  )

  it.effect("passes failures of the group through", () =>
    Effect.gen(function* () {
      const results = yield* onAll((group) =>
        exchange(group, group.rank === 0 ? "free" : "other", Free, { bytes: 1, host: null })
      )
      for (const result of results) {
        assert.strictEqual(Result.isFailure(result) && result.failure._tag, "ProcessGroupError")
      }
    })
  )
})

describe("exchangeResults", () => {
  const schemas = { success: Free, failure: Refusal }
  const attempt = (failing: ReadonlyArray<number>) =>
    onAll((group) =>
      exchangeResults(
        group,
        "attempt",
        schemas,
        failing.includes(group.rank)
          ? Result.fail({ why: `rank ${group.rank}` })
          : Result.succeed({ bytes: group.rank, host: null })
      )
    )

  it.effect("gives every rank the values where all succeeded", () =>
    Effect.gen(function* () {
      const expected = [0, 1, 2].map((bytes) => ({ bytes, host: null }))
      for (const result of yield* attempt([])) assert.deepStrictEqual(result, Result.succeed(expected))
    })
  )

  it.effect("fails on every rank with the failure of the lowest rank that failed", () =>
    Effect.gen(function* () {
      for (const result of yield* attempt([2, 1])) assert.deepStrictEqual(result, Result.fail({ why: "rank 1" }))
    })
  )
})

describe("exchangePayloads", () => {
  const sum: Payloads<number, number, { readonly odd: number }> = {
    encode: (own) => Uint8Array.of(own),
    decodeAll: (payloads) => {
      const odd = payloads.findIndex((payload) => payload.byteLength !== 1)
      return odd < 0 ? Result.succeed(payloads.reduce((all, [one]) => all + one!, 0)) : Result.fail({ odd })
    }
  }

  it.effect("carries bytes of the caller's own, and its own failure", () =>
    Effect.gen(function* () {
      const summed = yield* onAll((group) => exchangePayloads(group, "sum", sum, group.rank + 1))
      for (const result of summed) assert.deepStrictEqual(result, Result.succeed(6))
      const longer = { ...sum, encode: (own: number) => new Uint8Array(own) }
      const failed = yield* onAll((group) => exchangePayloads(group, "sum", longer, group.rank === 1 ? 2 : 1))
      for (const result of failed) assert.deepStrictEqual(result, Result.fail({ odd: 1 }))
    })
  )
})
