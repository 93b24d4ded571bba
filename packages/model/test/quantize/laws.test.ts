// SPDX-License-Identifier: Apache-2.0
/**
 * Laws of all quantizing rules over generated matrices: parts get the bytes of the whole, maxima of several senders join,
 * values stay within the bound of the form, and values that were read back stay what they are. Seeds are fixed;
 * TENSORFERRY_TESTS=soak runs many more.
 */
import { assert, describe, it } from "@effect/vitest"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Result from "effect/Result"
import fc from "fast-check"
import { type Block, blockCounts, joinMaxima, type Matrix, maximaOf } from "../../src/quantize/Matrix.ts"
import { type QuantizedMx, readMxfp4, readMxfp8 } from "../../src/quantize/mx.ts"
import { roundingOf, sourceTypes } from "../../src/quantize/numbers.ts"
import { type QuantizedNvfp4, readNvfp4 } from "../../src/quantize/nvfp4.ts"
import { nvfp4Rules } from "../../src/quantize/nvfp4Rules.ts"
import { type Quantized, type QuantizeRule, quantizeRules, ruleOf } from "../../src/quantize/rules.ts"
import { toFloats } from "../../src/values/codes.ts"

const options = (usual: number) => ({ seed: 20_261_129, numRuns: isSoak ? usual * 50 : usual })

/** Rows in whole tiles of 16, so that every rule cuts somewhere; magnitudes from 1/4 on, and zeros. */
const matrices: fc.Arbitrary<Matrix> = fc
  .record({
    dtype: fc.constantFrom(...sourceTypes),
    rows: fc.constantFrom(16, 32),
    columns: fc.constantFrom(32, 64, 96)
  })
  .chain(({ columns, dtype, rows }) => {
    const length = { minLength: rows * columns, maxLength: rows * columns }
    const spread = fc.float32Array({ min: -3e4, max: 3e4, noNaN: true, ...length })
    // Any mantissa for the largest of them.
    const even = fc
      .tuple(fc.uint32Array(length), fc.integer({ min: 2 ** 20, max: 2 ** 21 }))
      .map(([drawn, factor]) => Float32Array.from(drawn, (one) => (one / 2 ** 32 - 0.5) * (factor / 2 ** 15)))
    return fc.oneof(spread, even).map((drawn) => {
      const values = drawn.map((value) => (Math.abs(value) < 0.25 ? 0 : roundingOf[dtype](value)))
      return { values, rows, columns, dtype }
    })
  })

const part = ({ columns, dtype, values }: Matrix, rows: readonly [number, number], across = [0, columns]): Matrix => {
  const [left, right] = across as [number, number]
  const taken = Array.from({ length: rows[1] - rows[0] }, (_, row) => {
    const start = (rows[0] + row) * columns
    return [...values.subarray(start + left, start + right)]
  })
  return { values: Float32Array.from(taken.flat()), rows: taken.length, columns: right - left, dtype }
}

/** What shares a scale: small enough that a matrix has several. */
const fp8Block: Block = { rows: 4, columns: 16 }
const blockOf = ({ form, name }: QuantizeRule): Block => {
  if (form === "fp8") return fp8Block
  if (form === "nvfp4") return nvfp4Rules[name.slice("nvfp4/".length) as keyof typeof nvfp4Rules].group
  return { rows: 1, columns: 32 }
}

const made = (rule: QuantizeRule, matrix: Matrix, place: Parameters<QuantizeRule["quantize"]>[1] = {}): Quantized =>
  Result.getOrThrow(rule.quantize(matrix, { block: fp8Block, ...place }))

const valuesOf = ({ form, name }: QuantizeRule, quantized: Quantized, columns: number): Float32Array => {
  if (form === "nvfp4") return readNvfp4(quantized as QuantizedNvfp4, name.slice(6) as keyof typeof nvfp4Rules)
  if (form === "mxfp8") return readMxfp8(quantized as QuantizedMx)
  if (form === "mxfp4") return readMxfp4(quantized as QuantizedMx)
  return toFloats("float8_e4m3fn", quantized.data).map(
    (number, at) =>
      number *
      quantized.scales[Math.floor(at / columns / 4) * quantized.scaleShape[1] + Math.floor((at % columns) / 16)]!
  )
}

