// SPDX-License-Identifier: Apache-2.0
/** What a client says beside a tensor's payload: its name and how it lies, around every payload that PyTorch was recorded to send. */
import { readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import type { RecordedPayloads } from "@tensorferry/golden/busMessages"
import { goldenPath } from "@tensorferry/golden/readGolden"
import * as Result from "effect/Result"
import { encodeOwnPayload } from "../../src/payload/OwnPayload.ts"
import { decodeTensorPayload } from "../../src/payload/TensorCodec.ts"
import type { Value } from "../../src/wire/Value.ts"

const { tensors } = JSON.parse(readFileSync(goldenPath("bus_payloads/payloads.json"), "utf8")) as RecordedPayloads
const pickles = tensors.map(({ name, pickle }) => [name, new Uint8Array(Buffer.from(pickle, "hex"))] as const)

const named = (payload: Uint8Array, more: { readonly [field: string]: Value } = {}) =>
  encodeOwnPayload({ _tag: "NamedTensor", name: "layers.0.weight", payload, ...more })

describe("a named tensor", () => {
  it.each(pickles)("around %s is that tensor, with a name and placements", (_, pickle) => {
    const plain = Result.getOrThrow(decodeTensorPayload(pickle))
    assert.isNull(plain.name)
    const placements = [{ _tag: "StridedShard", dim: 0, splitFactor: 2, uneven: "ceil-of-ceil" }, { _tag: "Replicate" }]
    const read = Result.getOrThrow(decodeTensorPayload(named(pickle, { placements })))
    assert.deepStrictEqual(read.payload, plain.payload)
    assert.strictEqual(read.name, "layers.0.weight")
    assert.deepStrictEqual(read.placements as unknown, placements)
  })

  it("within another, without a name, or with what is no placement is refused", () => {
    const [, pickle] = pickles[0]!
    const refused = [
      named(named(pickle)),
      named(pickle, { name: "" }),
      named(pickle, { name: "x".repeat(2_000) }),
      named(pickle, { placements: [{ _tag: "Diagonal" }] }),
      named(pickle, { placements: Array.from({ length: 33 }, () => ({ _tag: "Replicate" })) }),
      named(pickle, { surplus: 1 }),
      named(new Uint8Array(0))
    ]
    for (const payload of refused) assert.isTrue(Result.isFailure(decodeTensorPayload(payload)))
  })
})
