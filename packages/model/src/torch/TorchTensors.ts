// SPDX-License-Identifier: Apache-2.0
/**
 * The tensors that a pickle of torch.save describes: element type, shape, strides, and which storage holds them.
 *
 * Invariant: a tensor that is listed lies inside the elements that its storage is said to have, and its numbers stay
 * below 2^53. What is no tensor is not listed.
 */
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { dimensionLimit, elementCount, isRepresentable, type Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type PickleValue, readClosedPickle, textEntries } from "../pickle/ClosedPickle.ts"
import { dtypeOfName, stateRules, type TorchName } from "./TorchNames.ts"

type Value = PickleValue<TorchName>

/** A tensor as a view of a storage; offset and strides in elements. */
export interface StoredTensor {
  readonly dtype: DType
  readonly shape: Shape
  readonly strides: ReadonlyArray<number>
  readonly offset: number
  /** Name of the storage's member, under `data/`. */
  readonly storage: string
}

/** Deepest nesting of dicts of tensors. */
const mostLevels = 8

const naturals = (value: Value | undefined): ReadonlyArray<number> | undefined => {
  const tuple = value?.type === "call" && value.name === "Size" ? value.args[0] : value
  if (tuple?.type !== "tuple" || tuple.items.length > dimensionLimit) return undefined
  const numbers = tuple.items.flatMap((item) =>
    item.type === "int" && item.value >= 0 && Number.isSafeInteger(item.value) ? [item.value] : []
  )
  return numbers.length === tuple.items.length ? numbers : undefined
}

/** Lengths from a tuple or a `torch.Size`. */
export const sizesOf = naturals

const natural = (value: Value | undefined): number | undefined =>
  value?.type === "int" && value.value >= 0 ? value.value : undefined

/** A key names a member of the archive; PyTorch counts them. */
const isKey = (key: string): boolean => /^[0-9]{1,12}$/.test(key)

const storageOf = (value: Value | undefined) => {
  if (value?.type !== "reference" || value.id.type !== "tuple") return undefined
  const [mark, type, key, , count] = value.id.items
  if (mark?.type !== "text" || mark.value !== "storage" || type?.type !== "name") return undefined
  const elements = natural(count)
  if (key?.type !== "text" || !isKey(key.value) || elements === undefined) return undefined
  return { type: type.name, key: key.value, elements }
}

const tensorOf = (value: Value): Result.Result<StoredTensor, string> => {
  if (value.type !== "call") return Result.fail("it is no tensor")
  if (value.name === "rebuild_parameter") {
    const [inner] = value.args
    return inner?.type === "call" && inner.name !== "rebuild_parameter"
      ? tensorOf(inner)
      : Result.fail("it is no tensor")
  }
  if (value.name !== "rebuild_tensor" && value.name !== "rebuild_tensor_v3") return Result.fail("it is no tensor")
  const [place, offsetValue, size, stride, , , typeValue] = value.args
  const [storage, offset, shape, strides] = [storageOf(place), natural(offsetValue), naturals(size), naturals(stride)]
  if (storage === undefined || offset === undefined || shape === undefined || strides === undefined) {
    return Result.fail("its arguments are not those of a tensor")
  }
  const typeName =
    value.name === "rebuild_tensor" ? storage.type : typeValue?.type === "name" ? typeValue.name : undefined
  const dtype = typeName === undefined ? undefined : dtypeOfName(typeName)
  if (dtype === undefined) return Result.fail(`elements of ${typeName ?? "no type"} are not known`)
  const bits = bitsOf(dtype)
  if (strides.length !== shape.length || !isRepresentable(shape, bits)) return Result.fail("its shape is not one")
  const available = storage.type === "storage bytes" ? Math.floor((storage.elements * 8) / bits) : storage.elements
  const last = shape.reduce((sum, length, dim) => sum + Math.max(0, length - 1) * strides[dim]!, offset)
  if (elementCount(shape) > 0 && !(last < available)) return Result.fail("it goes beyond its storage")
  return Result.succeed({ dtype, shape, strides, offset, storage: storage.key })
}

/** The one tensor that a pickle is. */
export const readTensorPickle = (bytes: Uint8Array): Result.Result<StoredTensor, string> => {
  const read = readClosedPickle(bytes, stateRules)
  return Result.isFailure(read) ? Result.fail(read.failure.detail) : tensorOf(read.success)
}

/** The tensors of a state dict, of dicts in it too: their names are joined by points. Texts and numbers are left out. */
export const readStatePickle = (
  bytes: Uint8Array
): Result.Result<ReadonlyMap<string, StoredTensor>, { readonly detail: string; readonly paramName?: string }> => {
  const read = readClosedPickle(bytes, stateRules)
  if (Result.isFailure(read)) return Result.fail({ detail: read.failure.detail })
  const tensors = new Map<string, StoredTensor>()
  const visit = (value: Value, prefix: string, level: number): { detail: string; paramName?: string } | undefined => {
    const entries = textEntries(value)
    if (entries === undefined) return { detail: "It is not a dict of tensors." }
    if (level > mostLevels) return { detail: "Its dicts nest too deep." }
    for (const [key, item] of entries) {
      const name = `${prefix}${key}`
      if (item.type === "dict") {
        // Dicts of numbers, as an optimizer's, hold no weights.
        if (item.entries.some(([inner]) => inner.type !== "text")) continue
        const fault = visit(item, `${name}.`, level + 1)
        if (fault !== undefined) return fault
      } else if (item.type === "call") {
        const tensor = tensorOf(item)
        if (Result.isFailure(tensor))
          return { detail: `The tensor cannot be read: ${tensor.failure}.`, paramName: name }
        if (tensors.has(name)) return { detail: "Two tensors have this name.", paramName: name }
        tensors.set(name, tensor.success)
      }
    }
    return undefined
  }
  const fault = visit(read.success, "", 0)
  return fault === undefined ? Result.succeed(tensors) : Result.fail(fault)
}
