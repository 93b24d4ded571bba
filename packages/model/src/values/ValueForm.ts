// SPDX-License-Identifier: Apache-2.0
/**
 * Which stored tensors of a model are one weight, and how its values come from them: numbers as they are, numbers with
 * scales beside them, or packed numbers.
 *
 * Invariant: every stored tensor belongs to exactly one weight, or stands for itself. Codes whose scales are not
 * understood are `unreadable`, with the reason: nobody takes them for values.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { elementCount, formatShape, type Shape } from "@tensorferry/core/base/Region"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import { hasValues } from "./codes.ts"
import type { ScaleGrid } from "./dequantize.ts"
import { type PackedForm, type PackingHint, packedWeight } from "./packedWords.ts"

/** What a model says about its quantization, as far as shapes leave a choice. */
export interface QuantizationHint extends PackingHint {
  /** Rows and columns that share a scale. */
  readonly block?: readonly [rows: number, columns: number]
}

interface Scaled {
  readonly name: string
  readonly dtype: DType
  readonly grid: ScaleGrid
}

/** How the values of a weight are found. Tensors are named as they are stored. */
export type ValueForm =
  | { readonly kind: "plain"; readonly data: string; readonly dtype: DType }
  | {
      readonly kind: "scaled"
      readonly data: string
      readonly dtype: DType
      readonly scale: Scaled
      readonly isPower: boolean
    }
  | {
      readonly kind: "nvfp4"
      readonly data: string
      readonly scale: Scaled
      /** One for the whole weight or for each expert; ModelOpt multiplies by it, compressed-tensors divides. */
      readonly global: Scaled
      readonly divides: boolean
    }
  | { readonly kind: "mxfp4"; readonly data: string; readonly scale: Scaled }
  /** As gpt-oss stores experts: blocks of 16 bytes, outputs before inputs; the weight has inputs before outputs. */
  | { readonly kind: "mxfp4 blocks"; readonly data: string; readonly scales: string }
  | PackedForm
  /** Codes whose scales or tables are not understood. */
  | { readonly kind: "unreadable"; readonly why: string }
  /** A type whose elements are no numbers here. */
  | { readonly kind: "opaque"; readonly why: string }

/** A weight: what it is called, the shape that its values have, and the stored tensors that it is made of. */
export interface Weight {
  readonly name: string
  readonly shape: Shape
  /** For people, as "float8_e4m3fn block 128x128". */
  readonly text: string
  readonly form: ValueForm
  readonly parts: ReadonlyArray<string>
}

/** What stands beside quantized weights and is no part of their values. */
const activationSuffixes = ["input_scale", "input_global_scale", "output_scale", "activation_scale"]
const knownBeside = new Set([...activationSuffixes, "k_scale", "v_scale", "q_scale"])
/** Tensors of a module that make numbers beside them codes of a kind that is not read. */
const codedSuffixes = [
  "qweight",
  "qzeros",
  "g_idx",
  "weight_g_idx",
  "weight_zero_point",
  "weight.absmax",
  "weight.quant_map",
  "SCB"
]

/** Types that codes are stored in; tensors of others stand for themselves. */
const codedTypes: ReadonlySet<DType> = new Set<DType>([
  ...(["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"] as const),
  ...(["int8", "uint8", "int16", "uint16", "int32", "uint32"] as const)
])
const codeTypes: ReadonlySet<DType> = new Set<DType>(["float8_e4m3fn", "float8_e5m2", "int8"])
const usualBlocks = [128, 32, 64, 16, 256, 512, 8] as const

const perOf = (length: number, scales: number, stated: number | undefined): number | undefined => {
  if (scales === length) return 1
  if (scales === 1) return Number.POSITIVE_INFINITY
  const fits = (size: number): boolean => Math.ceil(length / size) === scales
  if (stated !== undefined && fits(stated)) return stated
  return usualBlocks.find(fits) ?? (length % scales === 0 ? length / scales : undefined)
}

/** How scales lie over a weight; undefined where they do not fit. */
export const gridOf = (weight: Shape, scale: Shape, block?: QuantizationHint["block"]): ScaleGrid | undefined => {
  if (elementCount(scale) === 1) return { shape: scale, per: scale.map(() => Number.POSITIVE_INFINITY) }
  if (scale.length > weight.length) return undefined
  const isShort = scale.length < weight.length
  const per = scale.map((scales, dim) => {
    const fromLast = weight.length - 1 - dim
    if (isShort) return scales === weight[dim] ? 1 : undefined
    return perOf(weight[dim]!, scales, fromLast === 0 ? block?.[1] : fromLast === 1 ? block?.[0] : undefined)
  })
  return per.some((size) => size === undefined) ? undefined : { shape: scale, per: per as ReadonlyArray<number> }
}

