// SPDX-License-Identifier: Apache-2.0
/** Copies of what was sent: their budget, what makes room for others, and that none is compared with before it was written. */
import { assert, describe, it } from "@effect/vitest"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import { type BaselinePlace, makeBaselines } from "../../src/delta/Baselines.ts"
import { checksumOf } from "../../src/delta/hostBytes.ts"

const filled = Effect.fnUntraced(function* (elements: number, byte: number) {
  const engine = yield* TensorEngine
  const tensor = yield* engine.allocate("uint8", [elements])
  yield* engine.fill(tensor, byte)
  return tensor
})

const changesOf = Effect.fnUntraced(function* (positions: ReadonlyArray<number>, values: ReadonlyArray<number>) {
  const engine = yield* TensorEngine
  const list = {
    positions: yield* engine.allocate("uint32", [positions.length]),
    values: yield* engine.allocate("uint8", [values.length])
  }
  tensorBytes(list.positions)!.set(new Uint8Array(Uint32Array.from(positions).buffer))
  tensorBytes(list.values)!.set(values)
  return list
})

const withEngine = Effect.provide(ReferenceEngine.layer())

/** A host tensor as one that the host does not see. */
const hidden = (tensor: Tensor): Tensor => {
  const { bytes: _, ...storage } = tensor.storage
  return { ...tensor, storage }
}

describe("copies of what was sent", () => {
  it.effect.each(["source", "host"] as const)("are written whole, then by changes: %s", (place: BaselinePlace) =>
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const baselines = yield* makeBaselines(0, engine, { baselineBytes: 100, baselines: place })
      const region = yield* filled(10, 7)
      const copy = (yield* baselines.of("a", region))!
      assert.isFalse(copy.isFilled)
      yield* baselines.advance(copy, region, undefined)
      assert.isTrue(copy.isFilled)
      assert.deepStrictEqual([...tensorBytes(copy.tensor)!], Array(10).fill(7))
      assert.strictEqual(yield* baselines.of("a", region), copy)
      yield* baselines.advance(copy, region, yield* changesOf([2, 9], [1, 3]))
      assert.deepStrictEqual([...tensorBytes(copy.tensor)!], [7, 7, 1, 7, 7, 7, 7, 7, 7, 3])
      // The path of devices: the copy is not where the region is.
      if (place === "host") {
        yield* baselines.advance(copy, hidden(region), yield* changesOf([0], [5]))
        assert.strictEqual(tensorBytes(copy.tensor)![0], 5)
        const near = yield* baselines.near(copy, hidden(region))
        assert.notStrictEqual(near, copy.tensor)
        assert.deepStrictEqual(tensorBytes(near), tensorBytes(copy.tensor))
      }
    }).pipe(Effect.scoped, withEngine)
  )

  it.effect("take no more than their budget, and make room where they were of no use", () =>
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const baselines = yield* makeBaselines(0, engine, { baselineBytes: 25 })
      const region = yield* filled(10, 1)
      const [a, b] = [(yield* baselines.of("a", region))!, (yield* baselines.of("b", region))!]
      assert.strictEqual(baselines.bytes(), 20)
      assert.isUndefined(yield* baselines.of("c", region))
      a.useless = 1
      assert.isUndefined(yield* baselines.of("c", region))
      a.useless = 2
      const c = (yield* baselines.of("c", region))!
      assert.isFalse(c.isFilled)
      assert.isTrue(a.tensor.storage.isFreed())
      assert.isFalse(b.tensor.storage.isFreed())
      assert.strictEqual(baselines.bytes(), 20)
      // What went comes back as one that was never written.
      b.useless = 2
      const again = (yield* baselines.of("a", region))!
      assert.isFalse(again.isFilled)
      assert.isUndefined(yield* baselines.of("larger", yield* filled(30, 1)))
    }).pipe(Effect.scoped, withEngine)
  )
})

describe("checksums", () => {
  it.effect("tell every bit, the order of lists, and where one ends", () =>
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const tensor = yield* filled(64, 0)
      const bytes = tensorBytes(tensor)!
      for (let at = 0; at < bytes.length; at++) bytes[at] = (at * 37) & 0xff
      const right = yield* checksumOf(engine, [tensor])
      const seen = new Set([right])
      for (let bit = 0; bit < 8 * bytes.length; bit++) {
        bytes[bit >> 3]! ^= 1 << (bit & 7)
        seen.add(yield* checksumOf(engine, [tensor]))
        bytes[bit >> 3]! ^= 1 << (bit & 7)
      }
      assert.strictEqual(seen.size, 1 + 8 * bytes.length)
      assert.strictEqual(yield* checksumOf(engine, [tensor]), right)
      const cut = (from: number, length: number) => ({
        ...tensor,
        shape: [length],
        byteOffset: tensor.byteOffset + from
      })
      const ways = [
        [cut(0, 4), cut(4, 60)],
        [cut(4, 60), cut(0, 4)],
        [cut(0, 8), cut(8, 56)]
      ]
      const sums = yield* Effect.forEach(ways, (tensors) => checksumOf(engine, tensors))
      assert.strictEqual(new Set([right, ...sums]).size, 4)
      assert.isTrue([right, ...sums].every((sum) => Number.isInteger(sum) && sum >= 0 && sum < 2 ** 32))
    }).pipe(Effect.scoped, withEngine)
  )
})
