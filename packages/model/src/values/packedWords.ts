// SPDX-License-Identifier: Apache-2.0
/**
 * Weights that are integers of few bits in words of 32, as GPTQ, AWQ and compressed-tensors store them: which tensors they
 * are made of, and the integers of a stretch of words.
 *
 * Invariant: the arrangement of a weight is what its configuration names. Where it names none, or one that is not known,
 * there is a reason and no form: zero points and the order of numbers in a word do not follow from shapes.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { formatShape, type Shape } from "@tensorferry/core/base/Region"
import type { ModelTensor } from "../layout/ModelLayout.ts"

/** What a configuration says of packed weights. */
export interface PackingHint {
  readonly method?: string
  /** How the method arranges what it stores, as `gptq_v2` or `gemm`. */
  readonly format?: string
  readonly bits?: number
  /** Inputs that share a scale. */
  readonly group?: number
  /** Inputs are quantized in an order of their own. */
  readonly isReordered?: boolean
  /** Inputs of a weight by the name of its words, where `weight_shape` states them. */
  readonly lengths?: ReadonlyMap<string, number>
}

/** How the values of a packed weight are found. Tensors are named as they are stored. */
export interface PackedForm {
  readonly kind: "packed"
  /**
   * `rows`: words along the inputs of each output, as compressed-tensors has them. `gptq`: words along the inputs, inputs
   * first. `awq`: words along the outputs, inputs first, eight numbers to a word in an order of their own.
   */
  readonly layout: "rows" | "gptq" | "awq"
  readonly bits: number
  readonly data: string
  readonly scale: { readonly name: string; readonly dtype: DType }
  /** Without zero points, half of the range is zero. `step` is added to what is stored. */
  readonly zeros: { readonly name: string; readonly step: 0 | 1 } | undefined
  /** For each input the group that it is in; without it groups follow each other. */
  readonly index: string | undefined
  readonly groups: number
  /** Inputs of a group. */
  readonly group: number
}

interface PackedWeight {
  readonly shape: Shape
  readonly text: string
  readonly form: PackedForm
}

/** The tensors of a module by what stands behind its name. */
type Beside = ReadonlyMap<string, ModelTensor>

const scaleTypes: ReadonlySet<DType> = new Set<DType>(["float16", "bfloat16", "float32"])

const matrixSuffixes = new Set(["qweight", "qzeros", "scales", "g_idx", "bias"])
const rowSuffixes = new Set([
  ...["weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape", "bias"],
  ...["input_scale", "output_scale", "k_scale", "v_scale", "q_scale"]
])

const typed = ({ dtype, shape }: ModelTensor): string => `${dtype}${formatShape(shape)}`

const strangerIn = (beside: Beside, known: ReadonlySet<string>): string | undefined =>
  [...beside].find(([suffix]) => !known.has(suffix))?.[1].name

/** Words for a number of integers. */
const wordsFor = (count: number, bits: number): number => Math.ceil((count * bits) / 32)

/** Inputs of one group; undefined where groups do not fit. */
const groupOf = (length: number, groups: number, stated: number | undefined): number | undefined => {
  if (groups === 1) return Math.max(1, length)
  if (stated !== undefined && Math.ceil(length / stated) === groups) return stated
  return groups > 0 && length % groups === 0 && length > 0 ? length / groups : undefined
}

const gptqStep = (format: string | undefined): 0 | 1 | undefined =>
  format === undefined || format === "gptq" ? 1 : format === "gptq_v2" ? 0 : undefined

/** `qweight` of GPTQ and AWQ; the reason where its values cannot be known. */
const packedByInput = (data: ModelTensor, beside: Beside, hint: PackingHint): PackedWeight | string => {
  const [scale, zeros, index] = ["scales", "qzeros", "g_idx"].map((suffix) => beside.get(suffix))
  const stranger = strangerIn(beside, matrixSuffixes)
  if (stranger !== undefined) return `packed integers beside ${stranger}`
  if (data.shape.length !== 2 || scale?.shape.length !== 2 || zeros?.shape.length !== 2 || zeros.dtype !== "int32")
    return "packed integers without scales and qzeros of two dimensions"
  if (!scaleTypes.has(scale.dtype)) return `packed integers with scales of ${scale.dtype}`
  const [rows, columns] = data.shape as [number, number]
  const [groups, outputs] = scale.shape as [number, number]
  const isAwq = columns !== outputs
  const step = isAwq ? 0 : gptqStep(hint.format)
  const method = isAwq ? "awq" : "gptq"
  const isNamed = hint.method === method && (isAwq ? (hint.format ?? "gemm").toLowerCase() === "gemm" : true)
  if (!isNamed || step === undefined) {
    const said = `${hint.method ?? "no quant_method"}${hint.format === undefined ? "" : `, ${hint.format}`}`
    return `packed integers arranged as by ${method} (${said})`
  }
  const bits = (32 * (isAwq ? columns : zeros.shape[1]!)) / outputs
  const length = isAwq ? rows : (rows * 32) / bits
  const group = groupOf(length, groups, hint.group)
  const fits =
    Number.isInteger(bits) &&
    (isAwq ? bits === 4 : bits >= 2 && bits <= 8) &&
    Number.isInteger(length) &&
    group !== undefined &&
    zeros.shape.join() === [groups, wordsFor(outputs, bits)].join() &&
    (index === undefined || (index.dtype === "int32" && index.shape.join() === String(length)))
  if (!fits) return `packed integers of ${typed(data)} with scales of ${typed(scale)} and qzeros of ${typed(zeros)}`
  if (hint.isReordered === true && index === undefined) return "packed integers in an order of their own without g_idx"
  return {
    shape: [outputs, length],
    text: `${method} int${bits} group ${group}`,
    form: {
      kind: "packed",
      layout: method,
      bits,
      data: data.name,
      scale: { name: scale.name, dtype: scale.dtype },
      zeros: { name: zeros.name, step },
      index: isAwq ? undefined : index?.name,
      groups,
      group
    }
  }
}