/** Scales of groups along the last dimension, one at least for each row. */
const groupGrid = (weight: Shape, scale: Shape): ScaleGrid | undefined => {
  const size = weight.at(-1)! / (scale.at(-1) ?? 0)
  const fits = scale.length === weight.length && scale.slice(0, -1).every((length, dim) => length === weight[dim])
  return fits && Number.isInteger(size)
    ? { shape: scale, per: weight.map((_, dim) => (dim === weight.length - 1 ? size : 1)) }
    : undefined
}

const gridText = ({ per, shape }: ScaleGrid, weight: Shape): string => {
  if (elementCount(shape) === 1) return "per tensor"
  if (shape.length < weight.length) return shape.length === weight.length - 1 ? "per channel" : "per expert"
  const [rows, columns] = per.slice(-2) as [number, number]
  if (columns === Number.POSITIVE_INFINITY && rows <= 1) return "per channel"
  if (columns === Number.POSITIVE_INFINITY && rows === columns) return "per expert"
  const sizes = [rows, columns].map((size, at) => Math.min(size, weight.at(at - 2)!))
  return rows === 1 ? `group ${sizes[1]}` : `block ${sizes.join("x")}`
}

const tableMark = /\.weight\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.)/

/** The module that a tensor belongs to; tables of bitsandbytes stand one level below the weight that they belong to. */
const moduleOf = (name: string): string => {
  const table = name.includes(".weight.") ? tableMark.exec(name) : null
  return name.slice(0, Math.max(0, table === null ? name.lastIndexOf(".") : table.index))
}

/** A tensor that may be codes, among the others of its module. */
interface Candidate {
  readonly data: ModelTensor
  /** Its name behind the module's, and that of the module. */
  readonly own: string
  readonly module: string
  /** By what stands behind the module's name. */
  readonly beside: ReadonlyMap<string, ModelTensor>
  readonly hint: QuantizationHint
}

/** A weight that a candidate is the data of; undefined where it is none of this kind. */
type Find = (candidate: Candidate) => Weight | undefined

const scaledBy = (scale: ModelTensor | undefined, grid: ScaleGrid | undefined): Scaled | undefined =>
  scale === undefined || grid === undefined ? undefined : { name: scale.name, dtype: scale.dtype, grid }

const unreadable = (name: string, shape: Shape, why: string, parts: ReadonlyArray<string>): Weight => ({
  name,
  shape,
  text: why,
  form: { kind: "unreadable", why },
  parts
})

const nameIn = (module: string, suffix: string): string => (module === "" ? suffix : `${module}.${suffix}`)

const namesOf = (beside: Candidate["beside"], suffixes: ReadonlyArray<string>): ReadonlyArray<string> =>
  suffixes.flatMap((suffix) => beside.get(suffix)?.name ?? [])

const typed = ({ dtype, shape }: ModelTensor): string => `${dtype}${formatShape(shape)}`

/** gpt-oss: NAME_blocks and NAME_scales. */
const findBlocks: Find = ({ beside, data, module, own }) => {
  if (!own.endsWith("_blocks") || data.dtype !== "uint8") return undefined
  const base = own.slice(0, -"_blocks".length)
  const scales = beside.get(`${base}_scales`)
  if (scales === undefined) return undefined
  const [name, parts] = [nameIn(module, base), [data.name, scales.name]]
  const [experts, rows, groups, bytes] = data.shape
  const fits = data.shape.length === 4 && bytes === 16 && scales.dtype === "uint8"
  if (!fits || scales.shape.join() !== data.shape.slice(0, 3).join()) {
    return unreadable(name, data.shape, `blocks of ${formatShape(data.shape)} with scales of ${typed(scales)}`, parts)
  }
  const form = { kind: "mxfp4 blocks", data: data.name, scales: scales.name } as const
  return { name, shape: [experts!, groups! * 32, rows!], text: "mxfp4 blocks of 32", form, parts }
}

/** Two numbers to a byte, with scales of groups along the last dimension. */
const findHalves: Find = ({ beside, data, hint, module, own }) => {
  const scale = beside.get("weight_scale")
  const isHere = own === "weight_packed" || (own === "weight" && scale !== undefined)
  if (!isHere || data.dtype !== "uint8" || data.shape.length === 0) return undefined
  const name = nameIn(module, "weight")
  const shape = data.shape.map((length, dim) => (dim === data.shape.length - 1 ? length * 2 : length))
  const global = beside.get("weight_scale_2") ?? beside.get("weight_global_scale")
  const others = namesOf(beside, ["weight_scale", "weight_scale_2", "weight_global_scale", "weight_shape"])
  const parts = [data.name, ...others, ...namesOf(beside, activationSuffixes)]
  const scaled = scaledBy(scale, scale && groupGrid(shape, scale.shape))
  const over = scaledBy(global, global && gridOf(shape, global.shape, hint.block))
  const group = scaled?.grid.per.at(-1)
  if (scaled?.dtype === "float8_e4m3fn" && over !== undefined && group === 16) {
    const divides = over.name.endsWith("weight_global_scale")
    const form = { kind: "nvfp4", data: data.name, scale: scaled, global: over, divides } as const
    return { name, shape, text: "nvfp4 group 16", form, parts }
  }
  if ((scaled?.dtype === "uint8" || scaled?.dtype === "float8_e8m0fnu") && group === 32) {
    return { name, shape, text: "mxfp4 group 32", form: { kind: "mxfp4", data: data.name, scale: scaled }, parts }
  }
  return unreadable(name, shape, `${typed(data)} with scales that are not those of nvfp4 or mxfp4`, parts)
}

