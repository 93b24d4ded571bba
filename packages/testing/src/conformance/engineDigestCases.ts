// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of `TensorEngine.digest`: the bits of the algorithm for every type, length and form, parts that add up to the whole
 * whatever the layout, what must change a digest, and what is refused.
 */
import { bitsOf, byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, formatShape, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import { type DigestPart, TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type ElementDigest, formatElementDigest, sumOfDigests } from "@tensorferry/core/tensor/ElementDigest"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { blockFactor, wordFactor } from "@tensorferry/native/digest/hostDigest"
import * as Effect from "effect/Effect"
import { check, checkEqual, expectFailure, type TensorEngineCase } from "./Case.ts"
import { expectElements, type Form, patternBytes, place, setElements } from "./memory.ts"

/** The definition, word for word; `bits` are those of the last byte that count. */
const digestNaively = (bytes: Uint8Array, bits = 8): ElementDigest => {
  const sums = [0n, 0n]
  for (let word = 0; word * 4 < bytes.length; word++) {
    let value = 0n
    for (let at = 4 * word; at < Math.min(bytes.length, 4 * word + 4); at++) {
      const mask = at === bytes.length - 1 ? (1 << bits) - 1 : 0xff
      value |= BigInt(~bytes[at]! & mask) << BigInt(8 * (at % 4))
    }
    for (const half of [0, 1] as const) {
      const factor = wordFactor(half, word % 128) * blockFactor(half, Math.floor(word / 128))
      sums[half] = BigInt.asUintN(64, sums[half]! + value * factor)
    }
  }
  return (sums[1]! << 64n) | sums[0]!
}

const expectDigest = (what: string, actual: ElementDigest | undefined, expected: ElementDigest) =>
  checkEqual(
    `The digest of ${what}`,
    actual === undefined ? undefined : formatElementDigest(actual),
    formatElementDigest(expected)
  )

const digestOne = Effect.fnUntraced(function* (part: DigestPart) {
  const engine = yield* TensorEngine
  return (yield* engine.digest([part]))[0]!
})

/** A view of a region of a tensor, as a part of it. */
const partOf = (tensor: Tensor, origin: ReadonlyArray<number>, shape: Shape): DigestPart => ({
  tensor: {
    ...tensor,
    shape,
    byteOffset:
      tensor.byteOffset +
      (tensor.strides.reduce((sum, stride, dim) => sum + stride * origin[dim]!, 0) * bitsOf(tensor.dtype)) / 8
  },
  whole: tensor.shape,
  origin
})

const digestCase = (name: string, program: TensorEngineCase["program"]): TensorEngineCase => ({
  name,
  program: Effect.scoped(program)
})

const types: ReadonlyArray<DType> = ["uint8", "bfloat16", "float32", "float64", "bool", "float8_e8m0fnu", "complex64"]
const forms: ReadonlyArray<Form> = ["dense", "padded", "transposed", "spread"]

export const engineDigestCases: ReadonlyArray<TensorEngineCase> = [
  digestCase(
    "digests elements of every type and length by the stated algorithm",
    Effect.gen(function* () {
      for (const dtype of types) {
        const size = bitsOf(dtype) / 8
        for (const length of [0, 1, 2, 3, 5, 15, 16, 17, 63, 127, 128, 129, 255, 256, 257, 1000, 4096, 9001]) {
          const bytes = patternBytes(length * size, length)
          const placed = yield* place(dtype, [length])
          yield* setElements(placed, bytes)
          yield* expectDigest(`${length} ${dtype}`, yield* digestOne({ tensor: placed.tensor }), digestNaively(bytes))
          yield* expectElements(`${length} ${dtype} afterwards`, placed, bytes)
        }
      }
    })
  ),
  digestCase(
    "digests of known contents are these",
    Effect.gen(function* () {
      const tensor = (yield* place("uint8", [1])).tensor
      yield* expectDigest("nothing", yield* digestOne({ tensor: { ...tensor, shape: [0] } }), 0n)
      const bytes = Uint8Array.from({ length: 2000 }, (_, at) => at % 251)
      const placed = yield* place("uint8", [2000])
      yield* setElements(placed, bytes)
      yield* expectDigest(
        "2000 bytes that count to 250",
        yield* digestOne({ tensor: placed.tensor }),
        0xe9a758ee3e25414a779261eaec4cf680n
      )
    })
  ),
  digestCase(
    "digests of every form of memory are those of dense memory",
    Effect.gen(function* () {
      for (const dtype of ["uint8", "bfloat16", "float32", "float64"] as const) {
        for (const shape of [[37, 53], [3, 1, 5, 170], [300, 2], [1], []] as const) {
          const bytes = patternBytes(elementCount(shape) * (bitsOf(dtype) / 8), elementCount(shape))
          for (const form of forms) {
            const placed = yield* place(dtype, shape, form)
            yield* setElements(placed, bytes)
            const what = `${form} ${dtype}${formatShape(shape)}`
            yield* expectDigest(what, yield* digestOne({ tensor: placed.tensor }), digestNaively(bytes))
          }
        }
      }
    })
  ),
  digestCase(
    "digests of parts add up to the digest of the whole, whatever the layout",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const shape = [24, 5, 66]
      for (const dtype of ["uint8", "bfloat16", "float64"] as const) {
        const bytes = patternBytes(elementCount(shape) * (bitsOf(dtype) / 8), 3)
        const expected = digestNaively(bytes)
        for (const form of forms) {
          const placed = yield* place(dtype, shape, form)
          yield* setElements(placed, bytes)
          for (const [degree, dim] of [
            [4, 0],
            [5, 1],
            [6, 2],
            [66, 2]
          ] as const) {
            const length = shape[dim]! / degree
            const parts = Array.from({ length: degree }, (_, at) =>
              partOf(
                placed.tensor,
                shape.map((_, d) => (d === dim ? at * length : 0)),
                shape.map((all, d) => (d === dim ? length : all))
              )
            )
            const digests = yield* engine.digest(parts.reverse())
            yield* expectDigest(
              `${degree} parts of dimension ${dim}, ${form} ${dtype}`,
              sumOfDigests(digests),
              expected
            )
          }
        }
        const dense = (yield* place(dtype, shape)).tensor
        const parts = [partOf(dense, [0, 0, 0], [24, 5, 31]), partOf(dense, [0, 0, 31], [24, 5, 35])]
        const [both, one] = [sumOfDigests(yield* engine.digest(parts)), yield* digestOne({ tensor: dense })]
        yield* expectDigest("two uneven parts", both, one)
      }
    })
  ),
  digestCase(
    "digests large tensors, at any address",
    Effect.gen(function* () {
      const length = 2_100_011
      const bytes = patternBytes(length, 5)
      const expected = digestNaively(bytes)
      for (const first of [0, 1, 2, 4, 8]) {
        const placed = yield* place("uint8", [length + first])
        const all = new Uint8Array(length + first)
        all.set(bytes, first)
        yield* setElements(placed, all)
        const tensor = { ...placed.tensor, shape: [length], byteOffset: placed.tensor.byteOffset + first }
        yield* expectDigest(`bytes from ${first} on`, yield* digestOne({ tensor }), expected)
        const half = 1_000_003
        const [a, b] = [partOf(tensor, [0], [half]), partOf(tensor, [half], [length - half])]
        const engine = yield* TensorEngine
        yield* expectDigest(`halves from ${first} on`, sumOfDigests(yield* engine.digest([b, a])), expected)
      }
    })
  ),
  digestCase(
    "digests elements that share bytes",
    Effect.gen(function* () {
      for (const dtype of ["float4_e2m1fn", "float6_e3m2fn"] as const) {
        for (const shape of [[1], [7], [16, 24], [3, 5], [33, 31]] as const) {
          const count = elementCount(shape)
          const length = byteLengthOf(dtype, count)
          const bytes = patternBytes(length, count)
          const placed = yield* place(dtype, shape)
          yield* setElements(placed, bytes)
          const last = (count * bitsOf(dtype)) % 8
          yield* expectDigest(
            `${dtype}${formatShape(shape)}`,
            yield* digestOne({ tensor: placed.tensor }),
            digestNaively(bytes, last === 0 ? 8 : last)
          )
        }
        const tensor = (yield* place(dtype, [6, 16])).tensor
        const engine = yield* TensorEngine
        const columns = [partOf(tensor, [0, 0], [6, 4]), partOf(tensor, [0, 4], [6, 12])]
        yield* expectDigest(
          `columns of ${dtype}`,
          sumOfDigests(yield* engine.digest(columns)),
          yield* digestOne({ tensor })
        )
        const narrow = { tensor: { ...tensor, shape: [2, 5], strides: [5, 1] }, whole: [2, 10], origin: [0, 5] }
        yield* expectFailure("A part that begins inside a byte", engine.digest([narrow]), ["InvalidRequest"])
      }
    })
  ),
  digestCase(
    "digests change with any bit, with the order and with the place",
    Effect.gen(function* () {
      const length = 1500
      const base = patternBytes(length, 2)
      const seen = new Map<string, string>()
      const engine = yield* TensorEngine
      const note = Effect.fnUntraced(function* (what: string, bytes: Uint8Array, part: Partial<DigestPart> = {}) {
        const placed = yield* place("uint8", [bytes.length])
        yield* setElements(placed, bytes)
        const [digest] = yield* engine.digest([{ tensor: placed.tensor, ...part }])
        const text = formatElementDigest(digest!)
        yield* check(!seen.has(text), () => `${what} has the digest of ${seen.get(text)}.`)
        seen.set(text, what)
      })
      yield* note("the base", base)
      for (const at of [0, 1, 3, 511, 512, 1499]) {
        for (const bit of [0, 7]) {
          const bytes = base.slice()
          bytes[at]! ^= 1 << bit
          yield* note(`the base with bit ${bit} of byte ${at} turned`, bytes)
        }
      }
      const exchanged = base.slice()
      exchanged.set(base.subarray(512, 1024), 0)
      exchanged.set(base.subarray(0, 512), 512)
      yield* note("the base with two blocks exchanged", exchanged)
      yield* note("the base backwards", base.slice().reverse())
      yield* note("the base at another place", base, { whole: [2 * length], origin: [512] })
      yield* note("zeros", new Uint8Array(length))
      yield* note("more zeros", new Uint8Array(length + 1))
    })
  ),
  digestCase(
    "refuses parts that do not lie in their whole",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const tensor = (yield* place("bfloat16", [6, 4])).tensor
      for (const [what, part] of [
        ["A part that ends outside of the whole", { tensor, whole: [6, 7], origin: [0, 4] }],
        ["A part that begins before the whole", { tensor, whole: [9, 9], origin: [-1, 0] }],
        ["A whole of fewer dimensions", { tensor, whole: [24] }],
        ["An origin of fewer dimensions", { tensor, whole: [6, 4], origin: [0] }],
        ["A whole of no natural length", { tensor, whole: [6.5, 4] }],
        ["A whole of more than 2^53 bits", { tensor, whole: [2 ** 30, 2 ** 30] }],
        [
          "Elements outside of the storage",
          { tensor: { ...tensor, shape: [6000, 4], strides: rowMajorStrides([6000, 4]) } }
        ]
      ] as const) {
        yield* expectFailure(what, engine.digest([{ tensor }, part]), ["InvalidRequest"])
      }
      const freed = yield* Effect.scoped(Effect.map(place("bfloat16", [6, 4]), (placed) => placed.tensor))
      yield* expectFailure("Freed storage", engine.digest([{ tensor: freed }]), ["FreedStorage"])
      yield* checkEqual("The number of digests of no parts", (yield* engine.digest([])).length, 0)
    })
  )
]
