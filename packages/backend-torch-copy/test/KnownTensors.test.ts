// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors that were copied before are not examined again: what still has to be noticed about them.
 */
import { assert, describe, it } from "@effect/vitest"
import { type Tensor, tensorView, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { bytesOf, filled, makeEngine, makeRandom } from "./support.ts"

/** The same memory as another tensor. */
const viewOf = (tensor: Tensor, dtype: Tensor["dtype"], shape: ReadonlyArray<number>): Tensor =>
  Result.getOrThrow(tensorView(tensor.storage, dtype, shape))

describe("tensors copied before", () => {
  it.live("are refused for another shape of as many bytes", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const [long, other] = [yield* filled(engine, "uint8", [8], 1), yield* filled(engine, "uint8", [8], 2)]
      const [flat, tall] = [yield* filled(engine, "uint8", [2, 4], 3), yield* filled(engine, "uint8", [4, 2], 4)]
      yield* engine.copy([
        { dst: other, src: long },
        { dst: viewOf(flat, "uint8", [8]), src: long }
      ])
      yield* engine.copy([{ dst: flat, src: flat }])
      yield* engine.copy([{ dst: tall, src: tall }])
      for (const [dst, src] of [
        [long, flat],
        [flat, long],
        [flat, tall]
      ] as const) {
        const { reason } = yield* Effect.flip(engine.copy([{ dst, src }]))
        assert.strictEqual(reason._tag, "InvalidRequest")
      }
    })
  )

  it.live("are cast where their types differ, though their bytes are as many", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const [floats, integers] = [yield* filled(engine, "float32", [3], 0xa5), yield* filled(engine, "int32", [3], 0)]
      new Int32Array(integers.storage.bytes!.buffer, integers.storage.bytes!.byteOffset, 3).set([1, -2, 3])
      yield* engine.copy([{ dst: floats, src: floats }])
      yield* engine.copy([{ dst: integers, src: integers }])
      yield* engine.copy([{ dst: floats, src: integers }])
      assert.deepStrictEqual([...new Float32Array(bytesOf(floats).buffer, 0, 3)], [1, -2, 3])
    })
  )

  it.live("are refused once their memory is freed, whichever side they are", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const kept = yield* filled(engine, "uint8", [512], 0x11)
      const scope = yield* Scope.make()
      const freed = yield* Scope.provide(filled(engine, "uint8", [512], 0x22), scope)
      yield* engine.copy([{ dst: freed, src: kept }])
      yield* Scope.close(scope, Exit.void)
      for (const move of [
        { dst: freed, src: kept },
        { dst: kept, src: freed }
      ]) {
        const { reason } = yield* Effect.flip(engine.copy([move]))
        assert.strictEqual(reason._tag, "FreedStorage")
      }
      assert.isTrue(bytesOf(kept).every((byte) => byte === 0x11))
    })
  )

  it.live("go where they belong in a new list, in another order, among other views and wrapped memory", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine({ threads: 2 })
      const random = makeRandom(7)
      const count = 200
      const pairs: Array<{ readonly dst: Tensor; readonly src: Tensor; readonly turned: boolean }> = []
      for (let i = 0; i < count; i++) {
        const bytes = random.bytes(64)
        const storage = i % 9 === 0 ? yield* engine.wrapHost(bytes) : undefined
        const src =
          storage === undefined
            ? yield* engine.allocate("uint8", [8, 8])
            : Result.getOrThrow(tensorView(storage, "uint8", [8, 8]))
        if (storage === undefined) src.storage.bytes!.set(bytes)
        pairs.push({ dst: yield* engine.allocate("uint8", [8, 8]), src, turned: i % 5 === 0 })
      }
      const movesOf = (list: typeof pairs) =>
        list.map(({ dst, src, turned }) => ({ dst, src: turned ? transposeTensor(src, 0, 1) : src }))
      for (const list of [pairs, pairs.toReversed(), pairs.filter((_, i) => i % 3 !== 0)]) {
        for (const { dst } of list) dst.storage.bytes!.fill(0xa5)
        yield* engine.copy(movesOf(list))
        for (const { dst, src, turned } of list) {
          const from = bytesOf(src)
          const expected = Uint8Array.from(from, (byte, at) =>
            turned ? from[(at % 8) * 8 + Math.floor(at / 8)]! : byte
          )
          assert.deepStrictEqual(bytesOf(dst), expected)
        }
      }
    })
  )
})
