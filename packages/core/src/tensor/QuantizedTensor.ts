// SPDX-License-Identifier: Apache-2.0
/**
 * A tensor stored as narrow codes with scales. The recipe names how they make a value: the form says how they lie, the rule
 * whose bits they are.
 *
 * Invariant: equal recipes give equal bytes for equal values. What a name stands for never changes, and its place in a list
 * is its number in native code, so names are only added at the end. Recipes are compared before anything is transferred,
 * and one that is not known here is refused.
 */
import type { DType } from "../base/DType.ts"
import type { Shape } from "../base/Region.ts"
import type { Tensor } from "./Tensor.ts"

/** Rules by form. `@tensorferry/model/quantize/rules` states whose bits each gives, and its formula. */
export const quantizationRules = {
  mxfp8: ["ocp_floor", "rceil", "rceil_te", "compressed_tensors", "modelopt", "vllm_torch", "triton_up", "triton_down"],
  fp8: [
    "deepgemm_fp32",
    "deepgemm_fp32_cuda",
    "deepgemm_ue8m0",
    "deepgemm_ue8m0_cuda",
    "vllm_ue8m0",
    "deepseek_v3_fp32",
    "deepseek_v3_ue8m0",
    "slime_runtime",
    "slime_offline",
    "slime_offline_cuda",
    "miles_offline",
    "transformers_fp32",
    "transformers_ue8m0",
    "te_fp32",
    "te_pow2",
    "compressed_tensors"
  ],
  mxfp4: [
    "compressed_tensors",
    "modelopt",
    "triton_hf_up",
    "triton_hf_down",
    "triton_up",
    "triton_down",
    "deepgemm",
    "te_ref"
  ],
  nvfp4: ["modelopt", "modelopt_cuda", "compressed_tensors", "te_1x16", "te_16x16", "te_4over6", "vllm"]
} as const

/** How codes and scales lie. */
export type QuantizedForm = keyof typeof quantizationRules
/** All forms, in the order of their numbers in native code. */
export const quantizedForms = Object.keys(quantizationRules) as ReadonlyArray<string> as ReadonlyArray<QuantizedForm>

/** Elements of a row that share a scale in the MX forms. */
export const mxBlockSize = 32

/** The rules of MXFP8. */
export const scaleRules = quantizationRules.mxfp8
/** One of `scaleRules`. */
export type ScaleRule = (typeof scaleRules)[number]

/**
 * How scales lie in memory. `rowMajor`: one per block, in the order of the blocks; every region of whole blocks has a
 * region of scales. The others are read by kernels, and no region of the tensor is a region of them (see
 * `transform/ScaleLayouts`): `swizzled` is one dimension of padded tiles, `packed` four bytes of a row to an int32 and words
 * of a column one after the other, `transposed` columns of blocks before rows.
 */
export const scaleLayouts = ["rowMajor", "swizzled", "packed", "transposed"] as const
/** One of `scaleLayouts`. */
export type ScaleLayout = (typeof scaleLayouts)[number]

/** Rows and columns that share a scale; 0 stands for all of them. Dimensions before the last two are matrices apart. */
export type BlockSize = readonly [rows: number, columns: number]

/** Everything that decides the bytes of codes and scales. */
export interface QuantizationRecipe {
  readonly name: QuantizedForm
  /** One of `quantizationRules` of the form. */
  readonly rule: string
  readonly block: BlockSize
  /** `rowMajor` where it is not said. */
  readonly layout?: ScaleLayout
}

/** Blocks of the forms that have but one size; rules may look at more rows. */
const fixedBlocks: Readonly<Record<QuantizedForm, BlockSize | undefined>> = {
  mxfp8: [1, mxBlockSize],
  mxfp4: [1, mxBlockSize],
  nvfp4: [1, 16],
  fp8: undefined
}

/** Rules of fp8 whose scales are powers of two, which one byte can hold. */
const powerRules = new Set<string>(quantizationRules.fp8.filter((rule) => /ue8m0|pow2/.test(rule)))
/** Rules of fp8 whose reference leaves alone what is no whole number of blocks. */
const wholeRules = new Set<string>(["transformers_fp32", "transformers_ue8m0"])

