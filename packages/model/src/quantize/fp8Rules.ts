// SPDX-License-Identifier: Apache-2.0
/**
 * Rules for float8_e4m3fn with one scale per block, per row or per tensor. The layout is the same for all of them: what
 * differs is the floor of the maximum, the order of the divisions and the rounding of the scale.
 *
 * Notation: amax is the largest magnitude of a block, s the scale that values are multiplied by to read them, c what they
 * are multiplied by to write them, f() one float32 operation, d() one operation in the type of the source. A rule ends with
 * rounding to float8_e4m3fn, to nearest even, saturating at 448; NaN stays NaN.
 *
 * Invariant: the bits are those of the named reference on a CPU. `_cuda` names the same source on a GPU, where PyTorch
 * divides by a constant through its float32 reciprocal.
 */
import {
  bitsOfFloat,
  epsilonOf,
  floatOfBits,
  largestOf,
  log2Float,
  powerFloat,
  raisedByte,
  roundingOf,
  type SourceType
} from "./numbers.ts"

/** The scale of one block, and what each of its values becomes before it is rounded to a code. */
export interface Fp8Scaling {
  /** Representable in the type of the scales. */
  readonly scale: number
  /** A value in units of the scale, before it is rounded to a code. */
  readonly unit: (value: number) => number
}

/** One way to make scales and codes. */
export interface Fp8Rule {
  /** As it is written behind a form. */
  readonly name: Fp8RuleName
  /** Whose bits these are. */
  readonly reference: string
  /** In words, for documentation. */
  readonly formula: string
  /** Whether every scale is a power of two, so that one byte can hold it. */
  readonly isPower: boolean
  /** Whether scales have the type of the source; float32 otherwise. */
  readonly inSourceType?: true
  /** Whether the reference leaves weights alone that are no whole number of blocks. */
  readonly wholeBlocks?: true
  /** The scale of a block, from its largest magnitude. */
  readonly scaling: (amax: number, dtype: SourceType) => Fp8Scaling
}

const f = Math.fround
const top = 448
const reciprocalOfTop = f(1 / top)
const deepgemmFloor = f(1e-4)

/** By the reciprocal of the scale, as the kernels do. */
const multiplied = (scale: number): Fp8Scaling => {
  const factor = f(1 / scale)
  return { scale, unit: (value) => f(value * factor) }
}

const divided = (scale: number): Fp8Scaling => ({ scale, unit: (value) => f(value / scale) })

const written = (factor: number, scale: number): Fp8Scaling => ({ scale, unit: (value) => f(value * factor) })

/** At least `floor`; NaN stays NaN. */
const atLeast = (amax: number, floor: number): number => Math.max(amax, floor)

const overTop = (amax: number): number => f(amax / top)
const timesReciprocal = (amax: number): number => f(amax * reciprocalOfTop)

/** The next power of two by the bits; what is not finite gives 2^127. */
const raised = (scale: number): number => {
  const byte = Math.min(Math.max(raisedByte(scale), 1), 254)
  return powerFloat(byte - 127)
}

/** The next power of two by a float32 logarithm, which misses the step for scales a few units above one. */
const raisedByLog = (scale: number): number => powerFloat(Math.ceil(log2Float(scale)))

const slimeFloor: Readonly<Record<SourceType, number>> = {
  float32: roundingOf.float32(1e-12),
  bfloat16: roundingOf.bfloat16(f(1e-12)),
  float16: roundingOf.float16(f(1e-12))
}

const transformersFactor = (amax: number): number => (amax > 0 ? f(f(1 / amax) * top) : 1)

const transformerEngineFactor = (amax: number, dtype: SourceType): number => {
  if (amax === 0) return 1
  const factor = f(top / amax)
  return factor === Number.POSITIVE_INFINITY ? largestOf[dtype] : factor
}

