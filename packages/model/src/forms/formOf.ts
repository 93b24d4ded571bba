// SPDX-License-Identifier: Apache-2.0
/**
 * Finds the form of a module from the tensors that it has, by their names behind the module's own, their types and shapes,
 * and the config's word where shapes leave a choice. A form that is not known is a fault, never a guess.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { formatShape, type Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { adapterForm } from "./adapters.ts"
import { type Form, type FormPart, follows, type StoredTensor, stays } from "./Form.ts"
import { packedWords, packedWordsByInput } from "./packedWords.ts"
import { scalePart, scaleText } from "./scales.ts"
import type { FormInput, WeightDims } from "./WeightDims.ts"

const partsWhole: (tensor: StoredTensor) => FormPart = ({ shape }) => ({ kind: "state", maps: shape.map(() => stays) })

/** Everything that every rank holds whole: no form is looked for. */
export const wholeForm = (tensors: ReadonlyArray<StoredTensor>): Form => ({
  name: tensors.length === 1 ? tensors[0]!.dtype : "whole",
  shape: tensors[0]?.shape ?? [],
  parts: tensors.map(partsWhole)
})

const scalarSuffixes = new Set([
  "input_scale",
  "weight_scale_2",
  "weight_global_scale",
  "input_global_scale",
  "output_scale",
  "k_scale",
  "v_scale",
  "q_scale",
  "weight_format",
  "input_zero_point"
])

/** Suffixes of scales in the same order as the weight's rows and columns. */
const scaleSuffixes = new Set(["weight_scale", "weight_scale_inv", "weight_zero_point", "scale", "scale_inv", "SCB"])

const numberNames: { readonly [Name in DType]?: string } = {
  float8_e4m3fn: "fp8",
  float8_e5m2: "fp8 e5m2",
  int8: "int8",
  uint8: "uint8",
  float4_e2m1fn: "fp4"
}

/** Types that are codes: by themselves they are no weight. */
const codeTypes: ReadonlySet<DType> = new Set<DType>(["uint8", "int8", "int32", "uint32", "int16", "int64", "uint16"])

const fault = (detail: string): Result.Result<never, string> => Result.fail(detail)

const unfit = ({ suffix, shape, dtype }: StoredTensor, weight: Shape): Result.Result<never, string> =>
  fault(`${suffix} of ${dtype}${formatShape(shape)} does not fit a weight of ${formatShape(weight)}`)

/** A bias has the weight's dimensions without the input. */
const biasPart = ({ dims, out }: WeightDims, shape: Shape, weight: Shape): FormPart | undefined => {
  const kept = dims.flatMap(({ is }, dim) => (is === "in" || is === "other" ? [] : [dim])).slice(-shape.length)
  if (out === undefined || shape.length !== kept.length) return undefined
  return shape.every((length, at) => length === weight[kept[at]!])
    ? { kind: "bias", maps: kept.map((dim) => follows(dim)) }
    : undefined
}

/** Blocks and scales of MXFP4 as gpt-oss stores them: 16 bytes for 32 inputs, outputs first. */
const mxfp4Blocks = (input: FormInput, blocks: StoredTensor): Result.Result<Form, string> => {
  const { out, in: inputs, dims } = input.weight
  const [count, rows, groups, bytes] = blocks.shape
  const expert = dims.findIndex(({ is }) => is === "experts")
  if (
    blocks.shape.length !== 4 ||
    bytes !== 16 ||
    blocks.dtype !== "uint8" ||
    out === undefined ||
    inputs === undefined
  )
    return unfit(blocks, [])
  if (!input.tensors.some(({ suffix }) => suffix === "scales"))
    return fault("blocks of mxfp4 have no scales beside them")
  const shape = dims.map((_, dim) => (dim === expert ? count! : dim === out ? rows! : groups! * 32))
  const common = [follows(expert), follows(out), follows(inputs, 32)]
  return partsOf(input, shape, "mxfp4", (tensor) =>
    tensor.suffix === "blocks"
      ? { kind: "packed", maps: [...common, stays] }
      : tensor.suffix === "scales" && tensor.shape.join() === `${count},${rows},${groups}`
        ? { kind: "groupScale", maps: common }
        : undefined
  )
}

