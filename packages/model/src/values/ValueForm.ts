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
import type { ModelTensor } from "@tensorferry/core/layout/ModelLayout"
import { hasValues } from "./codes.ts"
import type { ScaleGrid } from "./dequantize.ts"

/** What a config.json says about quantization, as far as shapes leave a choice. */
export interface QuantizationHint {
  readonly method?: string
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

const scaleSuffixes = ["_scale_inv", "_scale"] as const
/** What stands beside quantized weights and is no part of their values. */
const activationSuffixes = ["input_scale", "input_global_scale", "output_scale", "activation_scale"]
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

/** Finds the weights of a model. `hint` is what its configuration says. */
export const findWeights = (
  tensors: ReadonlyArray<ModelTensor>,
  hint: QuantizationHint = {}
): ReadonlyArray<Weight> => {
  const stored = new Map(tensors.map((tensor) => [tensor.name, tensor]))
  const taken = new Map<string, string>()
  const weights: Array<Weight> = []
  const scaledBy = (
    data: ModelTensor,
    shape: Shape,
    scale: ModelTensor | undefined,
    find: typeof gridOf = gridOf
  ): Scaled | undefined => {
    const grid = scale === undefined ? undefined : find(shape, scale.shape, hint.block)
    return grid === undefined || scale === undefined || scale === data
      ? undefined
      : { name: scale.name, dtype: scale.dtype, grid }
  }
  const add = (name: string, shape: Shape, text: string, form: ValueForm, parts: ReadonlyArray<string>): void => {
    for (const part of parts) taken.set(part, name)
    weights.push({ name, shape, text, form, parts })
  }
  const unreadable = (name: string, shape: Shape, why: string, parts: ReadonlyArray<string>): void =>
    add(name, shape, why, { kind: "unreadable", why }, parts)
  const has = (name: string): ReadonlyArray<string> => (stored.has(name) ? [name] : [])

  for (const data of tensors) {
    const { dtype, name, shape } = data
    const module = name.replace(/\.?[^.]*$/, "")
    const beside = (suffix: string): string => (module === "" ? suffix : `${module}.${suffix}`)
    const companions = activationSuffixes.flatMap((suffix) => has(beside(suffix)))

    // gpt-oss: NAME_blocks and NAME_scales.
    if (name.endsWith("_blocks") && dtype === "uint8" && stored.has(name.replace(/_blocks$/, "_scales"))) {
      const base = name.replace(/_blocks$/, "")
      const scales = stored.get(`${base}_scales`)!
      const [experts, rows, groups, bytes] = shape
      const fits =
        shape.length === 4 &&
        bytes === 16 &&
        scales.dtype === "uint8" &&
        scales.shape.join() === shape.slice(0, 3).join()
      const parts = [name, scales.name]
      if (fits)
        add(
          base,
          [experts!, groups! * 32, rows!],
          "mxfp4 blocks of 32",
          { kind: "mxfp4 blocks", data: name, scales: scales.name },
          parts
        )
      else unreadable(base, shape, `blocks of ${formatShape(shape)} with scales of ${formatShape(scales.shape)}`, parts)
      continue
    }

    // Two numbers to a byte, with scales of groups along the last dimension.
    const isPacked = name === beside("weight_packed")
    const isHalved = name === beside("weight") && dtype === "uint8" && stored.has(beside("weight_scale"))
    if ((isPacked || isHalved) && dtype === "uint8" && shape.length > 0) {
      const base = beside("weight")
      const whole = shape.map((length, dim) => (dim === shape.length - 1 ? length * 2 : length))
      const scale = stored.get(beside("weight_scale"))
      const global = stored.get(beside("weight_scale_2")) ?? stored.get(beside("weight_global_scale"))
      const parts = [
        name,
        ...has(beside("weight_scale")),
        ...(global === undefined ? [] : [global.name]),
        ...has(beside("weight_shape")),
        ...companions
      ]
      const scaled = scaledBy(data, whole, scale, groupGrid)
      const group = scaled?.grid.per.at(-1)
      const over = global === undefined ? undefined : scaledBy(data, whole, global)
      if (scale?.dtype === "float8_e4m3fn" && scaled !== undefined && over !== undefined && group === 16) {
        const divides = global!.name.endsWith("weight_global_scale")
        add(base, whole, "nvfp4 group 16", { kind: "nvfp4", data: name, scale: scaled, global: over, divides }, parts)
      } else if (
        (scale?.dtype === "uint8" || scale?.dtype === "float8_e8m0fnu") &&
        scaled !== undefined &&
        group === 32
      ) {
        add(base, whole, "mxfp4 group 32", { kind: "mxfp4", data: name, scale: scaled }, parts)
      } else
        unreadable(base, whole, `${dtype}${formatShape(shape)} with scales that are not those of nvfp4 or mxfp4`, parts)
      continue
    }

    const coded = codedSuffixes.filter((suffix) => stored.has(beside(suffix)) && beside(suffix) !== name)
    const isCoded =
      name === beside("qweight") || (isPacked && dtype !== "uint8") || (name === beside("weight") && coded.length > 0)
    if (isCoded) {
      const own = [...stored.keys()].filter(
        (other) =>
          other.startsWith(`${module}.`) &&
          other !== beside("bias") &&
          other.slice(module.length + 1).split(".").length <= 3
      )
      const kind = name.endsWith("qweight") || isPacked ? "packed integers" : "codes with a table or zero points"
      unreadable(
        beside("weight"),
        shape,
        `${kind} (${hint.method ?? "no quant_method"})`,
        own.filter((other) => !taken.has(other))
      )
      continue
    }

    if (!codeTypes.has(dtype) || shape.length < 2) continue
    const scaleName = [
      ...scaleSuffixes.map((suffix) => `${name}${suffix}`),
      ...(name === beside("weight") ? [beside("scale")] : [])
    ].find((one) => stored.has(one))
    if (scaleName === undefined) continue
    const scale = stored.get(scaleName)!
    const scaled = scaledBy(data, shape, scale)
    const parts = [name, scaleName, ...companions]
    const isPower = scale.dtype === "uint8"
    if (scaled === undefined || !(isPower || hasValues(scale.dtype))) {
      unreadable(
        name,
        shape,
        `${dtype}${formatShape(shape)} with scales of ${scale.dtype}${formatShape(scale.shape)}`,
        parts
      )
    } else {
      const isMx =
        (isPower || scale.dtype === "float8_e8m0fnu") && scaled.grid.per.at(-1) === 32 && scaled.grid.per.at(-2) === 1
      const text = isMx ? "mxfp8" : `${dtype} ${gridText(scaled.grid, shape)}`
      add(name, shape, text, { kind: "scaled", data: name, dtype, scale: scaled, isPower }, parts)
    }
  }

  const plain = tensors.flatMap(
    ({ dtype, name, shape }): ReadonlyArray<Weight> =>
      taken.has(name)
        ? []
        : [
            {
              name,
              shape,
              text: dtype,
              form: hasValues(dtype) ? { kind: "plain", data: name, dtype } : { kind: "opaque", why: dtype },
              parts: [name]
            }
          ]
  )
  const order = new Map(tensors.map(({ name }, at) => [name, at]))
  return [...weights, ...plain].sort((a, b) => order.get(a.parts[0]!)! - order.get(b.parts[0]!)!)
}
