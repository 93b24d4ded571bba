// SPDX-License-Identifier: Apache-2.0
/**
 * Casts give the bits of PyTorch's `tensor.to`, wherever PyTorch defines them.
 */
import { assert, it } from "@effect/vitest"
import { checkCasts, RecordedCasts } from "@tensorferry/golden/dtypeCasts"
import { readGolden } from "@tensorferry/golden/readGolden"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { makeEngine } from "./support.ts"

const golden = Schema.decodeUnknownSync(RecordedCasts)(readGolden("dtype_casts"))

it.live("casts agree with every recorded pair of types, and with all inputs of 16-bit types", () =>
  Effect.gen(function* () {
    const { engine } = yield* makeEngine()
    const verdicts = yield* checkCasts(engine, golden)
    assert.strictEqual(verdicts.length, golden.casts.length + golden.exhaustive16.length)
    assert.deepStrictEqual(
      verdicts.filter((verdict) => verdict.fault !== undefined),
      []
    )
  }).pipe(Effect.scoped)
)
