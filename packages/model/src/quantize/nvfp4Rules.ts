// SPDX-License-Identifier: Apache-2.0
/**
 * Rules for NVFP4: numbers of float4_e2m1, a float8_e4m3fn scale per group of 16 along a row, and one float32 for all.
 *
 * Notation: amax is the largest magnitude of the tensor, or of all that share its global scale; b that of a group; s the
 * group's scale; f() one float32 operation, d() one in the type of the source, e() rounding to float8_e4m3fn, saturating at
 * 448. An element rounds to float4_e2m1, to nearest even, saturating at 6; a negative one that becomes zero keeps its sign,
 * minus zero does not.
 *
 * Invariant: the bits are those of the named reference on a CPU. `_cuda` names the same source on a GPU.
 */
import type { Block } from "./Matrix.ts"
import { e4m3Code, e4m3Values, largestFloat32, roundingOf, type SourceType, tiniestOf } from "./numbers.ts"

/** A group's scale as its code, and what each of its values becomes before it is rounded. */
export interface Nvfp4Group {
  /** The group's scale as it is stored. */
  readonly code: number
  /** A value in units of the group's scale, before it is rounded to a code. */
  readonly unit: (value: number) => number
}

/** What the global scale settles for all groups. */
export interface Nvfp4Scaling {
  /** As it is stored. What it means is the rule's `global`. */
  readonly global: number
  /** The scale of a group, from its largest magnitude. */
  readonly group: (largest: number) => Nvfp4Group
  /** A second way to scale a group, taken where it has the smaller error. */
  readonly other?: (largest: number) => Nvfp4Group
}

/** One way to make global scales, group scales and codes. */
export interface Nvfp4Rule {
  /** As it is written behind a form. */
  readonly name: Nvfp4RuleName
  /** Whose bits these are. */
  readonly reference: string
  /** In words, for documentation. */
  readonly formula: string
  /** What is stored for the whole tensor. */
  readonly global: "multiplier" | "divisor" | "amax"
  /** What shares a scale. Scales are stored once for each row and 16 columns all the same. */
  readonly group: Block
  /** Whether the last group of a row may be short. */
  readonly shortGroup?: true
  /** The code of a NaN where the reference gives it one; others are refused. */
  readonly nanCode?: number
  /** The global scale, from the tensor's largest magnitude. */
  readonly scaling: (amax: number, dtype: SourceType) => Nvfp4Scaling
  /** The same from a global scale that was stored before, where that one says enough. */
  readonly stored?: (global: number, dtype: SourceType) => Nvfp4Scaling
  /** What a number of float4_e2m1 stands for under a group's scale and the stored global scale. */
  readonly read: (number: number, scale: number, global: number) => number
}

const f = Math.fround
const groupOf16 = { rows: 1, columns: 16 }
const sixth = f(1 / 6)
const reciprocalOf2688 = f(1 / 2688)
const valueOf = (code: number): number => e4m3Values[code]!

const modelopt = (global: number): Nvfp4Scaling => ({
  global,
  group: (largest) => {
    const quotient = f(largest / f(6 * global))
    const code = e4m3Code(quotient === 0 ? 1 : Math.max(quotient, 2 ** -9))
    const scale = f(valueOf(code) * global)
    return { code, unit: (value) => f(value / scale) }
  }
})

const compressedGlobal = (amax: number, dtype: SourceType): number => {
  const round = roundingOf[dtype]
  const inverse = round(f(round(f(1 / Math.max(round(amax), tiniestOf[dtype]))) * 2688))
  return Number.isFinite(inverse) ? inverse : 1
}

const compressedTensors = (global: number, dtype: SourceType): Nvfp4Scaling => ({
  global,
  group: (largest) => {
    const found = e4m3Code(f(global * roundingOf[dtype](f(largest / 6))))
    const code = found === 0 ? 0x20 : found
    const scale = f(valueOf(code) / global)
    return { code, unit: (value) => f(value / scale) }
  }
})

/** What Transformer Engine multiplies by before it rounds group scales. */
const encodeScale = (amax: number): number => {
  const scale = Math.min(f(2688 / amax), largestFloat32)
  return scale === 0 ? 1 : scale
}

const transformerEngineGroup = (scale: number, decode: number): Nvfp4Group => {
  const code = e4m3Code(scale)
  const factor = Math.min(f(1 / f(valueOf(code) * decode)), largestFloat32)
  return { code, unit: (value) => f(value * factor) }
}

const transformerEngine = (amax: number): Nvfp4Scaling => {
  const encode = encodeScale(amax)
  const [decode, multiplier] = [f(1 / encode), f(encode * sixth)]
  return { global: amax, group: (largest) => transformerEngineGroup(f(largest * multiplier), decode) }
}

