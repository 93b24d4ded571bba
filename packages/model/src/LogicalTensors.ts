// SPDX-License-Identifier: Apache-2.0
/**
 * A model by the values that it stands for: plain floats, and data with scales beside it (`NAME` and `NAME_scale`), which
 * are one tensor here. Values are read as float32, converted by an engine, region by region.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { bitsOf, isCastable } from "@tensorferry/core/base/DType"
import { elementCount, equalShapes, type Region, regionShape, type Shape } from "@tensorferry/core/base/Region"
import type { TensorEngineShape, TensorError } from "@tensorferry/core/service/TensorEngine"
import { mxfp8Recipe, type QuantizedTensor, scaleShapeOf } from "@tensorferry/core/tensor/QuantizedTensor"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import { blockHull, scaleRegion } from "@tensorferry/core/transform/QuantizedRegion"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { CheckpointError } from "./checkpoint/CheckpointError.ts"
import { scaleNameOf } from "./conversion.ts"
import type { Model } from "./Model.ts"
import type { ModelError } from "./ModelError.ts"

/** One tensor of a model; `read` gives a region's values in row-major order. */
export interface LogicalTensor {
  readonly shape: Shape
  /** How it is stored, for people. */
  readonly form: string
  /** Undefined where the values are no numbers that can be compared. */
  readonly read:
    | ((region: Region) => Effect.Effect<Float32Array, CheckpointError | ModelError | TensorError>)
    | undefined
}

const within = (region: Region, hull: Region): Region =>
  region.map(([start, end], dim) => [start - hull[dim]![0], end - hull[dim]![0]] as const)

/** By name; scales that belong to a tensor are not listed. */
export const logicalTensors = (model: Model, engine: TensorEngineShape): ReadonlyMap<string, LogicalTensor> => {
  const stored = new Map(model.tensors.map((tensor) => [tensor.name, tensor]))
  const scaleOf = (name: string) => {
    const [data, scale] = [stored.get(name), stored.get(scaleNameOf(name))]
    const shape = data === undefined ? undefined : scaleShapeOf(data.shape)
    const isPair = data?.dtype === "float8_e4m3fn" && scale?.dtype === "float8_e8m0fnu" && shape !== undefined
    return isPair && equalShapes(shape, scale.shape) ? scale : undefined
  }
  const scales = new Set(model.tensors.flatMap(({ name }) => scaleOf(name)?.name ?? []))

  const place = (name: string, dtype: DType, region: Region) =>
    Effect.gen(function* () {
      const shape = regionShape(region)
      const bytes = new Uint8Array((elementCount(shape) * bitsOf(dtype)) / 8)
      yield* model.readRegion(name, region, bytes)
      return Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), dtype, shape))
    })
  const floats = (shape: Shape) =>
    Effect.gen(function* () {
      const values = new Float32Array(elementCount(shape))
      const bytes = new Uint8Array(values.buffer)
      return { values, tensor: Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), "float32", shape)) }
    })

  const readPlain = (name: string, dtype: DType) => (region: Region) =>
    Effect.scoped(
      Effect.gen(function* () {
        const { values, tensor } = yield* floats(regionShape(region))
        yield* engine.copy([{ dst: tensor, src: yield* place(name, dtype, region) }])
        return values
      })
    )
  const readQuantized = (name: string) => (region: Region) =>
    Effect.scoped(
      Effect.gen(function* () {
        const hull = blockHull(region)
        const data = yield* place(name, "float8_e4m3fn", hull)
        const scale = yield* place(scaleNameOf(name), "float8_e8m0fnu", scaleRegion(hull))
        const source: QuantizedTensor = { _tag: "QuantizedTensor", data, scale, recipe: mxfp8Recipe() }
        const { values, tensor } = yield* floats(regionShape(hull))
        yield* engine.dequantize(source, tensor)
        const inner = within(region, hull).at(-1)!
        const row = hull.at(-1)![1] - hull.at(-1)![0]
        return row === inner[1] - inner[0]
          ? values
          : values.filter((_, at) => at % row >= inner[0] && at % row < inner[1])
      })
    )

  return new Map(
    model.tensors.flatMap(({ name, dtype, shape }): ReadonlyArray<readonly [string, LogicalTensor]> => {
      if (scales.has(name)) return []
      if (scaleOf(name) !== undefined) return [[name, { shape, form: "mxfp8", read: readQuantized(name) }]]
      const read = isCastable(dtype, "float32") ? readPlain(name, dtype) : undefined
      return [[name, { shape, form: dtype, read }]]
    })
  )
}
