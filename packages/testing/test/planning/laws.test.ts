// SPDX-License-Identifier: Apache-2.0
/** What a property made of laws says where one is violated. */
import { assert, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { holds } from "../../src/planning/laws.ts"

const Count = Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 50 })))
const lines = (count: number) => Array.from({ length: count }, (_, at) => `rank ${at}: element 0 is written 2 times`)

it.effect("a falsified law names its violations beside the smallest input, not only that it returned false", () =>
  Effect.gen(function* () {
    const verdict = yield* Arbitrary.checkEffect(Count, (count) => holds([], lines(count < 7 ? 0 : count)), {
      runs: 200,
      seed: "laws"
    })
    const text = Arbitrary.formatCheckFailure(verdict) ?? ""
    assert.include(text, "Shrunk input: 7")
    assert.include(text, "rank 0: element 0 is written 2 times; rank 1: ")
    assert.include(text, "and 2 more")
    assert.notInclude(text, "returned false")
  })
)

it.effect("laws without a violation hold", () =>
  Effect.gen(function* () {
    assert.isTrue(yield* holds([], []))
  })
)
