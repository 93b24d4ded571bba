// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of casts: each rule of the contract as bits written down here, and all pairs of types against the reference.
 */

import { bitsOf, type DType, dtypes, isCastable, kindOf } from "@tensorferry/core/base/DType"
import { TensorEngine, type TensorEngineCapabilities } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import { type ElementCodec, elementCodec } from "../values/casts.ts"
import { check, type TensorEngineCase } from "./Case.ts"
import { expectElements, loadBytes, patternFor, place, setElements } from "./memory.ts"

const needsCast = (capabilities: TensorEngineCapabilities): string | undefined =>
  capabilities.cast ? undefined : "the engine does not convert element types"

const littleEndian = (dtype: DType, bits: ReadonlyArray<bigint>): Uint8Array => {
  const size = bitsOf(dtype) / 8
  const bytes = new Uint8Array(bits.length * size)
  for (const [at, value] of bits.entries()) {
    for (let byte = 0; byte < size; byte++) bytes[at * size + byte] = Number((value >> BigInt(8 * byte)) & 0xffn)
  }
  return bytes
}

/** A rule: patterns of the source type and what they become. */
interface Rule {
  readonly from: DType
  readonly to: DType
  readonly bits: ReadonlyArray<readonly [from: bigint, to: bigint]>
}

const castRule = Effect.fnUntraced(function* ({ from, to, bits }: Rule) {
  const engine = yield* TensorEngine
  for (const form of ["dense", "spread"] as const) {
    const src = yield* place(from, [bits.length], form)
    const dst = yield* place(to, [bits.length], form)
    yield* setElements(
      src,
      littleEndian(
        from,
        bits.map(([pattern]) => pattern)
      )
    )
    yield* engine.copy([{ dst: dst.tensor, src: src.tensor }])
    yield* expectElements(
      `Cast from ${from}`,
      dst,
      littleEndian(
        to,
        bits.map(([, pattern]) => pattern)
      )
    )
  }
})

const ruleCase = (name: string, rules: ReadonlyArray<Rule>): TensorEngineCase => ({
  name,
  requires: needsCast,
  program: Effect.scoped(Effect.forEach(rules, castRule, { discard: true }))
})

const edgeFloats32 = [
  0x0n,
  0x8000_0000n,
  0x1n,
  0x8000_0001n,
  0x0080_0000n,
  0x3f80_0000n,
  0xbf80_0000n,
  0x3f80_8000n,
  0x3f81_8000n,
  0x3eff_ffffn,
  0x3fff_ffffn,
  0xc000_0001n,
  0x4049_0fdbn,
  0x42fe_0000n,
  0x4300_0000n,
  0x437f_8000n,
  0x4380_0000n,
  0x43e0_0000n,
  0x43e8_0000n,
  0x4770_0000n,
  0x477f_e000n,
  0x477f_f000n,
  0x4f00_0000n,
  0xcf00_0000n,
  0x4f7f_ffffn,
  0x5f00_0000n,
  0x7f7f_ffffn,
  0xff7f_ffffn,
  0x7f80_0000n,
  0xff80_0000n,
  0x7fc0_0000n,
  0x7f80_0001n
]
const edgeFloats64 = [
  0x0n,
  0x8000_0000_0000_0000n,
  0x1n,
  0x3ff0_0000_0000_0000n,
  0xbff0_0000_0000_0000n,
  0x3ff0_1000_0000_0000n,
  0x3ff0_1000_0000_1000n,
  0x3ff8_0000_0000_0001n,
  0x3810_0000_0000_0000n,
  0x36a0_0000_0000_0000n,
  0x40ff_ffff_ffff_ffffn,
  0x41df_ffff_ffc0_0000n,
  0x41e0_0000_0000_0000n,
  0xc1e0_0000_0000_0000n,
  0x4330_0000_0000_0001n,
  0x47ef_ffff_e000_0000n,
  0x47ef_ffff_f000_0000n,
  0x7fef_ffff_ffff_ffffn,
  0x7ff0_0000_0000_0000n,
  0xfff0_0000_0000_0000n,
  0x7ff8_0000_0000_0000n
]

const edgeIntegers = (bits: number): ReadonlyArray<bigint> => {
  const top = 1n << BigInt(bits - 1)
  const values = [0n, 1n, 2n, 7n, 100n, 127n, top - 1n, top, top + 1n, 2n * top - 1n, 2n * top - 2n]
  const wide = [0x0100_0001n, 0x0100_0003n, 0x4000_0040_0000_0001n, 0x0020_0000_0000_0001n, 0x7fff_ffbf_ffff_ffffn]
  return [...values, ...wide].map((value) => value & (2n * top - 1n))
}

