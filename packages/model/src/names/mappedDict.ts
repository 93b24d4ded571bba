// SPDX-License-Identifier: Apache-2.0
/** A rank's own tensors under the names of a plan between conventions: views, nothing is copied. */
import { bitsOf } from "@tensorferry/core/base/DType"
import { equalShapes, formatShape } from "@tensorferry/core/base/Region"
import { isContiguous, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { type TensorDict, tensorDict } from "@tensorferry/core/tensor/TensorDict"
import * as Result from "effect/Result"
import { type MappingError, mappingError } from "./MappingError.ts"
import type { MappedRank } from "./mapModel.ts"
import type { MappedParameter } from "./mappedLayouts.ts"

/**
 * Views of a rank's tensors, by the parameters of the plan. Fails with the tensor that is missing, or that has another
 * shape or type than the convention says, or whose elements do not lie densely.
 */
export const mappedDict = (
  rank: MappedRank,
  parameters: ReadonlyArray<MappedParameter>,
  tensors: ReadonlyMap<string, Tensor>
): Result.Result<TensorDict, MappingError> => {
  const refuse = (kind: "missing_source" | "shape_mismatch" | "unsupported", name: string, detail: string) =>
    mappingError(kind, name, undefined, detail, "Hand over the tensors as the convention names them.")
  for (const { name, shape, dtype } of rank.tensors) {
    const own = tensors.get(name)
    if (own === undefined) return refuse("missing_source", name, "The rank holds no such tensor.")
    if (!equalShapes(own.shape, shape) || own.dtype !== dtype)
      return refuse(
        "shape_mismatch",
        name,
        `It is ${own.dtype}${formatShape(own.shape)}, the convention has ${dtype}${formatShape(shape)} here.`
      )
    if (!isContiguous(own)) return refuse("unsupported", name, "Its elements do not lie densely.")
  }
  const views: Array<readonly [string, Tensor]> = []
  for (const { metadata, view } of parameters) {
    const own = tensors.get(view.tensor)!
    const bits = view.offset * bitsOf(own.dtype)
    if (bits % 8 !== 0) return refuse("unsupported", view.tensor, `Part ${metadata.name} begins inside a byte.`)
    const made = tensorView(own.storage, own.dtype, view.shape, {
      strides: view.strides,
      byteOffset: own.byteOffset + bits / 8
    })
    if (Result.isFailure(made))
      return refuse("unsupported", view.tensor, `Part ${metadata.name}: ${made.failure.detail}.`)
    views.push([metadata.name, made.success])
  }
  return Result.succeed(tensorDict(views))
}