/** A recipe by its form and rule; fp8 has blocks of 128 by 128 where no others are given. */
export const quantizationRecipe = (
  name: QuantizedForm,
  rule: string,
  layout: ScaleLayout = "rowMajor",
  block?: BlockSize
): QuantizationRecipe => ({ name, rule, block: fixedBlocks[name] ?? block ?? [128, 128], layout })

/** The recipe of MXFP8: blocks of 32 along the last dimension. */
export const mxfp8Recipe = (rule: ScaleRule = "rceil", layout: ScaleLayout = "rowMajor"): QuantizationRecipe =>
  quantizationRecipe("mxfp8", rule, layout)

/** How the recipe's scales lie in memory: row-major where it does not say. */
export const layoutOf = (recipe: QuantizationRecipe): ScaleLayout => recipe.layout ?? "rowMajor"

/** Everything that decides the bytes, as text. */
export const recipeId = (recipe: QuantizationRecipe): string =>
  `${recipe.name}/${recipe.block.map((size) => (size === 0 ? "all" : size)).join("x")}/${recipe.rule}/${layoutOf(recipe)}`

const isSize = (size: unknown): boolean => Number.isSafeInteger(size) && Number(size) >= 0

/** What of a recipe is not known here; recipes may come from files and other processes. */
export const recipeFault = (recipe: QuantizationRecipe): string | undefined => {
  const rules: ReadonlyArray<string> | undefined = Object.hasOwn(quantizationRules, recipe.name)
    ? quantizationRules[recipe.name]
    : undefined
  if (rules === undefined) return `the recipe ${String(recipe.name)} is not known`
  if (!Array.isArray(recipe.block) || recipe.block.length !== 2 || !recipe.block.every(isSize)) {
    return `blocks of ${String(recipe.block)} are not known`
  }
  const block = fixedBlocks[recipe.name]
  if (block?.some((size, dim) => size !== recipe.block[dim]) === true) {
    return `blocks of ${recipe.block.join("x")} are not known, only of ${block.join("x")}`
  }
  if (!rules.includes(recipe.rule)) return `the scale rule ${String(recipe.rule)} of ${recipe.name} is not known`
  const layout = layoutOf(recipe)
  if (!scaleLayouts.includes(layout)) return `the scale layout ${String(layout)} is not known`
  return layout === "rowMajor" || layout === "transposed" || recipe.name !== "fp8" || powerRules.has(recipe.rule)
    ? undefined
    : `scales of ${recipe.rule} are no bytes, which the layout ${layout} is for`
}

/** The number of a rule in native code: rules of all forms are counted, form after form. */
export const ruleNumberOf = ({ name, rule }: QuantizationRecipe): number => {
  let before = 0
  for (const form of quantizedForms) {
    if (form === name) break
    before += quantizationRules[form].length
  }
  return before + (quantizationRules[name] as ReadonlyArray<string>).indexOf(rule)
}

/** How many codes a byte holds. */
export const codesPerByte = ({ name }: QuantizationRecipe): 1 | 2 => (name === "mxfp4" || name === "nvfp4" ? 2 : 1)

/** Whether all scales are multiplied by one number, which is stored beside them. */
export const hasGlobal = ({ name }: QuantizationRecipe): boolean => name === "nvfp4"

/** Whether a stored global scale says what groups are scaled by, so that it can be kept. */
export const readsGlobal = ({ name, rule }: QuantizationRecipe): boolean => name === "nvfp4" && rule !== "vllm"

/** The element type of codes. */
export const codeTypeOf = (recipe: QuantizationRecipe): DType =>
  codesPerByte(recipe) === 2 ? "uint8" : "float8_e4m3fn"

/** The shape of the codes of a tensor: two of a row share a byte where codes are that narrow. */
export const codeShapeOf = (recipe: QuantizationRecipe, shape: Shape): Shape =>
  shape.map((length, dim) => (dim === shape.length - 1 ? length / codesPerByte(recipe) : length))

