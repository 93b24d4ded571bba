// SPDX-License-Identifier: Apache-2.0
/** Shared by tests of refit sessions: small weights on the reference engine, and values by number. */
import * as Effect from "effect/Effect"
import type { RefitSpec } from "../../src/refit/RefitSpec.ts"
import type { TensorEngineShape } from "../../src/service/TensorEngine.ts"
import type { Tensor } from "../../src/tensor/Tensor.ts"

export const valuesOf = (tensor: Tensor): ReadonlyArray<number> => {
  const bytes = tensor.storage.bytes!
  return [
    ...new Float32Array(
      bytes.buffer,
      bytes.byteOffset + tensor.byteOffset,
      tensor.shape.reduce((a, b) => a * b, 1)
    )
  ]
}

export const setValues = (tensor: Tensor, values: ReadonlyArray<number>): void => {
  const bytes = tensor.storage.bytes!
  new Float32Array(bytes.buffer, bytes.byteOffset + tensor.byteOffset, values.length).set(values)
}

export const floats = (engine: TensorEngineShape, values: ReadonlyArray<number>) =>
  Effect.map(engine.allocate("float32", [values.length]), (tensor) => {
    setValues(tensor, values)
    return tensor
  })

/** Weights `a` [4] and `b` [3], both float32. */
export const smallWeights = Effect.fnUntraced(function* (engine: TensorEngineShape, spare = false) {
  const tensor = (length: number) =>
    Effect.map(engine.allocate("float32", [length]), (live) => {
      live.storage.bytes!.fill(0xd7)
      return live
    })
  const a = yield* tensor(4)
  const b = yield* tensor(3)
  const spares = spare ? { a: { spare: yield* tensor(4) }, b: { spare: yield* tensor(3) } } : { a: {}, b: {} }
  const tensors: RefitSpec["tensors"] = new Map([
    ["a", { dtype: "float32", shape: [4], live: a, ...spares.a }],
    ["b", { dtype: "float32", shape: [3], live: b, ...spares.b }]
  ])
  return { a, b, tensors }
})