/** One number for the tensor, or one for each of its experts. */
const scalarPart = ({ dims }: WeightDims, { shape }: StoredTensor, weight: Shape): FormPart | undefined => {
  const isPerExpert = dims[0]?.is === "experts" && shape.length > 0 && shape[0] === weight[0]
  const rest = isPerExpert ? shape.slice(1) : shape
  if (rest.some((length) => length !== 1)) return undefined
  return { kind: "globalScale", maps: [...(isPerExpert ? [follows(0)] : []), ...rest.map(() => stays)] }
}

/** Parts of all tensors: what `special` knows, then biases and scales that every form may have. */
const partsOf = (
  { weight, tensors, quantization }: FormInput,
  shape: Shape,
  name: string,
  special: (tensor: StoredTensor) => FormPart | undefined,
  more: Pick<Form, "uncut"> = {}
): Result.Result<Form, string> => {
  const parts: Array<FormPart> = []
  const block = quantization?.block
  for (const tensor of tensors) {
    const { suffix } = tensor
    const part =
      special(tensor) ??
      (suffix === "bias"
        ? biasPart(weight, tensor.shape, shape)
        : scalarSuffixes.has(suffix)
          ? scalarPart(weight, tensor, shape)
          : scaleSuffixes.has(suffix)
            ? scalePart(shape, tensor.shape, { rows: block?.[0], columns: block?.[1] ?? quantization?.group })
            : suffix.startsWith("lora_")
              ? adapterForm(weight, tensor, shape)
              : undefined)
    if (part === undefined) return unfit(tensor, shape)
    parts.push(part)
  }
  return Result.succeed({ name, shape, parts, ...more })
}

/** Two numbers to a byte along the input, with a scale per group of 16 (NVFP4) or of 32 (MXFP4). */
const halfBytes = (input: FormInput, data: StoredTensor): Result.Result<Form, string> => {
  const last = data.shape.length - 1
  const inputs = input.weight.in
  if (inputs === undefined || inputs !== last) return unfit(data, [])
  const shape = data.shape.map((length, dim) => (dim === inputs ? length * 2 : length))
  const scale = input.tensors.find(({ suffix }) => suffix === "weight_scale")
  const isMx = scale?.dtype === "uint8" || scale?.dtype === "float8_e8m0fnu"
  const group = isMx ? 32 : 16
  const fits = shape.every((length, dim) => (dim === inputs ? Math.ceil(length / group) : length) === scale?.shape[dim])
  if (scale === undefined || scale.shape.length !== shape.length || !fits)
    return fault(`${data.suffix} holds two numbers to a byte, but no scales of groups of ${group} are beside it`)
  const globals = ["weight_scale_2", "weight_global_scale"]
  if (!isMx && !input.tensors.some(({ suffix }) => globals.includes(suffix)))
    return fault(`${data.suffix} is nvfp4, and neither ${globals.join(" nor ")} is beside it`)
  const grouped = (per: number) => shape.map((_, dim) => (dim === inputs ? follows(dim, per) : follows(dim)))
  return partsOf(input, shape, isMx ? "mxfp4" : "nvfp4", (tensor) =>
    tensor === data
      ? { kind: "packed", maps: grouped(2) }
      : tensor === scale
        ? { kind: "groupScale", maps: grouped(group) }
        : tensor.suffix === "weight_shape"
          ? { kind: "weightShape", maps: [stays] }
          : undefined
  )
}

/** bitsandbytes flattens a weight before it packs it: no cut of rows or columns is one of the bytes. */
const flatBytes = (input: FormInput): Result.Result<Form, string> =>
  Result.succeed({
    name: "bitsandbytes 4-bit",
    shape: input.tensors.find(({ suffix }) => suffix === "weight")!.shape,
    parts: input.tensors.map((tensor) =>
      tensor.suffix === "bias" && input.weight.out !== undefined
        ? { kind: "bias", maps: [follows(input.weight.out)] }
        : partsWhole(tensor)
    ),
    uncut: { along: "any", why: "bitsandbytes packs the flattened weight" }
  })

/** Scales of blocks lie as the config says; one for a channel or for all says itself what it is of. */
const isGridOf = (block: readonly [number, number], weight: Shape, scale: StoredTensor, { kind }: FormPart): boolean =>
  (kind !== "blockScale" && kind !== "groupScale") ||
  block.every((size, at) => scale.shape.at(at - 2) === Math.ceil(weight.at(at - 2)! / size))

