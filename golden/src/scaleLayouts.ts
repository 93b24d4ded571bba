// SPDX-License-Identifier: Apache-2.0
/** Compares scales in the orders of serving code with recorded ones, and single roundings with recorded casts of PyTorch. */
import { powerBytes } from "@tensorferry/model/quantize/fp8"
import { e4m3Code, roundingOf } from "@tensorferry/model/quantize/numbers"
import { packPowers, tileScales, untileScales } from "@tensorferry/model/quantize/scaleLayouts"
import { toFloats } from "@tensorferry/model/values/codes"
import type { RecordedCasts } from "./dtypeCasts.ts"
import { inMemory, type Verdict } from "./quantizedValues.ts"
import { byteFault, e4m3Fault, floatFault } from "./quantizers.ts"

interface RecordedPowers {
  readonly id: string
  readonly scale: string
  readonly scale_shape: readonly [number, number]
  readonly stride: readonly [number, number]
  readonly buffer: string
}

/** Powers of two packed for DeepGEMM. */
export const checkPackedPowers = (data: unknown): ReadonlyArray<Verdict> =>
  (data as { readonly scale_layouts: ReadonlyArray<RecordedPowers> }).scale_layouts.map(
    ({ buffer, id, scale, scale_shape, stride }) => {
      const scales = powerBytes(toFloats("float32", inMemory(scale, "float32")))
      const made = packPowers(scales ?? new Uint8Array(), scale_shape)
      const fault =
        made.stride === stride[1]
          ? byteFault("byte", made.bytes, Buffer.from(inMemory(buffer, "int32")).toString("hex"))
          : `a column has ${made.stride} words, the reference has ${stride[1]}`
      return { name: `${id} scales packed for DeepGEMM`, fault }
    }
  )

interface RecordedTiles {
  readonly id: string
  readonly shape: readonly [number, number]
  readonly scale: string
  readonly swizzled: string
}

/** Scales of groups in tiles, and back. */
export const checkTiles = (data: unknown): ReadonlyArray<Verdict> =>
  (data as { readonly scale_swizzle: ReadonlyArray<RecordedTiles> }).scale_swizzle.map(
    ({ id, scale, shape, swizzled }) => ({
      name: `${id} scales in tiles`,
      fault:
        byteFault("byte", tileScales(inMemory(scale, "uint8"), shape), swizzled) ??
        byteFault("scale", untileScales(inMemory(swizzled, "uint8"), shape), scale)
    })
  )

/** Roundings of a float32 to the types of sources and codes. */
export const checkRoundings = ({ casts, inputs }: RecordedCasts): ReadonlyArray<Verdict> =>
  casts.flatMap(({ dst, outputs, src }): ReadonlyArray<Verdict> => {
    if (src !== "float32") return []
    const values = toFloats("float32", inMemory(inputs.float32!, "float32"))
    const name = `float32 rounded to ${dst}`
    if (dst === "float8_e4m3fn") return [{ name, fault: e4m3Fault("code", Uint8Array.from(values, e4m3Code), outputs) }]
    if (dst !== "bfloat16" && dst !== "float16") return []
    return [{ name, fault: floatFault("value", values.map(roundingOf[dst]), outputs, dst) }]
  })
