// SPDX-License-Identifier: Apache-2.0
/**
 * Copies and casts large enough to take every path of the native side: stores past the caches, tiles, threads, odd
 * addresses. The reference engine defines the bits. Run again with narrower kernels.
 */
import { readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { type Tensor, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import { loadAddon } from "../src/Addon.ts"
import { bytesOf, makeEngine, makeRandom, tensorOf, type View } from "./support.ts"

describe("kernels", () => {
  it.live("are the ones asked for", () =>
    Effect.gen(function* () {
      const { instructionSet } = yield* loadAddon
      const has = (feature: string): boolean => readFileSync("/proc/cpuinfo", "utf8").includes(` ${feature}`)
      const stated = process.env.TENSORFERRY_KERNELS
      const widest = has("avx512vl") && has("avx512dq") ? "avx512" : has("avx2") ? "avx2" : "baseline"
      const expected = stated === undefined ? widest : stated === "avx2" && widest === "baseline" ? widest : stated
      assert.strictEqual(instructionSet, expected)
    })
  )

  const casts: ReadonlyArray<readonly [DType, DType]> = [
    ["float32", "bfloat16"],
    ["bfloat16", "float32"],
    ["bfloat16", "float8_e4m3fn"],
    ["float16", "float32"],
    ["float8_e5m2", "float64"],
    ["int16", "float32"]
  ]

  for (const [from, to] of casts) {
    it.live(`casts ${from} to ${to} across the sides of a matrix`, () =>
      Effect.gen(function* () {
        const { engine } = yield* makeEngine({ threads: 2 })
        const reference = ReferenceEngine.make()
        for (const [rows, columns, byteOffset] of [
          [1, 1, 0],
          [257, 65, 0],
          [509, 131, 1],
          [256, 64, 64]
        ] as const) {
          const sourceBytes = rows * columns * (bitsOf(from) / 8) + byteOffset
          const bytes = makeRandom(rows).bytes(sourceBytes)
          const targets: Array<Tensor> = []
          for (const each of [engine, reference]) {
            const view = { shape: [rows, columns], strides: [columns, 1], byteOffset, byteLength: sourceBytes }
            const source = transposeTensor(yield* tensorOf(each, from, view, bytes), 0, 1)
            const byteLength = rows * columns * (bitsOf(to) / 8) + byteOffset
            const turned = { shape: [columns, rows], strides: [rows, 1], byteOffset, byteLength }
            const target = yield* tensorOf(each, to, turned, new Uint8Array(byteLength).fill(0xa5))
            yield* each.copy([{ dst: target, src: source }])
            targets.push(target)
          }
          assert.isTrue(Buffer.from(bytesOf(targets[0]!)).equals(bytesOf(targets[1]!)), `${rows} x ${columns}`)
        }
      })
    )
  }

  it.live("store past the caches without touching anything beside", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const reference = ReferenceEngine.make()
      // All in one batch, which writes more than 16 MiB: only then are stores different.
      const ballast = 2 ** 24
      const lengths = [0, 1, 511, 512, 513, 1023, 1024, 1025, 4093, 8191, 8192, 8193, 9001]
      // Around the lengths from which lines are taken in turn from several places, and the longest of such places.
      const long = [2 ** 16 - 1, 2 ** 16, 2 ** 16 + 1, 2 ** 17 + 97]
      const longest: Partial<Record<DType, ReadonlyArray<number>>> = {
        uint8: [...long, 2 ** 19, 2 ** 19 + 1087],
        float32: long,
        bfloat16: long
      }
      const from = yield* tensorOf(
        engine,
        "uint8",
        { shape: [ballast], strides: [1], byteOffset: 0, byteLength: ballast },
        makeRandom(1).bytes(4096)
      )
      const into = yield* engine.allocate("uint8", [ballast])
      const moves: Array<{ dst: Tensor; src: Tensor }> = [{ dst: into, src: from }]
      const expected: Array<readonly [Tensor, Tensor, string]> = []
      for (const [source, destination] of [
        ["uint8", "uint8"],
        ["float32", "bfloat16"],
        ["float32", "float16"],
        ["bfloat16", "float32"],
        ["bfloat16", "float8_e4m3fn"],
        ["int8", "int64"]
      ] as const) {
        for (const length of [...lengths, ...(longest[source] ?? [])]) {
          for (const byteOffset of [0, 1, 15, 63]) {
            const sourceLength = length * (bitsOf(source) / 8) + byteOffset
            const byteLength = length * (bitsOf(destination) / 8) + byteOffset + 9
            const bytes = makeRandom(length).bytes(sourceLength)
            const pair: Array<Tensor> = []
            for (const each of [engine, reference]) {
              const view = { shape: [length], strides: [1], byteOffset }
              const src = yield* tensorOf(each, source, { ...view, byteLength: sourceLength }, bytes)
              const poisoned = new Uint8Array(byteLength).fill(0xa5)
              const dst = yield* tensorOf(each, destination, { ...view, byteLength }, poisoned)
              if (each === engine) moves.push({ dst, src })
              else yield* reference.copy([{ dst, src }])
              pair.push(dst)
            }
            expected.push([pair[0]!, pair[1]!, `${source} -> ${destination}, ${length} at ${byteOffset}`])
          }
        }
      }
      yield* engine.copy(moves)
      for (const [mine, theirs, name] of expected) assert.deepStrictEqual(bytesOf(mine), bytesOf(theirs), name)
      assert.isTrue(Buffer.from(into.storage.bytes!).equals(from.storage.bytes!))
    })
  )

  it.live("take rows, and moves of one length, together", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine({ threads: 2 })
      const reference = ReferenceEngine.make()
      const ballast = 2 ** 24 + 1
      const from = yield* engine.allocate("uint8", [ballast])
      const into = yield* engine.allocate("uint8", [ballast])
      const moves: Array<{ dst: Tensor; src: Tensor }> = [{ dst: into, src: from }]
      const expected: Array<readonly [Tensor, Tensor, string]> = []
      const add = (view: View, target: View, name: string) =>
        Effect.gen(function* () {
          const bytes = makeRandom(view.byteLength).bytes(view.byteLength)
          const pair: Array<Tensor> = []
          for (const each of [engine, reference]) {
            const src = yield* tensorOf(each, "uint8", view, bytes)
            const dst = yield* tensorOf(each, "uint8", target, new Uint8Array(target.byteLength).fill(0xa5))
            if (each === engine) moves.push({ dst, src })
            else yield* reference.copy([{ dst, src }])
            pair.push(dst)
          }
          expected.push([pair[0]!, pair[1]!, name])
        })
      // Seven and eight rows and more, steps that are whole lines and others, rows of parts of lines and of many turns.
      for (const rows of [1, 7, 8, 17]) {
        for (const columns of [255, 256, 321, 1024, 4096 + 65]) {
          for (const [gap, byteOffset] of [
            [64 - (columns % 64), 0],
            [64 - (columns % 64), 1],
            [13, 63]
          ] as const) {
            const view = (step: number): View => ({
              shape: [rows, columns],
              strides: [step, 1],
              byteOffset,
              byteLength: rows * step + byteOffset + 9
            })
            yield* add(
              view(2 * columns + 3),
              view(columns + gap),
              `${rows} x ${columns}, ${gap} apart at ${byteOffset}`
            )
          }
        }
      }
      for (const length of [256, 300, 4096, 2 ** 16 - 1, 2 ** 16]) {
        for (let i = 0; i < 19; i++) {
          const view = (byteOffset: number): View => {
            return { shape: [length], strides: [1], byteOffset, byteLength: length + byteOffset + 9 }
          }
          yield* add(view(i % 3), view((7 * i) % 64), `${length}, number ${i}`)
        }
      }
      yield* engine.copy(moves)
      for (const [mine, theirs, name] of expected) {
        assert.isTrue(Buffer.from(bytesOf(mine)).equals(bytesOf(theirs)), name)
      }
    })
  )
})