/** Patterns that show every rule: all of the narrow types, edges of the wide ones. */
const patternsOf = (dtype: DType): ReadonlyArray<bigint> => {
  const bits = bitsOf(dtype)
  if (dtype === "bool") return [0n, 1n]
  if (bits === 8) return Array.from({ length: 256 }, (_, at) => BigInt(at))
  if (bits === 16) return Array.from({ length: 1024 }, (_, at) => BigInt((at * 64 + (at % 67)) & 0xffff))
  if (dtype === "float32") return edgeFloats32
  if (dtype === "float64") return edgeFloats64
  return edgeIntegers(bits)
}

const castables = dtypes.filter((dtype) => elementCodec(dtype) !== undefined)

const isNaNPattern = (codec: ElementCodec, bytes: Uint8Array, at: number): boolean =>
  Number.isNaN(codec.read(new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), at))

/** One pair of types, all its patterns in one copy. A NaN may have any sign and payload. */
const castPair = Effect.fnUntraced(function* (from: DType, to: DType) {
  const engine = yield* TensorEngine
  const patterns = patternsOf(from)
  const src = yield* place(from, [patterns.length])
  const dst = yield* place(to, [patterns.length])
  const source = littleEndian(from, patterns)
  yield* setElements(src, source)
  yield* engine.copy([{ dst: dst.tensor, src: src.tensor }])
  const reader = elementCodec(from)!
  const writer = elementCodec(to)!
  const [fromSize, toSize] = [bitsOf(from) / 8, bitsOf(to) / 8]
  const expected = new Uint8Array(patterns.length * toSize)
  const view = new DataView(source.buffer)
  for (const at of patterns.keys()) {
    writer.write(new DataView(expected.buffer), at * toSize, reader.read(view, at * fromSize))
  }
  const start = dst.tensor.byteOffset
  const actual = (yield* loadBytes(dst.whole)).slice(start, start + expected.byteLength)
  for (const [at, pattern] of patterns.entries()) {
    const [got, wanted] = [actual, expected].map((bytes) =>
      Buffer.from(bytes.subarray(at * toSize, (at + 1) * toSize)).toString("hex")
    )
    if (got === wanted) continue
    const areNaN =
      kindOf(to) === "float" && isNaNPattern(writer, actual, at * toSize) && isNaNPattern(writer, expected, at * toSize)
    yield* check(
      areNaN,
      () => `${from} 0x${pattern.toString(16)} became ${to} with bytes ${got} instead of ${wanted} (first byte lowest).`
    )
  }
})

/** Floats to floats. */
const floats: ReadonlyArray<TensorEngineCase> = [
  ruleCase("rounds to nearest, ties to even", [
    {
      from: "float32",
      to: "bfloat16",
      bits: [
        [0x3f80_0000n, 0x3f80n],
        [0x3f80_8000n, 0x3f80n],
        [0x3f81_8000n, 0x3f82n],
        [0x3f80_8001n, 0x3f81n],
        [0x3f80_7fffn, 0x3f80n],
        [0x0000_8000n, 0x0000n],
        [0x0001_8000n, 0x0002n],
        [0x8000_0000n, 0x8000n]
      ]
    },
    {
      from: "float32",
      to: "float16",
      bits: [
        [0x3f80_0000n, 0x3c00n],
        [0x3f80_1000n, 0x3c00n],
        [0x3f80_3000n, 0x3c02n],
        [0x3f80_1001n, 0x3c01n],
        [0x3380_0000n, 0x0001n],
        [0x3300_0000n, 0x0000n],
        [0x3300_0001n, 0x0001n],
        [0x33c0_0000n, 0x0002n]
      ]
    },
    {
      from: "float32",
      to: "float8_e4m3fn",
      bits: [
        [0x3f80_0000n, 0x38n],
        [0x3f88_0000n, 0x38n],
        [0x3f98_0000n, 0x3an],
        [0x3b00_0000n, 0x01n],
        [0x3a80_0000n, 0x00n],
        [0x3b40_0000n, 0x02n],
        [0x8000_0000n, 0x80n]
      ]
    },
    {
      from: "float32",
      to: "float8_e5m2",
      bits: [
        [0x3f80_0000n, 0x3cn],
        [0x3f90_0000n, 0x3cn],
        [0x3fb0_0000n, 0x3en],
        [0x3f90_0001n, 0x3dn]
      ]
    },
    {
      from: "int32",
      to: "float32",
      bits: [
        [0x0100_0001n, 0x4b80_0000n],
        [0x0100_0003n, 0x4b80_0002n]
      ]
    }
  ]),
  ruleCase("takes narrow floats through float32, wide integers at once", [
    {
      from: "float64",
      to: "bfloat16",
      bits: [
        [0x3ff0_1000_0000_0000n, 0x3f80n],
        [0x3ff0_1000_0000_1000n, 0x3f80n],
        [0x3ff0_1000_2000_0000n, 0x3f81n]
      ]
    },
    { from: "int64", to: "float32", bits: [[0x4000_0040_0000_0001n, 0x5e80_0001n]] }
  ]),
  ruleCase("overflows float16, bfloat16 and float8_e5m2 to infinity", [
    {
      from: "float32",
      to: "float16",
      bits: [
        [0x477f_e000n, 0x7bffn],
        [0x477f_efffn, 0x7bffn],
        [0x477f_f000n, 0x7c00n],
        [0xc77f_f000n, 0xfc00n],
        [0x7f80_0000n, 0x7c00n]
      ]
    },
    {
      from: "float32",
      to: "bfloat16",
      bits: [
        [0x7f7f_ffffn, 0x7f80n],
        [0xff7f_ffffn, 0xff80n],
        [0x7f7f_7fffn, 0x7f7fn]
      ]
    },
    {
      from: "float32",
      to: "float8_e5m2",
      bits: [
        [0x4760_0000n, 0x7bn],
        [0x476f_ff00n, 0x7bn],
        [0x4770_0000n, 0x7cn],
        [0xff80_0000n, 0xfcn]
      ]
    }
  ]),
  ruleCase("saturates float8_e4m3fn at 448, infinity included", [
    {
      from: "float32",
      to: "float8_e4m3fn",
      bits: [
        [0x43e0_0000n, 0x7en],
        [0x43e0_8000n, 0x7en],
        [0x43e8_0000n, 0x7en],
        [0x4974_2400n, 0x7en],
        [0x7f80_0000n, 0x7en],
        [0xff80_0000n, 0xfen],
        [0xc3e1_0000n, 0xfen]
      ]
    },
    { from: "int32", to: "float8_e4m3fn", bits: [[1000n, 0x7en]] }
  ])
]

