// SPDX-License-Identifier: Apache-2.0
/**
 * Compares our changes from codes to codes with recorded ones: the bytes of the reference where it is exact, an exact
 * result of our own where only another scale is, and a refusal where nothing is.
 */
import type { Block, QuantizeFault } from "@tensorferry/model/quantize/Matrix"
import { type QuantizedMx, readMxfp4 } from "@tensorferry/model/quantize/mx"
import { readNvfp4 } from "@tensorferry/model/quantize/nvfp4"
import {
  fp8BlockToMxfp8,
  mxfp4ToFp8Block,
  mxfp4ToNvfp4,
  nvfp4ModeloptToCompressedTensors
} from "@tensorferry/model/quantize/recast"
import { toFloats } from "@tensorferry/model/values/codes"
import * as Result from "effect/Result"
import { faultOf, inMemory, type Verdict } from "./quantizedValues.ts"
import { byteFault, e4m3Fault, floatFault } from "./quantizers.ts"

interface RecordedBlock {
  readonly exact_scale_bytes: "any" | readonly [] | readonly [low: number, high: number]
}

interface RecordedRecast {
  readonly id: string
  readonly kind: string
  readonly title: string
  readonly shape: readonly [number, number]
  readonly packed: string
  readonly scale: string
  readonly block_scale: string
  readonly scale_2: string
  readonly source_f32: string
  readonly scale_shape: readonly [number, number]
  readonly exact?: boolean
  readonly exact_possible?: boolean
  readonly deq_equal_apart_from_sign_of_zero?: boolean
  readonly blocks?: ReadonlyArray<RecordedBlock>
  readonly reference?: Readonly<Record<string, string>>
}

const bytesOf = (hex: string): Uint8Array => Uint8Array.from(Buffer.from(hex, "hex"))

const mxfp4Of = ({ packed, scale, shape: [rows, columns] }: RecordedRecast): QuantizedMx => ({
  data: bytesOf(packed),
  scales: bytesOf(scale),
  scaleShape: [rows, columns / 32]
})

/** A refusal is right where nothing exact exists, and wrong elsewhere. */
const judged = <A>(
  made: Result.Result<A, QuantizeFault>,
  isPossible: boolean,
  check: (made: A) => string | undefined
): string | undefined => {
  if (Result.isFailure(made)) return isPossible ? made.failure.message : undefined
  return isPossible ? check(made.success) : "it is not refused, and no exact result exists"
}

const same = (one: Float32Array, two: Float32Array): string | undefined => {
  const at = one.findIndex((value, place) => value !== two[place])
  return at < 0 ? undefined : `element ${at} is ${one[at]} before and ${two[at]} after`
}

const fp8BlockFault = (recorded: RecordedRecast): string | undefined => {
  const { blocks, exact, exact_possible, reference, shape } = recorded
  const made = mxfp4ToFp8Block(mxfp4Of(recorded))
  // The first block for which no scale will do is the one that is named.
  const wrong = blocks?.findIndex(({ exact_scale_bytes }) => exact_scale_bytes.length === 0) ?? -1
  if (Result.isFailure(made) && wrong >= 0) {
    const [row, column] = made.failure.at ?? [-1, -1]
    const named = Math.floor(row / 128) * (shape[1] / 128) + Math.floor(column / 128)
    if (named !== wrong) return `block ${named} is named instead of ${wrong}`
  }
  return judged(made, exact_possible === true, ({ data, scales }) => {
    const outside = blocks!.findIndex(
      ({ exact_scale_bytes: range }, at) => range !== "any" && !(scales[at]! >= range[0]! && scales[at]! <= range[1]!)
    )
    if (outside >= 0) return `the scale ${scales[outside]} of block ${outside} is not exact`
    if (exact) return byteFault("scale", scales, reference!.scale) ?? e4m3Fault("code", data, reference!.data)
    const across = shape[1] / 128
    const values = toFloats("float8_e4m3fn", data).map((number, at) => {
      const [row, column] = [Math.floor(at / shape[1]), at % shape[1]]
      return number * 2 ** (scales[Math.floor(row / 128) * across + Math.floor(column / 128)]! - 127)
    })
    return same(readMxfp4(mxfp4Of(recorded)), values)
  })
}

const nvfp4Fault = (recorded: RecordedRecast): string | undefined =>
  judged(mxfp4ToNvfp4(mxfp4Of(recorded)), recorded.exact === true, (made) => {
    const { block_scale, data, deq_f32, scale_2 } = recorded.reference!
    return (
      floatFault("global scale", Float32Array.of(made.global), scale_2, "float32") ??
      byteFault("scale", made.scales, block_scale) ??
      byteFault("byte", made.data, data) ??
      faultOf(readNvfp4(made, "modelopt"), { deq_f32 }, () => undefined)
    )
  })

const block128: Block = { rows: 128, columns: 128 }

const mxfp8Fault = ({ exact, reference, scale, scale_shape, shape }: RecordedRecast): string | undefined => {
  const source = { data: new Uint8Array(shape[0] * shape[1]), scales: bytesOf(scale), scaleShape: scale_shape }
  return judged(fp8BlockToMxfp8(source, shape, block128), exact === true, ({ data, scales }) =>
    data === source.data ? byteFault("scale", scales, reference!.scale) : "the codes do not stay"
  )
}

const inverseFault = (recorded: RecordedRecast): string | undefined => {
  const { block_scale, packed, reference, scale_2, shape } = recorded
  const made = nvfp4ModeloptToCompressedTensors({
    data: bytesOf(packed),
    scales: bytesOf(block_scale),
    scaleShape: [shape[0], shape[1] / 16],
    global: toFloats("float32", inMemory(scale_2, "float32"))[0]!
  })
  return judged(
    made,
    recorded.deq_equal_apart_from_sign_of_zero === true,
    ({ data, global, scales }) =>
      floatFault("global scale", Float32Array.of(global), reference!.global_scale, "float32") ??
      byteFault("byte", data, packed) ??
      byteFault("scale", scales, block_scale)
  )
}

const faults: Readonly<Record<string, (recorded: RecordedRecast) => string | undefined>> = {
  mxfp4_to_fp8_block: fp8BlockFault,
  mxfp4_to_nvfp4: nvfp4Fault,
  fp8_block_ue8m0_to_mxfp8: mxfp8Fault,
  nvfp4_modelopt_to_compressed_tensors: inverseFault
}

/** Changes of form, made or refused. */
export const checkRecastBytes = (data: unknown): ReadonlyArray<Verdict> =>
  (data as { readonly cases: ReadonlyArray<RecordedRecast> }).cases.map((recorded) => ({
    name: `${recorded.id} ${recorded.kind}, ${recorded.title}, made here`,
    fault: (faults[recorded.kind] ?? (() => "the kind is not known"))(recorded)
  }))
