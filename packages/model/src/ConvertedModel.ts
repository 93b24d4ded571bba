// SPDX-License-Identifier: Apache-2.0
/**
 * A checkpoint as a job's result must have it: every region is read and converted by the rank's own engine, whole blocks at
 * a time. What travelled is compared with this.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Region } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { mxBlockSize, mxfp8Recipe, type QuantizedTensor, scaleShapeOf } from "@tensorferry/core/tensor/QuantizedTensor"
import { sliceTensor, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { blockHull, scaleHull } from "@tensorferry/core/transform/QuantizedRegion"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type Conversion, convertedTensors, isQuantized, scaleNameOf } from "./conversion.ts"
import type { ModelTensor } from "./layout/ModelLayout.ts"
import type { Model } from "./Model.ts"
import { modelError } from "./ModelError.ts"
import { readTensor } from "./stream/readTensor.ts"

const within = (region: Region, hull: Region): Region =>
  region.map(([start, end], dim) => [start - hull[dim]![0], end - hull[dim]![0]] as const)

/** The region of elements that a region of scales belongs to. */
const elementsOf = (scales: Region): Region =>
  scales.map(([start, end], dim) =>
    dim < scales.length - 1 ? ([start, end] as const) : ([start * mxBlockSize, end * mxBlockSize] as const)
  )

/** Dense bytes of a region of a tensor into `into`. */
const take = (engine: TensorEngineShape, tensor: Tensor, region: Region, into: Uint8Array) =>
  Effect.gen(function* () {
    const src = Result.getOrThrow(sliceTensor(tensor, region))
    const dst = Result.getOrThrow(tensorView(yield* engine.wrapHost(into), tensor.dtype, src.shape))
    yield* engine.copy([{ dst, src }])
  })

/** The model as a conversion makes it, read from the model as it is: what a result is proved against. */
export const convertedModel = (model: Model, conversion: Conversion | undefined) =>
  Effect.map(TensorEngine, (engine): Model => {
    if (conversion === undefined) return model
    const stored = new Map(model.tensors.map((tensor) => [tensor.name, tensor]))
    const kept = new Map(convertedTensors(model.tensors, conversion).map((tensor) => [tensor.name, tensor]))
    const scaled = new Map(
      model.tensors.flatMap((tensor) => (isQuantized(conversion, tensor) ? [[scaleNameOf(tensor.name), tensor]] : []))
    ) as ReadonlyMap<string, ModelTensor>

    const read = (name: string, dtype: DType, region: Region) => readTensor(engine, model, { name, dtype }, region)
    const cast = (tensor: Tensor, dtype: DType) =>
      Effect.gen(function* () {
        if (tensor.dtype === dtype) return tensor
        const made = yield* engine.allocate(dtype, tensor.shape)
        yield* engine.copy([{ dst: made, src: tensor }])
        return made
      })
    /** Values by way of what travels: the receiver's form is narrow before it is quantized. */
    const quantize = ({ name, dtype }: ModelTensor, region: Region) =>
      Effect.gen(function* () {
        const { rule, side } = conversion.transform!
        const values = yield* read(name, dtype, region)
        const source = side === "receiver" ? yield* cast(values, "bfloat16") : values
        const data = yield* engine.allocate("float8_e4m3fn", values.shape)
        const scale = yield* engine.allocate("float8_e8m0fnu", scaleShapeOf(mxfp8Recipe(rule), values.shape)!)
        const made: QuantizedTensor = { _tag: "QuantizedTensor", data, scale, recipe: mxfp8Recipe(rule) }
        yield* engine.quantize(source, made)
        return made
      })

    return {
      ...model,
      tensors: [...kept.values()],
      digestOf: () => undefined,
      readRegion: (name, region, into) =>
        Effect.scoped(
          Effect.gen(function* () {
            const base = scaled.get(name)
            if (base !== undefined) {
              const elements = elementsOf(region)
              const { scale } = yield* quantize(base, elements)
              return yield* take(engine, scale, within(region, scaleHull(mxfp8Recipe(), elements)), into)
            }
            const [from, to] = [stored.get(name), kept.get(name)]
            if (from === undefined || to === undefined || from.dtype === to.dtype) {
              return yield* model.readRegion(name, region, into)
            }
            if (!isQuantized(conversion, from)) {
              const made = yield* cast(yield* read(name, from.dtype, region), to.dtype)
              return yield* take(engine, made, within(region, region), into)
            }
            const hull = blockHull(mxfp8Recipe(), region, from.shape)
            const { data } = yield* quantize(from, hull)
            yield* take(engine, data, within(region, hull), into)
          })
        ).pipe(
          Effect.catchTag("TensorError", (error) =>
            Effect.fail(modelError("Unsupported", { ...error.reason, paramName: name }))
          )
        )
    }
  })
