// SPDX-License-Identifier: Apache-2.0
/**
 * How many numbers a row of packed words holds, as `weight_shape` beside them states: the last word of a row may be filled
 * in part, and no shape says so.
 */

import * as Effect from "effect/Effect"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import type { Model } from "../Model.ts"
import { type ModelError, modelError } from "../ModelError.ts"

const suffix = "weight_packed"

/** Rows and columns that the bytes of a `weight_shape` state. */
const statedShape = ({ dtype }: ModelTensor, bytes: Uint8Array): readonly [number, number] => {
  const view = new DataView(bytes.buffer)
  return dtype === "int32"
    ? [view.getInt32(0, true), view.getInt32(4, true)]
    : [Number(view.getBigInt64(0, true)), Number(view.getBigInt64(8, true))]
}

/** Numbers of a row by the name of its words. Fails with Unsupported where what is stated cannot be the weight's. */
export const readRowLengths = (
  model: Pick<Model, "readRegion" | "tensors">
): Effect.Effect<ReadonlyMap<string, number>, CheckpointError | ModelError> =>
  Effect.gen(function* () {
    const words = model.tensors.filter(
      ({ dtype, name, shape }) => dtype === "int32" && shape.length === 2 && name.endsWith(suffix)
    )
    const lengths = new Map<string, number>()
    if (words.length === 0) return lengths
    const known = new Map(model.tensors.map((tensor) => [tensor.name, tensor]))
    for (const { name, shape } of words) {
      const stated = known.get(`${name.slice(0, -suffix.length)}weight_shape`)
      if (stated?.shape.join() !== "2" || (stated.dtype !== "int64" && stated.dtype !== "int32")) continue
      const bytes = new Uint8Array(stated.dtype === "int64" ? 16 : 8)
      yield* model.readRegion(stated.name, [[0, 2]], bytes)
      const [rows, columns] = statedShape(stated, bytes)
      const [height, width] = shape as unknown as readonly [number, number]
      // Eight bits are the most, one is the least.
      if (rows !== height || columns < width * 4 - 3 || columns > width * 32) {
        return yield* modelError("Unsupported", {
          paramName: stated.name,
          detail: `It states a weight of [${rows},${columns}], and ${name} has [${height},${width}] words.`,
          remedy: "Fetch the files again, or name the whole model: a shard of another tool states its own shape."
        })
      }
      lengths.set(name, columns)
    }
    return lengths
  })