const fourOverSix = (amax: number): Nvfp4Scaling => {
  const encode = encodeScale(amax)
  const decode = f(1 / encode)
  const base = (largest: number) => f(f(largest / 6) * encode)
  return {
    global: amax,
    group: (largest) => transformerEngineGroup(base(largest), decode),
    other: (largest) => transformerEngineGroup(f(base(largest) * 1.5), decode)
  }
}

const vllm = (amax: number): Nvfp4Scaling => {
  const encode = f(f(1 / Math.max(amax, f(1e-8))) * 2688)
  const global = f(1 / encode)
  return {
    global,
    group: (largest) => {
      const code = e4m3Code(f(encode * f(largest * sixth)))
      const factor = code === 0 ? f(1e-8) : f(1 / f(valueOf(code) * global))
      return { code, unit: (value) => f(value * factor) }
    }
  }
}

const byMultiplier: Nvfp4Rule["read"] = (number, scale, global) => f(number * f(scale * global))
/** ModelOpt's table has no minus zero. */
const withoutMinusZero: Nvfp4Rule["read"] = (number, scale, global) => byMultiplier(number + 0, scale, global)
const byDivisor: Nvfp4Rule["read"] = (number, scale, global) => f(number * f(scale / global))
const byMaximum: Nvfp4Rule["read"] = (number, scale, amax) => f(f(number * scale) * f(amax / 2688))

const rules = {
  modelopt: {
    reference: "ModelOpt NVFP4QTensor",
    formula: "g = f(amax / 2688), s = e(f(b / f(6 * g))) at least 2^-9 and 1 for 0, f(x / f(s * g))",
    global: "multiplier",
    group: groupOf16,
    nanCode: 7,
    scaling: (amax) => modelopt(f(amax / 2688)),
    stored: modelopt,
    read: withoutMinusZero
  },
  modelopt_cuda: {
    reference: "ModelOpt NVFP4QTensor on a GPU",
    formula: "g = f(amax * f(1/2688)), the rest as modelopt",
    global: "multiplier",
    group: groupOf16,
    nanCode: 7,
    scaling: (amax) => modelopt(f(amax * reciprocalOf2688)),
    stored: modelopt,
    read: withoutMinusZero
  },
  compressed_tensors: {
    reference: "compressed-tensors, eager path",
    formula: "g = d(d(1 / max(amax, tiny)) * 2688), s = e(f(g * d(b / 6))) and 0.125 for 0, f(x / f(s / g))",
    global: "divisor",
    group: groupOf16,
    scaling: (amax, dtype) => compressedTensors(compressedGlobal(amax, dtype), dtype),
    stored: compressedTensors,
    read: byDivisor
  },
  te_1x16: {
    reference: "Transformer Engine NVFP4QuantizerRef, tiles 1x16",
    formula: "c = min(f(2688 / amax), largest), s = e(f(b * f(c * f(1/6)))), x * min(f(1 / f(s * f(1/c))), largest)",
    global: "amax",
    group: groupOf16,
    shortGroup: true,
    nanCode: 0,
    scaling: transformerEngine,
    stored: transformerEngine,
    read: byMaximum
  },
  te_16x16: {
    reference: "Transformer Engine NVFP4QuantizerRef, tiles 16x16",
    formula: "as te_1x16 with b over 16 rows and 16 columns",
    global: "amax",
    group: { rows: 16, columns: 16 },
    shortGroup: true,
    nanCode: 0,
    scaling: transformerEngine,
    stored: transformerEngine,
    read: byMaximum
  },
  te_4over6: {
    reference: "Transformer Engine NVFP4QuantizerRef with 4over6, tiles 1x16, mean absolute error",
    formula: "t = f(f(b / 6) * c), s = e(f(1.5 * t)) where its sum of absolute errors is smaller, else e(t)",
    global: "amax",
    group: groupOf16,
    shortGroup: true,
    nanCode: 0,
    scaling: fourOverSix,
    stored: fourOverSix,
    read: (number, scale, amax) => f(f(f(number * scale) * amax) / 2688)
  },
  vllm: {
    reference: "vLLM ref_nvfp4_quant, with the global scale of its online quantization",
    formula:
      "G = f(f(1 / max(amax, 1e-8)) * 2688), g = f(1/G), s = e(f(G * f(b * f(1/6)))), x * f(1 / f(s * g)), 1e-8 for s 0",
    global: "multiplier",
    group: groupOf16,
    scaling: vllm,
    read: byMultiplier
  }
} as const satisfies { readonly [name: string]: Omit<Nvfp4Rule, "name"> }

/** The rules that `nvfp4Rules` lists. */
export type Nvfp4RuleName = keyof typeof rules

/** Every rule by its name. */
export const nvfp4Rules: { readonly [Name in Nvfp4RuleName]: Nvfp4Rule } = Object.fromEntries(
  Object.entries(rules).map(([name, rule]) => [name, { name, ...rule }])
) as { readonly [Name in Nvfp4RuleName]: Nvfp4Rule }