/** Bits of a number: as stated, or the only ones with which words hold so many. */
const bitsFor = (words: number, length: number | undefined, stated: number | undefined): number | undefined => {
  if (length === undefined) return stated
  const fits = (bits: number): boolean => wordsFor(length, bits) === words
  if (stated !== undefined && fits(stated)) return stated
  const found = [2, 3, 4, 5, 6, 7, 8].filter(fits)
  return found.length === 1 ? found[0] : undefined
}

/** `weight_packed` of words; the reason where its values cannot be known. */
const packedByRow = (data: ModelTensor, beside: Beside, hint: PackingHint): PackedWeight | string => {
  const [scale, zeros, index] = ["weight_scale", "weight_zero_point", "weight_g_idx"].map((one) => beside.get(one))
  const stranger = strangerIn(beside, rowSuffixes)
  if (stranger !== undefined) return `packed integers beside ${stranger}`
  const rank = data.shape.length
  if (rank < 2 || scale?.shape.length !== rank) return "packed integers without scales"
  if (!scaleTypes.has(scale.dtype)) return `packed integers with scales of ${scale.dtype}`
  const [front, words] = [data.shape.slice(0, -1), data.shape.at(-1)!]
  const groups = scale.shape.at(-1)!
  const stated = hint.lengths?.get(data.name)
  const bits = bitsFor(words, stated, hint.bits)
  if (bits === undefined || bits < 2 || bits > 8) return "packed integers of a number of bits that is not stated"
  const length = stated ?? Math.floor((words * 32) / bits)
  const group = groupOf(length, groups, hint.group)
  const zeroShape = [...front.slice(0, -1), wordsFor(front.at(-1)!, bits), groups]
  const fits =
    wordsFor(length, bits) === words &&
    group !== undefined &&
    scale.shape.slice(0, -1).join() === front.join() &&
    (zeros === undefined || (zeros.dtype === "int32" && zeros.shape.join() === zeroShape.join())) &&
    (index === undefined || (index.dtype === "int32" && rank === 2 && index.shape.join() === String(length)))
  if (!fits) return `packed integers of ${typed(data)} with scales of ${typed(scale)}`
  return {
    shape: [...front, length],
    text: `int${bits} packed ${groups > 1 ? `group ${group}` : "per channel"}`,
    form: {
      kind: "packed",
      layout: "rows",
      bits,
      data: data.name,
      scale: { name: scale.name, dtype: scale.dtype },
      zeros: zeros === undefined ? undefined : { name: zeros.name, step: 0 },
      index: index?.name,
      groups,
      group
    }
  }
}

/** The packed weight that `data` holds the words of, or why its values cannot be known. */
export const packedWeight = (
  own: string,
  data: ModelTensor,
  beside: Beside,
  hint: PackingHint
): PackedWeight | string =>
  data.dtype !== "int32"
    ? `packed integers in ${data.dtype}`
    : own === "qweight"
      ? packedByInput(data, beside, hint)
      : packedByRow(data, beside, hint)

/** Where integers lie among words: the first bit, and the words from one of a line to the next. */
export interface Line {
  readonly start: number
  readonly stride: number
  readonly firstBit: number
}

/** Calls `visit` with each integer of a line: numbers follow each other from the lowest bit up, across words. */
export const eachInteger = (
  words: Uint32Array,
  { firstBit, start, stride }: Line,
  bits: number,
  count: number,
  visit: (code: number, at: number) => void
): void => {
  const mask = 2 ** bits - 1
  for (let at = 0, bit = firstBit; at < count; at++, bit += bits) {
    const place = start + (bit >>> 5) * stride
    const low = bit & 31
    let code = words[place]! >>> low
    if (low + bits > 32) code |= words[place + stride]! << (32 - low)
    visit(code & mask, at)
  }
}

/** Places of eight numbers in a word of AWQ: number `n` is at `awqPlaces[n]`. */
export const awqPlaces: ReadonlyArray<number> = [0, 4, 1, 5, 2, 6, 3, 7]