const plainForm = (input: FormInput, data: StoredTensor): Result.Result<Form, string> => {
  const { shape, dtype } = data
  if (shape.length > input.weight.dims.length && input.weight.dims.length > 0) return unfit(data, [])
  const block = input.quantization?.block
  // Scales of activations and of caches may come first: files are sorted by name.
  const scale = input.tensors.find(
    ({ suffix }) =>
      !scalarSuffixes.has(suffix) && (suffix.endsWith("scale") || suffix.endsWith("scale_inv") || suffix === "SCB")
  )
  const part =
    scale === undefined
      ? undefined
      : scalePart(shape, scale.shape, { rows: block?.[0], columns: block?.[1] ?? input.quantization?.group })
  if (part === undefined && codeTypes.has(dtype) && input.weight.dims.some(({ roles }) => roles.length > 0))
    return fault(
      `${data.suffix === "" ? "the tensor" : data.suffix} is ${dtype}, and no scales that are known are beside it`
    )
  const isFloat8 = dtype === "float8_e4m3fn" || dtype === "float8_e5m2"
  if (
    isFloat8 &&
    block !== undefined &&
    scale !== undefined &&
    part !== undefined &&
    !isGridOf(block, shape, scale, part)
  )
    return fault(
      `${scale.suffix} of ${scale.dtype}${formatShape(scale.shape)} is no grid of blocks of ${block.join("x")}, which the config states, over a weight of ${formatShape(shape)}`
    )
  if (part === undefined && isFloat8 && input.quantization !== undefined && input.weight.out !== undefined)
    return fault(
      `${data.suffix === "" ? "the tensor" : data.suffix} is ${dtype} of ${input.quantization.method}, and its scale is not beside it`
    )
  const isMx = scale?.dtype === "float8_e8m0fnu" || (scale?.dtype === "uint8" && dtype !== "int8")
  const numbers = numberNames[dtype] ?? dtype
  const name =
    part === undefined
      ? numbers
      : isMx && part.kind === "groupScale"
        ? `mx${numbers} group ${part.maps.at(-1)!.per}`
        : `${numbers} ${scaleText(part)}`
  return partsOf(input, shape, name, (tensor) =>
    tensor === data ? { kind: "weight", maps: shape.map((_, dim) => follows(dim)) } : undefined
  )
}

/** The form of a module's tensors, or what is not known about them. */
export const formOf = (input: FormInput): Result.Result<Form, string> => {
  const find = (suffix: string): StoredTensor | undefined => input.tensors.find((one) => one.suffix === suffix)
  const { tensors } = input
  const words = find("weight_packed")
  const more = (tensor: StoredTensor, shape: Shape): FormPart | undefined =>
    tensor.suffix === "bias"
      ? biasPart(input.weight, tensor.shape, shape)
      : tensor.suffix.startsWith("lora_")
        ? adapterForm(input.weight, tensor, shape)
        : undefined
  if (find("qweight") !== undefined) return packedWordsByInput(input, find("qweight")!, more)
  if (words !== undefined) return words.dtype === "int32" ? packedWords(input, words, more) : halfBytes(input, words)
  const blocks = find("blocks")
  if (blocks !== undefined) return mxfp4Blocks(input, blocks)
  const data = find("weight") ?? find("")
  if (data !== undefined) {
    if (tensors.some(({ suffix }) => suffix.includes("absmax") || suffix.includes("quant_state")))
      return flatBytes(input)
    const scale = find("weight_scale")
    const isHalf =
      data.dtype === "uint8" && (scale?.dtype === "float8_e4m3fn" || (scale && find("weight_scale_2")) !== undefined)
    return isHalf ? halfBytes(input, data) : plainForm(input, data)
  }
  // A part of a module, as an adapter or a bias by itself, says its own length.
  const shape = input.weight.dims.map((_, dim) => lengthFrom(input, dim))
  return partsOf(
    input,
    shape,
    tensors.some(({ suffix }) => suffix.startsWith("lora_")) ? "adapter" : "part",
    () => undefined
  )
}

const lengthFrom = ({ tensors, weight }: FormInput, dim: number): number => {
  for (const { suffix, shape } of tensors) {
    if (dim === weight.out && (suffix === "bias" || suffix === "lora_B.weight" || suffix === "lora_B.bias"))
      return shape[0]!
    if (dim === weight.out && suffix.startsWith("lora_magnitude_vector")) return shape[0]!
    if (dim === weight.in && suffix === "lora_A.weight") return shape[1] ?? 1
    if (dim === weight.out && suffix === "lora_embedding_A") return shape[1] ?? 1
    if (dim === weight.in && suffix === "lora_embedding_B") return shape[0]!
  }
  return 1
}
