// SPDX-License-Identifier: Apache-2.0
/**
 * Rules for MXFP4: numbers of float4_e2m1 and one power of two per 32 values of a row.
 *
 * Notation: amax is the largest magnitude of a block, m * 2^e with 1 <= m < 2; s the exponent of its scale; y a value over
 * the scale; f() one float32 operation, d() one in the type of the source. Codes saturate at 6. Rules differ in s, in what
 * becomes of ties, and in the sign of zero.
 *
 * Invariant: the bits are those of the named reference on a CPU.
 */
import { type MxBlock, named, quarterExponent, raisedByBits, raisedByLog } from "./mxRule.ts"
import {
  bitsOfFloat,
  e2m1Code,
  exponentByte,
  powerFloat,
  raisedByte,
  roundingOf,
  type SourceType,
  type Ties
} from "./numbers.ts"

const f = Math.fround

/** A code by what a value is over the scale. */
type Encode = (value: number, scaled: number) => number

/** Minus for what is below zero over the scale, also where it rounds to zero; NaN is zero. */
const belowZero: Encode = (_, scaled) =>
  Number.isNaN(scaled) ? 0 : (scaled < 0 ? 8 : 0) | e2m1Code(Math.abs(scaled), "even")

/** The sign bit of the value. A NaN that comes of infinity over infinity is negative, as x86 makes it. */
const signKept =
  (ties: Ties): Encode =>
  (value, scaled) => {
    const isMade = Number.isNaN(scaled) && !Number.isNaN(value)
    return (isMade ? 8 : (bitsOfFloat(value) >>> 28) & 8) | e2m1Code(Math.abs(scaled), ties)
  }

/** Only what is above zero over the scale has no sign bit: zero has it, and so has NaN, which is zero. */
const notAboveZero: Encode = (_, scaled) =>
  Number.isNaN(scaled) ? 8 : (scaled > 0 ? 0 : 8) | e2m1Code(Math.abs(scaled), "down")

/** Zero has no sign, and NaN is zero. */
const withoutMinusZero: Encode = (_, scaled) => {
  const code = Number.isNaN(scaled) ? 0 : e2m1Code(Math.abs(scaled), "down")
  return code !== 0 && scaled < 0 ? code | 8 : code
}

const over = (byte: number, scale: number, encode: Encode): MxBlock => ({
  byte,
  code: (value) => encode(value, f(value / scale))
})

const compressedTensors = (amax: number, dtype: SourceType): MxBlock | undefined => {
  const exponent = quarterExponent(amax, dtype)
  if (exponent === undefined) return undefined
  const round = roundingOf[dtype]
  // In float16 the smallest scale is zero, and 1 takes its place.
  const least = dtype === "float16" ? 0 : -127
  const power = exponent === Number.NEGATIVE_INFINITY ? least : Math.max(exponent - 2, -127)
  const scale = 2 ** power
  return { byte: power + 127, code: (value) => belowZero(value, round(f(value / scale))) }
}

const triton = (ties: Ties, byteOf: (amax: number) => number) => {
  const encode = signKept(ties)
  return (amax: number): MxBlock => {
    const byte = byteOf(amax)
    // Byte 0 stands for zero here, whose reciprocal is taken as zero, and 255 for infinity.
    return { byte, code: (value) => encode(value, byte === 0 ? value * 0 : f(value / powerFloat(byte - 127))) }
  }
}

/** Every rule by its name. */
export const mxfp4Rules = named({
  compressed_tensors: {
    reference: "compressed-tensors MXFP4; vLLM's test reference but for the sign of zero",
    formula:
      "s = e - 2 for m < 1.75, else e - 1, at least -127; y = d(x / 2^s), ties to even; below zero keeps its sign",
    block: compressedTensors
  },
  modelopt: {
    reference: "ModelOpt MXFP4QTensor",
    formula: "s = ceil(f(log2(f(amax / 6)))), at least -127; ties toward zero; every zero has the sign bit",
    block: (amax) => {
      const exponent = raisedByLog(f(amax / 6))
      // What is not finite has no byte; PyTorch makes 0 of it.
      return Number.isFinite(amax)
        ? over(Math.max(exponent, 0), powerFloat(Math.max(exponent, 0) - 127), notAboveZero)
        : over(0, amax, notAboveZero)
    }
  },
  triton_hf_up: {
    reference: "gpt-oss-triton-kernels of huggingface/kernels-community, rounding up",
    formula: "s = f(amax / 6) raised by its bits, byte 0 for zero; ties away from zero; sign kept",
    shortBlock: true,
    block: triton("up", (amax) => raisedByBits(f(amax / 6)))
  },
  triton_hf_down: {
    reference: "gpt-oss-triton-kernels of huggingface/kernels-community, rounding down",
    formula: "s = exponent of f(amax / 6); ties away from zero; sign kept",
    shortBlock: true,
    block: triton("up", (amax) => exponentByte(f(amax / 6)))
  },
  triton_up: {
    reference: "triton_kernels of triton-lang/triton, rounding up",
    formula: "s = f(amax / 6) raised by its bits, byte 0 for zero; ties to even; sign kept",
    shortBlock: true,
    block: triton("even", (amax) => raisedByBits(f(amax / 6)))
  },
  triton_down: {
    reference: "triton_kernels of triton-lang/triton, rounding down; the OCP text",
    formula: "s = e - 2; ties to even; sign kept",
    shortBlock: true,
    block: triton("even", (amax) => exponentByte(f(amax / 4)))
  },
  deepgemm: {
    reference: "DeepGEMM per_token_cast_to_fp4",
    formula: "s = f(max(amax, 1e-4) / 6) raised by its bits; ties toward zero; zero is never negative",
    shortBlock: true,
    block: (amax) => {
      const byte = Math.min(Math.max(raisedByte(f(Math.max(amax, f(1e-4)) / 6)), 1), 254)
      return over(byte, powerFloat(byte - 127), withoutMinusZero)
    }
  },
  te_ref: {
    reference: "Transformer Engine NVFP4QuantizerRef with pow_2_scales, called past its entry point",
    formula: "s = ceil(f(log2(f(amax / 6)))) from -127 to 127; ties to even; below zero keeps its sign",
    block: (amax) => {
      const byte = Number.isNaN(amax) ? 255 : Math.min(Math.max(raisedByLog(f(amax / 6)), 0), 254)
      return over(byte, byte === 255 ? Number.NaN : powerFloat(byte - 127), belowZero)
    }
  }
})

/** The rules that `mxfp4Rules` lists. */
export type Mxfp4RuleName = keyof typeof mxfp4Rules
