// SPDX-License-Identifier: Apache-2.0
/**
 * Where the regions that a rank receives arrive, and what it needs of each: changes where the place holds what was sent last,
 * all of it where the place is a transform's own memory.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import { plainView } from "@tensorferry/core/reshard/PlanTensors"
import type { ReshardError } from "@tensorferry/core/reshard/ReshardError"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { isQuantized, layoutOf, type QuantizedTensor, shapeOfValues } from "@tensorferry/core/tensor/QuantizedTensor"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { resolveTensor, type TensorDict } from "@tensorferry/core/tensor/TensorDict"
import { isAligned } from "@tensorferry/core/transform/QuantizedRegion"
import type { ReshardTransform, TransformOp } from "@tensorferry/core/transform/ReshardTransform"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { type PartNeed, transformFailed } from "./ChangeScan.ts"

/** Where one part of a region arrives. */
export interface ArrivingPart {
  readonly into: Tensor
  /** The type that travels. */
  readonly wire: DType
  readonly need: PartNeed
}

/** A region that arrives. */
export interface Arrival {
  readonly parts: ReadonlyArray<ArrivingPart>
  /** What completes the region when all its parts are there; nothing where they arrive in place. */
  readonly finalize: Effect.Effect<void, ReshardError> | undefined
}

/** Memory that a tensor is made of. */
const memoryOf = (tensor: Tensor | QuantizedTensor): ReadonlyArray<Tensor> =>
  isQuantized(tensor) ? [tensor.data, tensor.scale, ...(tensor.global === undefined ? [] : [tensor.global])] : [tensor]

/** The memory that an update may write. */
export const writtenBy = (arrivals: ReadonlyMap<TransferOp, Arrival>, destination: TensorDict | undefined) =>
  [...arrivals].flatMap(([{ paramName }, { parts }]) => {
    const tensor = destination === undefined ? undefined : resolveTensor(destination, paramName)
    const own = tensor !== undefined && isQuantized(tensor) ? memoryOf(tensor) : []
    return [...parts.map(({ into }) => into), ...own]
  })

/** Prepares all that a rank receives. Nothing is written yet. */
export const prepareArrivals = Effect.fnUntraced(function* (
  { rank, recvOps }: ReshardPlan,
  engine: TensorEngineShape,
  transform: ReshardTransform | undefined,
  destination: TensorDict | undefined
): Effect.fn.Return<ReadonlyMap<TransferOp, Arrival>, ReshardError, Scope.Scope> {
  const arriving = recvOps.flatMap((op) => {
    const tensor = destination === undefined ? undefined : resolveTensor(destination, op.paramName)
    return tensor === undefined ? [] : [{ op, tensor }]
  })
  const isTransformed = ({ op }: (typeof arriving)[number]) => transform?.shouldTransform(op.paramName) === true
  const transformed = arriving.filter(isTransformed)
  const transformOpOf = ({ op, tensor }: (typeof arriving)[number]): TransformOp => ({
    paramName: op.paramName,
    region: op.mySlice,
    tensor
  })
  transform?.begin?.(transformed.map(transformOpOf))
  /** Tensors whose regions a transform brings together before it writes them: all regions come, or none can be written. */
  const gathered = new Set(
    transformed.flatMap(({ op, tensor }) =>
      isQuantized(tensor) &&
      (layoutOf(tensor.recipe) !== "rowMajor" || !isAligned(tensor.recipe, op.mySlice, shapeOfValues(tensor)))
        ? [tensor]
        : []
    )
  )
  const arrivals = new Map<TransferOp, Arrival>()
  for (const each of arriving) {
    const { op, tensor } = each
    if (transform === undefined || !isTransformed(each)) {
      const into = yield* plainView(rank, op, tensor)
      arrivals.set(op, { parts: [{ into, wire: op.wireDtype, need: "changes" }], finalize: undefined })
      continue
    }
    const transformOp = transformOpOf(each)
    const withEngine = Effect.provideService(TensorEngine, engine)
    const prepared = withEngine(transform.prepareRecv(transformOp))
    const buffers = yield* Effect.mapError(prepared, (error) => transformFailed(rank, op, error))
    const storages = new Set(memoryOf(tensor).map(({ storage }) => storage))
    const away = isQuantized(tensor) && gathered.has(tensor) ? "always" : "wholeIfChanged"
    const parts = buffers.map((into): ArrivingPart => {
      const isInPlace = storages.has(into.storage) && into.shape.every((length) => length > 0)
      return { into, wire: into.dtype, need: isInPlace ? "changes" : away }
    })
    const finalize = Effect.mapError(withEngine(transform.finalizeRecv(transformOp, buffers)), (error) =>
      transformFailed(rank, op, error)
    )
    arrivals.set(op, { parts, finalize })
  }
  return arrivals
})
