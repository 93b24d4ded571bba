// SPDX-License-Identifier: Apache-2.0
/**
 * Integers of few bits in words of 32: compressed-tensors packs along the input, GPTQ along the input of a transposed
 * weight, AWQ along the output of one. Zero points are packed along the output in all of them.
 */
import type { Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type DimMap, type Form, type FormPart, follows, type StoredTensor, stays } from "./Form.ts"
import type { FormInput } from "./WeightDims.ts"

type More = (tensor: StoredTensor, shape: Shape) => FormPart | undefined

const gcd = (a: number, b: number): number => (b === 0 ? a : gcd(b, a % b))

/** Numbers that fill whole words, and how many words. */
const wordsOf = (bits: number): { readonly per: number; readonly holds: number } => {
  const common = gcd(32, bits)
  return { per: 32 / common, holds: bits / common }
}

const build = (
  { tensors }: FormInput,
  name: string,
  shape: Shape,
  known: (tensor: StoredTensor) => FormPart | undefined,
  more: More,
  rest: Pick<Form, "uncut" | "groups"> = {}
): Result.Result<Form, string> => {
  const parts: Array<FormPart> = []
  for (const tensor of tensors) {
    const part = known(tensor) ?? more(tensor, shape)
    if (part === undefined)
      return Result.fail(`${tensor.suffix} of ${tensor.dtype}[${tensor.shape.join(",")}] is no part of ${name}`)
    parts.push(part)
  }
  return Result.succeed({ name, shape, parts, ...rest })
}

/** One scale, or one zero point, for all inputs, or one per group of them. */
const alongInput = (dim: number, length: number, count: number, stated: number | undefined): DimMap | undefined => {
  if (count === 1) return stays
  if (stated !== undefined && Math.ceil(length / stated) === count) return follows(dim, stated)
  return length % count === 0 ? follows(dim, length / count) : undefined
}

interface Row {
  readonly bits: number
  /** Numbers of a row. */
  readonly length: number
}

/**
 * The numbers of a row of `words`, whose last may be filled in part: as many as the config states of the weight, as groups
 * have, or as fit. Layers may differ in their bits; undefined where nothing tells which they have.
 */
const rowOf = (words: number, groups: number, { inputs, quantization }: FormInput): Row | undefined => {
  const stated = quantization?.bits ?? 4
  const widths = quantization?.widths ?? [stated]
  const ofLength = (length: number | undefined): Row | undefined => {
    const bits = widths.find((one) => length !== undefined && Math.ceil((length * one) / 32) === words)
    return bits === undefined ? undefined : { bits, length: length! }
  }
  const group = quantization?.group
  const grouped = groups > 1 && group !== undefined ? groups * group : undefined
  const found = ofLength(inputs) ?? ofLength(grouped)
  if (found !== undefined || widths.length > 1) return found
  const { per, holds } = wordsOf(stated)
  return { bits: stated, length: Math.floor((words * per) / holds) }
}