/** Packed words, and codes with tables or zero points. */
const findWords: Find = ({ beside, data, hint, module, own }) => {
  const isPacked = own === "qweight" || own === "weight_packed"
  if (!isPacked && (own !== "weight" || !codedSuffixes.some((suffix) => beside.has(suffix)))) return undefined
  const parts = [...beside].flatMap(([suffix, { name }]) => (suffix === "bias" || name === data.name ? [] : [name]))
  const [name, all] = [nameIn(module, "weight"), [data.name, ...parts]]
  const found = isPacked ? packedWeight(own, data, beside, hint) : "codes with a table or zero points"
  return typeof found === "string" ? unreadable(name, data.shape, found, all) : { name, ...found, parts: all }
}

/** Numbers of a byte with scales under the names that are known, or under others. */
const findScaled: Find = ({ beside, data, hint, module, own }) => {
  const { dtype, name, shape } = data
  if (!codeTypes.has(dtype) || shape.length < 2) return undefined
  const scale =
    beside.get(`${own}_scale_inv`) ?? beside.get(`${own}_scale`) ?? (own === "weight" ? beside.get("scale") : undefined)
  if (scale === undefined) {
    // Scales under names that are not known make numbers codes all the same.
    const others = module === "" ? [] : [...beside.keys()]
    const unknown = others.filter((suffix) => /scale|absmax|zero|quant/.test(suffix) && !knownBeside.has(suffix))
    const names = namesOf(beside, unknown)
    return names.length === 0
      ? undefined
      : unreadable(name, shape, `${typed(data)} beside ${names[0]}`, [name, ...names])
  }
  const parts = [name, scale.name, ...namesOf(beside, activationSuffixes)]
  const scaled = scaledBy(scale, gridOf(shape, scale.shape, hint.block))
  const isPower = scale.dtype === "uint8"
  if (scaled === undefined || !(isPower || hasValues(scale.dtype))) {
    return unreadable(name, shape, `${typed(data)} with scales of ${typed(scale)}`, parts)
  }
  const { per } = scaled.grid
  const isMx = (isPower || scale.dtype === "float8_e8m0fnu") && per.at(-1) === 32 && per.at(-2) === 1
  const text = isMx ? "mxfp8" : `${dtype} ${gridText(scaled.grid, shape)}`
  return { name, shape, text, form: { kind: "scaled", data: name, dtype, scale: scaled, isPower }, parts }
}

const finders: ReadonlyArray<Find> = [findBlocks, findHalves, findWords, findScaled]

/** Finds the weights of a model. `hint` is what its configuration says. */
export const findWeights = (
  tensors: ReadonlyArray<ModelTensor>,
  hint: QuantizationHint = {}
): ReadonlyArray<Weight> => {
  const modules = new Map<string, Map<string, ModelTensor>>()
  for (const tensor of tensors) {
    const module = moduleOf(tensor.name)
    const own = module === "" ? tensor.name : tensor.name.slice(module.length + 1)
    const beside = modules.get(module)
    if (beside === undefined) modules.set(module, new Map([[own, tensor]]))
    else beside.set(own, tensor)
  }
  const weights = new Map<string, Weight>()
  const taken = new Set<string>()
  for (const [module, beside] of modules) {
    for (const [own, data] of beside) {
      if (!codedTypes.has(data.dtype) || taken.has(data.name)) continue
      const candidate = { data, own, module, beside, hint }
      let found: Weight | undefined
      for (const find of finders) found ??= find(candidate)
      if (found === undefined) continue
      const parts = found.parts.filter((part) => !taken.has(part))
      for (const part of parts) taken.add(part)
      weights.set(data.name, { ...found, parts })
    }
  }
  return tensors.flatMap(({ dtype, name, shape }): ReadonlyArray<Weight> => {
    const found = weights.get(name)
    if (found !== undefined) return [found]
    if (taken.has(name)) return []
    const form: ValueForm = hasValues(dtype) ? { kind: "plain", data: name, dtype } : { kind: "opaque", why: dtype }
    return [{ name, shape, text: dtype, form, parts: [name] }]
  })
}
