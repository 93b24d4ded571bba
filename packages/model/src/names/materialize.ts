// SPDX-License-Identifier: Apache-2.0
/** The bytes of a tensor that is made of strips, filled element by element from the tensors that the strips name. */
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type MappingError, mappingError } from "./MappingError.ts"
import { type Assembly, linearStrip } from "./Strips.ts"

/** A tensor that is made, with the type of its elements. */
export interface TypedAssembly extends Assembly {
  readonly name: string
  readonly dtype: DType
}

/** Fills a tensor. `read` has the bytes of a source, in the tensor's own type. Values are copied as they are. */
export const materialize = (
  { name, dtype, shape, strips }: TypedAssembly,
  read: (source: string) => Uint8Array
): Result.Result<Uint8Array, MappingError> => {
  const size = bitsOf(dtype) / 8
  const remedy = "Fill tensors of whole bytes whose values do not change."
  if (!Number.isInteger(size))
    return mappingError("unsupported", name, undefined, `${dtype} has no whole bytes.`, remedy)
  const bytes = new Uint8Array(elementCount(shape) * size)
  for (const strip of strips) {
    if (strip.scalar !== undefined)
      return mappingError("unsupported", name, undefined, "Its values go through a function.", remedy)
    if (strip.source === undefined) continue
    const source = read(strip.source)
    const { at, from, loops } = linearStrip(strip, shape)
    const [count, step, stride] = loops.at(-1) ?? [1, 1, 1]
    const isRun = step === 1 && stride === 1
    const copy = (to: number, of: number): void => {
      if (isRun) bytes.set(source.subarray(of * size, (of + count) * size), to * size)
      for (let index = 0; index < count && !isRun; index++) {
        const [own, other] = [(to + index * step) * size, (of + index * stride) * size]
        for (let byte = 0; byte < size; byte++) bytes[own + byte] = source[other + byte]!
      }
    }
    const walk = (depth: number, to: number, of: number): void => {
      if (depth >= loops.length - 1) {
        copy(to, of)
        return
      }
      const [outer, outerStep, outerStride] = loops[depth]!
      for (let index = 0; index < outer; index++) walk(depth + 1, to + index * outerStep, of + index * outerStride)
    }
    walk(0, at, from)
  }
  return Result.succeed(bytes)
}