const rowsOfBytes = (bytes: Quantized["scales"], rows: number, [from, to]: readonly [number, number]) => {
  const width = bytes.length / rows
  return [...bytes.slice(from * width, to * width)]
}

/** Rows of data for which a scale stands; NVFP4 repeats those of its tiles. */
const rowsPerScale = (rule: QuantizeRule): number => (rule.form === "fp8" ? fp8Block.rows : 1)

const isWhole = ({ name }: QuantizeRule): boolean => name.startsWith("fp8/transformers")

/** By how much of its magnitude a value may move, saturation included; half of a subnormal step comes on top. */
const relativeBound = ({ form, name }: QuantizeRule): number => {
  if (name === "mxfp8/ocp_floor" || name === "mxfp8/triton_down") return 1 / 8
  if (name === "mxfp4/triton_down") return 1 / 4
  if (name === "mxfp4/triton_hf_down") return 1 / 2
  return form === "fp8" || form === "mxfp8" ? 1 / 16 : 1 / 5
}

/** Reading back and quantizing again gives other values: their scale is not that of the largest value they make. */
const notIdempotent = new Set([
  "fp8/deepgemm_fp32_cuda",
  "fp8/slime_offline_cuda",
  "fp8/transformers_fp32",
  "fp8/te_fp32",
  "mxfp8/compressed_tensors",
  "nvfp4/vllm"
])

const again = (rule: QuantizeRule, matrix: Matrix): readonly [Float32Array, Float32Array] => {
  const first = made(rule, matrix)
  const values = valuesOf(rule, first, matrix.columns)
  // A weight keeps its global scale.
  const keeps = rule.form === "nvfp4" && rule.name !== "nvfp4/vllm" ? { global: first.global! } : {}
  const second = made(rule, { ...matrix, values, dtype: "float32" }, keeps)
  return [values, valuesOf(rule, second, matrix.columns)]
}