/** To and from integers and bool, and casts of regions. */
const integers: ReadonlyArray<TensorEngineCase> = [
  ruleCase("truncates floats to integers", [
    {
      from: "float32",
      to: "int32",
      bits: [
        [0x3ff3_3333n, 1n],
        [0xbff3_3333n, 0xffff_ffffn],
        [0x3f00_0000n, 0n],
        [0xbf00_0000n, 0n],
        [0x42c8_cccdn, 100n]
      ]
    },
    { from: "float32", to: "uint8", bits: [[0x4348_b333n, 200n]] },
    { from: "float64", to: "int64", bits: [[0xc00c_cccc_cccc_cccdn, 0xffff_ffff_ffff_fffdn]] },
    { from: "bfloat16", to: "int16", bits: [[0x4029n, 2n]] }
  ]),
  ruleCase("wraps integers", [
    {
      from: "int32",
      to: "int8",
      bits: [
        [300n, 44n],
        [128n, 0x80n]
      ]
    },
    { from: "int8", to: "uint8", bits: [[0xffn, 0xffn]] },
    { from: "int8", to: "int32", bits: [[0x80n, 0xffff_ff80n]] },
    { from: "uint8", to: "int8", bits: [[200n, 200n]] },
    { from: "int64", to: "int32", bits: [[0x1_0000_0005n, 5n]] },
    { from: "uint32", to: "int16", bits: [[65_543n, 7n]] },
    { from: "int32", to: "uint64", bits: [[0xffff_ffffn, 0xffff_ffff_ffff_ffffn]] }
  ]),
  ruleCase("takes bool as not zero", [
    {
      from: "float32",
      to: "bool",
      bits: [
        [0x3f00_0000n, 1n],
        [0n, 0n],
        [0x8000_0000n, 0n],
        [0x7fc0_0000n, 1n],
        [1n, 1n]
      ]
    },
    { from: "int32", to: "bool", bits: [[256n, 1n]] },
    { from: "int64", to: "bool", bits: [[0x1_0000_0000n, 1n]] },
    {
      from: "bool",
      to: "float32",
      bits: [
        [1n, 0x3f80_0000n],
        [0n, 0n]
      ]
    }
  ]),
  {
    name: "casts every pair of types like the reference",
    requires: needsCast,
    program: Effect.scoped(
      Effect.forEach(
        castables.flatMap((from) =>
          castables.filter((to) => to !== from && isCastable(from, to)).map((to) => [from, to] as const)
        ),
        ([from, to]) => Effect.scoped(castPair(from, to)),
        { discard: true }
      )
    )
  },
  {
    name: "casts strided regions in logical order",
    requires: needsCast,
    program: Effect.scoped(
      Effect.gen(function* () {
        const engine = yield* TensorEngine
        const src = yield* place("uint8", [7, 5], "transposed")
        const dst = yield* place("int16", [7, 5], "padded")
        const elements = patternFor(src.tensor, 3)
        yield* setElements(src, elements)
        yield* engine.copy([{ dst: dst.tensor, src: src.tensor }])
        yield* expectElements("Cast while transposing", dst, littleEndian("int16", [...elements].map(BigInt)))
      })
    )
  }
]

/** Casts between all element types, bit by bit. */
export const engineCastCases: ReadonlyArray<TensorEngineCase> = [...floats, ...integers]