const rules = {
  deepgemm_fp32: {
    reference: "DeepGEMM per_block_cast_to_fp8 and per_token_cast_to_fp8; vLLM per_block_cast_to_fp8",
    formula: "s = f(max(amax, 1e-4) / 448), x * f(1/s)",
    isPower: false,
    scaling: (amax) => multiplied(overTop(atLeast(amax, deepgemmFloor)))
  },
  deepgemm_fp32_cuda: {
    reference: "DeepGEMM per_block_cast_to_fp8 on a GPU",
    formula: "s = f(max(amax, 1e-4) * f(1/448)), x * f(1/s)",
    isPower: false,
    scaling: (amax) => multiplied(timesReciprocal(atLeast(amax, deepgemmFloor)))
  },
  deepgemm_ue8m0: {
    reference: "DeepGEMM with use_ue8m0; SGLang's copy of it",
    formula: "s = f(max(amax, 1e-4) / 448) raised to a power of two by its bits, x * f(1/s)",
    isPower: true,
    scaling: (amax) => multiplied(raised(overTop(atLeast(amax, deepgemmFloor))))
  },
  deepgemm_ue8m0_cuda: {
    reference: "DeepGEMM with use_ue8m0 on a GPU",
    formula: "s = f(max(amax, 1e-4) * f(1/448)) raised to a power of two by its bits, x * f(1/s)",
    isPower: true,
    scaling: (amax) => multiplied(raised(timesReciprocal(atLeast(amax, deepgemmFloor))))
  },
  vllm_ue8m0: {
    reference: "vLLM per_block_cast_to_fp8 with use_ue8m0",
    formula: "s = 2^ceil(f(log2(f(max(amax, 1e-4) / 448)))), x * f(1/s)",
    isPower: true,
    scaling: (amax) => multiplied(raisedByLog(overTop(atLeast(amax, deepgemmFloor))))
  },
  deepseek_v3_fp32: {
    reference: "DeepSeek-V3 act_quant, with IEEE division",
    formula: "s = f(max(amax, 1e-4) / 448), f(x / s)",
    isPower: false,
    scaling: (amax) => divided(overTop(atLeast(amax, deepgemmFloor)))
  },
  deepseek_v3_ue8m0: {
    reference: "DeepSeek-V3 act_quant with scale_fmt ue8m0, with IEEE division",
    formula: "s = 2^ceil(f(log2(f(max(amax, 1e-4) / 448)))), f(x / s)",
    isPower: true,
    scaling: (amax) => divided(raisedByLog(overTop(atLeast(amax, deepgemmFloor))))
  },
  slime_runtime: {
    reference: "slime and miles fp8_kernel.py, with IEEE division",
    formula: "s = f(max(amax, 1e-10) / 448), x * f(1/s)",
    isPower: false,
    scaling: (amax) => multiplied(overTop(atLeast(amax, f(1e-10))))
  },
  slime_offline: {
    reference: "slime convert_hf_to_fp8.py",
    formula: "s = f(max(amax, d(1e-12)) / 448), f(x / s)",
    isPower: false,
    scaling: (amax, dtype) => divided(overTop(atLeast(amax, slimeFloor[dtype])))
  },
  slime_offline_cuda: {
    reference: "slime convert_hf_to_fp8.py on a GPU",
    formula: "s = f(max(amax, d(1e-12)) * f(1/448)), f(x / s)",
    isPower: false,
    scaling: (amax, dtype) => divided(timesReciprocal(atLeast(amax, slimeFloor[dtype])))
  },
  miles_offline: {
    reference: "miles convert_hf_to_fp8.py",
    formula: "s = f(amax / 448), f(x / s)",
    isPower: false,
    scaling: (amax) => divided(overTop(amax))
  },
  transformers_fp32: {
    reference: "transformers Fp8Quantize",
    formula: "c = f(f(1/amax) * 448), 1 unless amax > 0; s = f(1/c), x * c",
    isPower: false,
    wholeBlocks: true,
    scaling: (amax) => {
      const factor = transformersFactor(amax)
      return written(factor, f(1 / factor))
    }
  },
  transformers_ue8m0: {
    reference: "transformers Fp8Quantize with scale_fmt ue8m0",
    formula: "s = 2^ceil(f(log2(max(f(1/c), 2^-126)))) with the c of transformers_fp32, x * f(1/s)",
    isPower: true,
    wholeBlocks: true,
    scaling: (amax) => {
      const scale = raisedByLog(atLeast(f(1 / transformersFactor(amax)), 2 ** -126))
      return multiplied(scale === Number.POSITIVE_INFINITY ? Number.NaN : scale)
    }
  },
  te_fp32: {
    reference: "Transformer Engine's test reference of Float8BlockQuantizer, eps 0, fp32 scales",
    formula: "c = f(448 / amax), 1 for a zero block, at most the largest number of the source; s = f(1/c), x * c",
    isPower: false,
    scaling: (amax, dtype) => {
      const factor = transformerEngineFactor(amax, dtype)
      return written(factor, f(1 / factor))
    }
  },
  te_pow2: {
    reference: "Transformer Engine's test reference of Float8BlockQuantizer, eps 0, power-of-two scales",
    formula: "the c of te_fp32 rounded down to a power of two, 0.5 for NaN; s = f(1/c), x * c",
    isPower: true,
    scaling: (amax, dtype) => {
      const factor = transformerEngineFactor(amax, dtype)
      const power = Number.isNaN(factor) ? 0.5 : floatOfBits(bitsOfFloat(factor) & 0x7f800000)
      return written(power, f(1 / power))
    }
  },
  compressed_tensors: {
    reference: "compressed-tensors, block strategy",
    formula: "s = d(amax / 448), epsilon of the source for 0; d(x / s); scales in the type of the source",
    isPower: false,
    inSourceType: true,
    scaling: (amax, dtype) => {
      const round = roundingOf[dtype]
      const quotient = round(overTop(amax))
      const scale = quotient === 0 ? epsilonOf[dtype] : quotient
      return { scale, unit: (value) => round(f(value / scale)) }
    }
  }
} as const satisfies { readonly [name: string]: Omit<Fp8Rule, "name"> }

/** The rules that `fp8Rules` lists. */
export type Fp8RuleName = keyof typeof rules

/** Every rule by its name. */
export const fp8Rules: { readonly [Name in Fp8RuleName]: Fp8Rule } = Object.fromEntries(
  Object.entries(rules).map(([name, rule]) => [name, { name, ...rule }])
) as { readonly [Name in Fp8RuleName]: Fp8Rule }
