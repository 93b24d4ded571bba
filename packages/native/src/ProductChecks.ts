// SPDX-License-Identifier: Apache-2.0
/** What must hold before a product of two narrow matrices is added to a base, whatever device they are on. */
import { formatShape } from "@tensorferry/core/base/Region"
import type { LowRankProduct } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import { type Checked, describeTensor, equalLengths, type makeMoveChecks, type Refusal } from "./MoveChecks.ts"
import { meet, type QuantizedFault, quantizableTypes } from "./QuantizeChecks.ts"

/** Rows, columns and ranks are counted in 32 bits. */
const lengthLimit = 2 ** 31

const invalid = (detail: string): QuantizedFault => ({ tag: "InvalidRequest", detail })

/** Why a product cannot be added there. */
export const productFault = (
  destination: Tensor,
  base: Tensor,
  { a, b, scale }: LowRankProduct
): QuantizedFault | undefined => {
  const all = [destination, base, b, a]
  const wrong = all.find(({ dtype }) => !quantizableTypes.has(dtype))
  if (wrong !== undefined) {
    return { tag: "Unsupported", detail: `Products are of bfloat16, float16 and float32, not of ${wrong.dtype}.` }
  }
  if (destination.dtype !== base.dtype || a.dtype !== b.dtype) {
    return invalid(`The types of ${all.map(describeTensor).join(", ")} differ in pairs.`)
  }
  const [rows, columns] = destination.shape
  const fits =
    all.every(({ shape }) => shape.length === 2) &&
    equalLengths(destination.shape, base.shape) &&
    b.shape[0] === rows &&
    a.shape[1] === columns &&
    b.shape[1] === a.shape[0]
  if (!fits) {
    const shapes = `${formatShape(b.shape)} by ${formatShape(a.shape)}`
    return invalid(`${shapes} is no product for ${describeTensor(destination)} and ${describeTensor(base)}.`)
  }
  if (all.some(({ shape }) => shape.some((length) => length >= lengthLimit))) {
    return { tag: "Unsupported", detail: `A matrix has ${lengthLimit} rows or columns, or more; take it in parts.` }
  }
  return Number.isFinite(Math.fround(scale)) ? undefined : invalid(`The scale ${scale} is no float32 number.`)
}

/** True where two views are the same elements in the same place. */
const isSame = (one: Tensor, other: Tensor): boolean =>
  one.storage.generation === other.storage.generation &&
  one.byteOffset === other.byteOffset &&
  equalLengths(one.strides, other.strides)

/** `checkTensor` is the engine's own check of one tensor. */
export const makeProductCheck =
  (refusal: Refusal, { checkTensor }: Pick<ReturnType<typeof makeMoveChecks>, "checkTensor">) =>
  (destination: Tensor, base: Tensor, product: LowRankProduct): Checked<void> => {
    const fault = productFault(destination, base, product)
    if (fault !== undefined) return Result.fail(refusal(fault.tag, "addProduct", fault.detail))
    const read = [base, product.a, product.b]
    for (const tensor of [destination, ...read]) {
      const wrong = checkTensor("addProduct", tensor, tensor === destination)
      if (wrong !== undefined) return Result.fail(wrong)
    }
    const isEmpty = ({ shape }: Tensor): boolean => shape.includes(0)
    const other = read.find(
      (tensor) =>
        !isEmpty(destination) &&
        !isEmpty(tensor) &&
        meet(destination, tensor) &&
        !(tensor === base && isSame(destination, base))
    )
    return other === undefined
      ? Result.succeed(undefined)
      : Result.fail(
          refusal(
            "InvalidRequest",
            "addProduct",
            `${describeTensor(destination)}, which is written, overlaps ${describeTensor(other)}.`
          )
        )
  }