/** The shape of the tensor that these codes stand for. */
export const valueShapeOf = (recipe: QuantizationRecipe, codes: Shape): Shape =>
  codes.map((length, dim) => (dim === codes.length - 1 ? length * codesPerByte(recipe) : length))

/** The types that scales may have, the usual one first. `source` is the type of the values. */
export const scaleTypesOf = ({ name, rule }: QuantizationRecipe, source?: DType): ReadonlyArray<DType> => {
  if (name === "nvfp4") return ["float8_e4m3fn"]
  if (name !== "fp8") return ["float8_e8m0fnu", "uint8"]
  if (powerRules.has(rule)) return ["float32", "float8_e8m0fnu"]
  if (rule !== "compressed_tensors") return ["float32"]
  return source === undefined ? ["float32", "bfloat16", "float16"] : [...new Set<DType>([source, "float32"])]
}

/** The sizes of blocks by dimension, for a tensor of this many dimensions; 0 stands for all. */
export const blockSizesOf = ([rows, columns]: BlockSize, dimensions: number): ReadonlyArray<number> =>
  Array.from({ length: dimensions }, (_, dim) => (dim === dimensions - 1 ? columns : dim === dimensions - 2 ? rows : 1))

/** What a region may not cut: blocks, and the tiles that `te_16x16` finds scales by. */
export const cutSizeOf = ({ block, name, rule }: QuantizationRecipe): BlockSize =>
  name === "nvfp4" && rule === "te_16x16" ? [16, 16] : block

/** Whether a scale may be that of more than one rank's tensor holds, however the tensor is cut. */
export const sharesBeyond = (recipe: QuantizationRecipe): boolean => hasGlobal(recipe) || recipe.block.includes(0)

/** How many blocks of a size lie over a length that begins `origin` elements into the first one. */
export const blockCount = (length: number, size: number, origin = 0): number =>
  length === 0 ? 0 : size === 0 ? 1 : Math.ceil((origin + length) / size)

/** Shape of row-major scales; undefined where a form, or a rule, has whole blocks only and the shape is not that. */
export const scaleShapeOf = (
  recipe: QuantizationRecipe,
  shape: Shape,
  [row, column]: readonly [row: number, column: number] = [0, 0]
): Shape | undefined => {
  if (shape.length === 0) return undefined
  const sizes = blockSizesOf(recipe.block, shape.length)
  const isWhole = (dim: number) => sizes[dim] === 0 || shape[dim]! % sizes[dim]! === 0
  const last = shape.length - 1
  if (recipe.name !== "fp8" && !isWhole(last)) return undefined
  const isWholeRow = last > 0 || recipe.block[0] <= 1
  if (wholeRules.has(recipe.rule) && !(isWholeRow && shape.every((_, dim) => isWhole(dim)))) return undefined
  return shape.map((length, dim) => blockCount(length, sizes[dim]!, dim === last ? column : dim === last - 1 ? row : 0))
}

/** Codes, scales, and what is stored once for all of them. */
export interface QuantizedTensor {
  readonly _tag: "QuantizedTensor"
  /** `float8_e4m3fn` of the tensor's shape, or `uint8` with two codes of a row to a byte, the even column in the low half. */
  readonly data: Tensor
  /** Row-major: one per block (see `scaleShapeOf`). `swizzled` and `packed`: one dimension. */
  readonly scale: Tensor
  /** float32, one element. What nvfp4 stores for the whole tensor; the rule states what it means. */
  readonly global?: Tensor
  readonly recipe: QuantizationRecipe
}

/** Tells the two kinds of tensors of a dictionary apart. */
export const isQuantized = (value: Tensor | QuantizedTensor): value is QuantizedTensor => "_tag" in value

/** The shape of the values that a tensor of either kind holds. */
export const shapeOfValues = (tensor: Tensor | QuantizedTensor): Shape =>
  isQuantized(tensor) ? valueShapeOf(tensor.recipe, tensor.data.shape) : tensor.shape