/** `weight_packed` of compressed-tensors; weights of experts have a dimension for them in front. */
export const packedWords = (input: FormInput, data: StoredTensor, more: More): Result.Result<Form, string> => {
  const { quantization, tensors, weight } = input
  const rank = data.shape.length
  const [out, inputs] = [rank - 2, rank - 1]
  if (weight.out !== out || weight.in !== inputs || rank !== weight.dims.length)
    return Result.fail(`weight_packed of rank ${rank} does not fit`)
  const scale = tensors.find(({ suffix }) => suffix === "weight_scale")
  if (scale === undefined) return Result.fail("weight_packed has no weight_scale beside it")
  const isReordered = tensors.some(({ suffix }) => suffix === "weight_g_idx")
  const groups = scale.shape.at(-1) ?? 1
  const found = rowOf(data.shape[inputs]!, groups, input)
  if (found === undefined)
    return Result.fail(`the config states ${quantization!.widths!.join(" and ")} bits, and nothing says which it has`)
  const { bits, length } = found
  const { per, holds } = wordsOf(bits)
  const group = quantization?.group
  const shape = data.shape.map((one, dim) => (dim === inputs ? length : one))
  const name = `int${bits} packed${groups > 1 ? ` group ${Math.ceil(length / groups)}` : " per channel"}`
  const front = shape.slice(0, out).map((_, dim) => follows(dim))
  const scales = isReordered ? stays : alongInput(inputs, length, groups, group)
  if (scales === undefined) return Result.fail(`weight_scale has ${groups} groups for ${length} inputs`)
  return build(
    input,
    name,
    shape,
    ({ suffix, shape: own }) => {
      switch (suffix) {
        case "weight_packed":
          return { kind: "packed", maps: [...front, follows(out), follows(inputs, per, holds)] }
        case "weight_scale":
          return own.length === rank ? { kind: "groupScale", maps: [...front, follows(out), scales] } : undefined
        case "weight_zero_point":
          return own.length === rank
            ? { kind: "zeroPoint", maps: [...front, follows(out, per, holds), scales] }
            : undefined
        case "weight_g_idx":
          return { kind: "groupIndex", maps: [...front.slice(0, own.length - 1), follows(inputs)] }
        case "weight_shape":
          return { kind: "weightShape", maps: own.map(() => stays) }
        default:
          return undefined
      }
    },
    more
  )
}

/** `qweight` of GPTQ and AWQ: inputs first. */
export const packedWordsByInput = (input: FormInput, data: StoredTensor, more: More): Result.Result<Form, string> => {
  const { quantization, tensors, weight } = input
  const { out, in: inputs, dims } = weight
  const scales = tensors.find(({ suffix }) => suffix === "scales")
  const [rows, columns] = data.shape
  const [groups, outputs] = scales?.shape ?? []
  if (
    out === undefined ||
    inputs === undefined ||
    dims.length !== 2 ||
    data.shape.length !== 2 ||
    scales?.shape.length !== 2
  )
    return Result.fail("qweight is not a matrix with scales beside it")
  const isAwq = outputs !== columns
  const zeros = tensors.find(({ suffix }) => suffix === "qzeros")?.shape[1]
  if (zeros === undefined) return Result.fail("qweight has no qzeros beside it")
  const bits = isAwq ? (32 * columns!) / outputs! : (32 * zeros) / outputs!
  if (!Number.isInteger(bits) || bits < 1 || bits > 16)
    return Result.fail(`qweight and scales give ${bits} bits to a number`)
  const { per, holds } = wordsOf(bits)
  const length = isAwq ? rows! : (rows! * per) / holds
  const shape = out === 0 ? [outputs!, length] : [length, outputs!]
  const grouped = alongInput(inputs, length, groups!, quantization?.group)
  if (grouped === undefined) return Result.fail(`scales have ${groups} groups for ${length} inputs`)
  const packedOut = follows(out, per, holds)
  const name = `${isAwq ? "awq" : "gptq"} int${bits} group ${Math.ceil(length / groups!)}`
  const isReordered = !isAwq && quantization?.isReordered === true
  return build(
    input,
    name,
    shape,
    ({ suffix }) => {
      switch (suffix) {
        case "qweight":
          return isAwq
            ? { kind: "packed", maps: [follows(inputs), packedOut] }
            : { kind: "packed", maps: [follows(inputs, per, holds), follows(out)] }
        case "qzeros":
          return { kind: "zeroPoint", maps: [grouped, packedOut] }
        case "scales":
          return { kind: "groupScale", maps: [grouped, follows(out)] }
        case "g_idx":
          return { kind: "groupIndex", maps: [follows(inputs)] }
        default:
          return undefined
      }
    },
    more,
    {
      groups: Math.ceil(length / groups!),
      ...(isReordered ? { uncut: { along: "in", why: "its inputs are in an order of their own (desc_act)" } } : {})
    }
  )
}
