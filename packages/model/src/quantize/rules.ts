// SPDX-License-Identifier: Apache-2.0
/**
 * Every rule by which values become codes and scales, under one kind of name: the form and the rule, as `nvfp4/modelopt`.
 *
 * Invariant: a name stands for bits. What a name gives is never changed; other bits are another name.
 */
import * as Result from "effect/Result"
import { quantizeFp8 } from "./fp8.ts"
import { type Fp8RuleName, fp8Rules } from "./fp8Rules.ts"
import type { Block, Matrix, QuantizeFault } from "./Matrix.ts"
import { quantizeMxfp4, quantizeMxfp8 } from "./mx.ts"
import { type Mxfp4RuleName, mxfp4Rules } from "./mxfp4Rules.ts"
import { type Mxfp8RuleName, mxfp8Rules } from "./mxfp8Rules.ts"
import { type Nvfp4Place, quantizeNvfp4 } from "./nvfp4.ts"
import { type Nvfp4RuleName, nvfp4Rules } from "./nvfp4Rules.ts"

/** How codes and scales are laid out: what readers of a weight need to know. */
export type QuantizedForm = "fp8" | "mxfp8" | "mxfp4" | "nvfp4"

/** The name of a rule. */
export type RuleName =
  | `fp8/${Fp8RuleName}`
  | `mxfp8/${Mxfp8RuleName}`
  | `mxfp4/${Mxfp4RuleName}`
  | `nvfp4/${Nvfp4RuleName}`

/**
 * How we know that the bits are those of the reference: it was run and gave them; its formula was computed, because it was
 * not run; or its formula was computed, and it was run on a GPU afterwards and gave the same.
 */
export type Basis = "run" | "formula" | "formula, then run on a GPU"

/** Codes and scales of any form. */
export interface Quantized {
  /** fp8 and mxfp8: a code of float8_e4m3fn per element. mxfp4 and nvfp4: two of float4_e2m1 to a byte, the low half first. */
  readonly data: Uint8Array
  /** fp8: numbers. nvfp4: codes of float8_e4m3fn. mxfp8 and mxfp4: the byte s of 2^(s - 127). Row-major. */
  readonly scales: Float32Array | Uint8Array
  readonly scaleShape: readonly [rows: number, columns: number]
  /** nvfp4: one number for all. */
  readonly global?: number
}

/** Where a matrix lies, what is known of what it shares scales with, and for fp8 what shares a scale. */
export interface RulePlace extends Nvfp4Place {
  /** fp8: 128x128 by default. A row of 1 by Infinity is a channel, Infinity by Infinity the tensor. */
  readonly block?: Block
}

/** A rule with what it says about itself. */
export interface QuantizeRule {
  /** As it is written on the command line. */
  readonly name: RuleName
  /** What comes out. */
  readonly form: QuantizedForm
  /** Whose bits these are, by project and function. */
  readonly reference: string
  /** In words, for documentation. */
  readonly formula: string
  /** How it is known that the bits are right. */
  readonly basis: Basis
  /** Codes and scales of a matrix. */
  readonly quantize: (matrix: Matrix, place?: RulePlace) => Result.Result<Quantized, QuantizeFault>
}

const block128: Block = { rows: 128, columns: 128 }

/** The others were run. */
const otherBases: { readonly [Name in RuleName]?: Basis } = {
  "fp8/deepgemm_fp32_cuda": "formula, then run on a GPU",
  "fp8/slime_offline_cuda": "formula, then run on a GPU",
  "fp8/deepgemm_ue8m0_cuda": "formula",
  "nvfp4/modelopt_cuda": "formula",
  "mxfp8/ocp_floor": "formula",
  "mxfp8/rceil": "formula",
  "mxfp8/rceil_te": "formula"
}

const listed = <Form extends QuantizedForm, Short extends string>(
  form: Form,
  rules: { readonly [Name in Short]: { readonly name: Short; readonly reference: string; readonly formula: string } },
  quantize: (name: Short) => QuantizeRule["quantize"]
): ReadonlyArray<QuantizeRule> =>
  Object.values<{ readonly name: Short; readonly reference: string; readonly formula: string }>(rules).map(
    ({ formula, name, reference }) => {
      const full = `${form}/${name}` as RuleName
      return { name: full, form, reference, formula, basis: otherBases[full] ?? "run", quantize: quantize(name) }
    }
  )

/** All rules, form by form. */
export const quantizeRules: ReadonlyArray<QuantizeRule> = [
  ...listed(
    "fp8",
    fp8Rules,
    (name) =>
      (matrix, { block = block128, ...place } = {}) =>
        quantizeFp8(matrix, block, name, place)
  ),
  ...listed("mxfp8", mxfp8Rules, (name) => (matrix, place) => quantizeMxfp8(matrix, name, place)),
  ...listed("mxfp4", mxfp4Rules, (name) => (matrix, place) => quantizeMxfp4(matrix, name, place)),
  ...listed("nvfp4", nvfp4Rules, (name) => (matrix, place) => quantizeNvfp4(matrix, name, place))
]

const byName: ReadonlyMap<string, QuantizeRule> = new Map(quantizeRules.map((rule) => [rule.name, rule]))

/** The rule of a name, or the names that there are. */
export const ruleOf = (name: string): Result.Result<QuantizeRule, ReadonlyArray<RuleName>> => {
  const rule = byName.get(name)
  return rule === undefined ? Result.fail(quantizeRules.map((one) => one.name)) : Result.succeed(rule)
}
