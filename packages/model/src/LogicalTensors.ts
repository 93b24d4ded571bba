// SPDX-License-Identifier: Apache-2.0
/**
 * A model by the values that it stands for: plain numbers, and numbers with the scales beside them, which are one tensor
 * here. Values are read as float32, region by region.
 */
import type { Region, Shape } from "@tensorferry/core/base/Region"
import type * as Effect from "effect/Effect"
import type { CheckpointError } from "./checkpoint/CheckpointError.ts"
import type { Model } from "./Model.ts"
import type { ModelError } from "./ModelError.ts"
import { readValues } from "./values/readValues.ts"
import { findWeights, type QuantizationHint } from "./values/ValueForm.ts"

/** One tensor of a model; `read` gives a region's values in row-major order. */
export interface LogicalTensor {
  /** Of the values, not of how they are stored. */
  readonly shape: Shape
  /** How it is stored, for people. */
  readonly form: string
  /** The stored tensors that it is made of. */
  readonly parts: ReadonlyArray<string>
  /** Undefined where the values are no numbers that can be compared. */
  readonly read: ((region: Region) => Effect.Effect<Float32Array, CheckpointError | ModelError>) | undefined
}

/** By name; scales that belong to a tensor are not listed. */
export const logicalTensors = (model: Model, hint: QuantizationHint): ReadonlyMap<string, LogicalTensor> =>
  new Map(
    findWeights(model.tensors, hint).map((weight) => {
      const { form, name, parts, shape, text } = weight
      const isRead = form.kind !== "unreadable" && form.kind !== "opaque"
      const read = isRead ? (region: Region) => readValues(model, weight, region) : undefined
      return [name, { shape, form: text, parts, read }] as const
    })
  )