describe("quantizing rules", { timeout: isSoak ? 900_000 : 60_000 }, () => {
  for (const rule of quantizeRules) {
    const block = blockOf(rule)

    it(`${rule.name} gives row ranges between blocks the bytes of the whole`, () => {
      const law = fc.property(matrices, fc.nat(), fc.nat(), (matrix, one, two) => {
        const steps = matrix.rows / block.rows
        const [low, high] = [one % (steps + 1), two % (steps + 1)].sort((a, b) => a - b) as [number, number]
        const rows = [low * block.rows, high * block.rows] as const
        const whole = made(rule, matrix)
        const amax = rule.form === "nvfp4" ? { amax: Math.max(...matrix.values.map(Math.abs)) } : {}
        const found = made(rule, part(matrix, rows), { origin: [rows[0], 0], ...amax })
        const per = rowsPerScale(rule)
        assert.deepStrictEqual([...found.data], rowsOfBytes(whole.data, matrix.rows, rows))
        const scaleRows = [rows[0] / per, rows[1] / per] as const
        assert.deepStrictEqual([...found.scales], rowsOfBytes(whole.scales, matrix.rows / per, scaleRows))
        assert.strictEqual(found.global, whole.global)
      })
      fc.assert(law, options(8))
    })

    it(`${rule.name} gives the same bytes by maxima that several senders joined`, () => {
      const law = fc.property(matrices, fc.nat(), fc.nat(), (matrix, row, column) => {
        // Four senders, whose borders cut blocks.
        const [r, c] = [row % (matrix.rows + 1), column % (matrix.columns + 1)]
        const none = { ...matrix, values: new Float32Array(matrix.values.length) }
        const parts = [
          [0, 0],
          [0, 1],
          [1, 0],
          [1, 1]
        ].map(([below, beside]) => {
          const values = matrix.values.map((value, at) => {
            const isBelow = Math.floor(at / matrix.columns) >= r
            const isBeside = at % matrix.columns >= c
            return Number(isBelow) === below && Number(isBeside) === beside ? value : 0
          })
          return maximaOf({ ...none, values }, block)
        })
        const maxima = parts.reduce(joinMaxima)
        assert.deepStrictEqual(maxima, maximaOf(matrix, block))
        assert.deepStrictEqual(made(rule, matrix, { maxima }), made(rule, matrix))
      })
      fc.assert(law, options(4))
    })

    it(`${rule.name} keeps values within the bound of its form`, () => {
      const law = fc.property(matrices, (matrix) => {
        const quantized = made(rule, matrix)
        const values = valuesOf(rule, quantized, matrix.columns)
        const largest = maximaOf(matrix, block)
        const across = blockCounts(matrix, block)[1]
        const [relative, isFour] = [relativeBound(rule), rule.form.endsWith("fp4")]
        // The smallest scale of a group of NVFP4 depends on the tensor; a group below it may vanish.
        const vanishing = rule.form === "nvfp4" ? (Math.max(...largest) / 2688) * 6 * 2 ** -10 * 1.01 : 0
        values.forEach((value, at) => {
          const [row, column] = [Math.floor(at / matrix.columns), at % matrix.columns]
          const amax = largest[Math.floor(row / block.rows) * across + Math.floor(column / block.columns)]!
          // A scale is at most three times what the largest value of the block needs.
          const step = isFour ? (amax / 6) * 3 * 0.25 : (amax / 448) * 3 * 2 ** -10
          const error = Math.abs(value - matrix.values[at]!)
          const bound = Math.max(Math.abs(matrix.values[at]!) * relative * 1.02, step) + vanishing
          assert.isAtMost(error, bound, `element ${at}: ${matrix.values[at]} became ${value}`)
        })
      })
      fc.assert(law, options(8))
    })

    if (!notIdempotent.has(rule.name)) {
      it(`${rule.name} keeps values that it made`, () => {
        const law = fc.property(matrices, (matrix) => {
          const [first, second] = again(rule, matrix)
          assert.isTrue(first.every((value, at) => value === second[at]))
        })
        fc.assert(law, options(8))
      })
    }
  }

  for (const rule of quantizeRules.filter(({ name }) => notIdempotent.has(name))) {
    it(`${rule.name} changes some values that it made`, () => {
      const isChanged = fc.sample(matrices, options(isSoak ? 20 : 200)).some((matrix) => {
        const [first, second] = again(rule, matrix)
        return first.some((value, at) => value !== second[at])
      })
      assert.isTrue(isChanged)
    })
  }

  for (const rule of quantizeRules.filter((one) => one.form === "fp8" && !isWhole(one))) {
    it(`${rule.name} gives any rectangle the codes of the whole by the maxima of its blocks`, () => {
      const cuts = fc.tuple(fc.nat(), fc.nat(), fc.nat(), fc.nat())
      const law = fc.property(
        matrices,
        cuts,
        fc.constantFrom(1, 5, 128),
        fc.constantFrom(7, Infinity),
        (matrix, cut, tall, wide) => {
          const own = { rows: tall, columns: wide }
          const [top, bottom] = [cut[0] % matrix.rows, 1 + (cut[1] % matrix.rows)].sort((a, b) => a - b) as [
            number,
            number
          ]
          const [left, right] = [cut[2] % matrix.columns, 1 + (cut[3] % matrix.columns)].sort((a, b) => a - b) as [
            number,
            number
          ]
          const whole = Result.getOrThrow(rule.quantize(matrix, { block: own }))
          const all = maximaOf(matrix, own)
          const across = blockCounts(matrix, own)[1]
          const inner = part(matrix, [top, bottom], [left, right])
          const touched = blockCounts(inner, own, [top, left])
          const first = [Math.floor(top / tall), wide === Infinity ? 0 : Math.floor(left / wide)] as const
          const maxima = Float32Array.from({ length: touched[0] * touched[1] }, (_, at) => {
            const [row, column] = [Math.floor(at / touched[1]), at % touched[1]]
            return all[(first[0] + row) * across + first[1] + column]!
          })
          const found = Result.getOrThrow(rule.quantize(inner, { block: own, origin: [top, left], maxima }))
          const expected = Array.from({ length: bottom - top }, (_, row) => {
            const start = (top + row) * matrix.columns
            return [...whole.data.subarray(start + left, start + right)]
          })
          assert.deepStrictEqual([...found.data], expected.flat())
        }
      )
      fc.assert(law, options(8))
    })
  }
})

describe("names of rules", () => {
  it("lead to their rule, and others to the list", () => {
    for (const rule of quantizeRules) assert.strictEqual(Result.getOrThrow(ruleOf(rule.name)), rule)
    const unknown = ruleOf("fp8/nobody")
    assert.isTrue(Result.isFailure(unknown) && unknown.failure.length === quantizeRules.length)
  })
})
