// SPDX-License-Identifier: Apache-2.0
/**
 * Rules for MXFP8: numbers of float8_e4m3fn and one power of two per 32 values of a row. `ocp_floor`, `rceil` and `rceil_te`
 * are those that the device kernels have.
 *
 * Notation: amax is the largest magnitude of a block, m * 2^e with 1 <= m < 2; s the byte of its scale 2^(s - 127); f() one
 * float32 operation, d() one in the type of the source. Codes round to nearest even and saturate at 448; NaN stays NaN.
 *
 * Invariant: the bits are those of the named reference on a CPU.
 */
import { type MxBlock, named, quarterExponent, raisedByBits, raisedByLog } from "./mxRule.ts"
import { bitsOfFloat, e4m3Code, exponentByte, powerFloat, raisedByte, roundingOf, type SourceType } from "./numbers.ts"

const f = Math.fround
const reciprocalOfTop = f(1 / 448)
const nanBlock: MxBlock = { byte: 255, code: () => 0x7f }

const multiplied = (byte: number, factor = 2 ** (127 - byte)): MxBlock => ({
  byte,
  code: (value) => e4m3Code(f(value * factor))
})

/** Rounded up; a subnormal rounds to 2^-126 only above 2^-127. */
const ceiling = (quotient: number): number => {
  const bits = bitsOfFloat(quotient)
  return bits >>> 23 === 0 ? Number(bits > 0x400000) : raisedByte(quotient)
}

const compressedTensors = (amax: number, dtype: SourceType): MxBlock | undefined => {
  const exponent = quarterExponent(amax, dtype)
  if (exponent === undefined) return undefined
  const round = roundingOf[dtype]
  // In float16 the smallest scale is zero, and 1 takes its place.
  const least = dtype === "float16" ? 0 : -127
  const power = exponent === Number.NEGATIVE_INFINITY ? least : Math.max(exponent - 8, -127)
  const scale = 2 ** power
  return { byte: power + 127, code: (value) => e4m3Code(round(f(value / scale))) }
}

const triton = (byteOf: (amax: number) => number) => (amax: number) => {
  const byte = byteOf(amax)
  // Byte 0 stands for zero here, whose reciprocal is taken as zero, and 255 for infinity.
  const scale = powerFloat(byte - 127)
  return { byte, code: (value: number) => e4m3Code(byte === 0 ? value * 0 : f(value / scale)) }
}

/** Every rule by its name. */
export const mxfp8Rules = named({
  ocp_floor: {
    reference: "OCP MX 1.0, section 6.3; torchao FLOOR",
    formula: "s = e - 8 + 127, 0 for zero and subnormal; infinite and NaN blocks are NaN",
    block: (amax) => (Number.isFinite(amax) ? multiplied(Math.max((bitsOfFloat(amax) >>> 23) - 8, 0)) : nanBlock)
  },
  rceil: {
    reference: "torchao RCEIL",
    formula: "s = f(amax * f(1/448)) raised by its bits; infinite and NaN blocks are NaN",
    block: (amax) => (Number.isFinite(amax) ? multiplied(ceiling(f(amax * reciprocalOfTop))) : nanBlock)
  },
  rceil_te: {
    reference: "Transformer Engine's software path, as published",
    formula: "as rceil, at most 254, also for an infinite block; with s = 0 values are multiplied by 1",
    block: (amax) => {
      if (Number.isNaN(amax)) return nanBlock
      const byte = Math.min(ceiling(f(amax * reciprocalOfTop)), 254)
      return byte === 0 ? multiplied(0, 1) : multiplied(byte)
    }
  },
  compressed_tensors: {
    reference: "compressed-tensors MXFP8QuantizationCompressor",
    formula: "s = e - 8 + 127 for m < 1.75, else e - 7 + 127; d(x / 2^(s - 127))",
    block: compressedTensors
  },
  modelopt: {
    reference: "ModelOpt MXFP8QTensor",
    formula: "s = ceil(f(log2(f(amax / 448)))) + 127 from 0 to 254, 0 for NaN; f(x * 2^(127 - s))",
    shortBlock: true,
    block: (amax) => {
      const byte = Number.isNaN(amax) ? 0 : Math.min(Math.max(raisedByLog(f(amax / 448)), 0), 254)
      return multiplied(byte)
    }
  },
  vllm_torch: {
    reference: "vLLM _mxfp8_e4m3_quantize_torch",
    formula: "s = ceil(f(log2(f(max(amax, 2^-126) / 448)))) + 127 from 0 to 254; f(x / 2^(s - 127))",
    block: (amax) => {
      if (Number.isNaN(amax)) return { ...nanBlock, byte: 0 }
      const byte = Math.min(Math.max(raisedByLog(f(Math.max(amax, 2 ** -126) / 448)), 0), 254)
      const scale = powerFloat(byte - 127)
      return { byte, code: (value) => e4m3Code(f(value / scale)) }
    }
  },
  triton_up: {
    reference: "triton_kernels of triton-lang/triton, rounding up",
    formula: "s = f(amax / 448) raised by its bits; 0 for zero, and its codes are zero",
    shortBlock: true,
    block: triton((amax) => raisedByBits(f(amax / 448)))
  },
  triton_down: {
    reference: "triton_kernels of triton-lang/triton, rounding down",
    formula: "s = exponent byte of f(amax / 256); 0 for zero, and its codes are zero",
    shortBlock: true,
    block: triton((amax) => exponentByte(f(amax / 256)))
  }
})

/** The rules that `mxfp8Rules` lists. */
export type Mxfp8RuleName = keyof typeof mxfp8Rules
