/**
 * Casts give the bits of PyTorch's `tensor.to`, wherever PyTorch defines them.
 */
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { assert, it } from "@effect/vitest"
import { checkCasts, RecordedCasts } from "@tensorferry/core/testing/golden/dtypeCasts"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { makeEngine } from "./support.ts"

const file = new URL("../../../golden/dtype_casts/dtype_casts.json.gz", import.meta.url)
const golden = Schema.decodeUnknownSync(RecordedCasts)(JSON.parse(gunzipSync(readFileSync(file)).toString()))

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
