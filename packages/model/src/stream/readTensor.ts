// SPDX-License-Identifier: Apache-2.0
/** A region of a model as a tensor of an engine, on the host or a device: for what is converted as it is read. */
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, type Region, regionShape } from "@tensorferry/core/base/Region"
import type { TensorEngineShape, TensorError } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { StreamSource } from "./CheckpointStream.ts"

/** The elements of a region, dense, in memory that the scope frees. Fails with the source's error, or as the engine does. */
export const readTensor = <E>(
  engine: TensorEngineShape,
  { readRegion }: Pick<StreamSource<E>, "readRegion">,
  { dtype, name }: { readonly name: string; readonly dtype: DType },
  region: Region
): Effect.Effect<Tensor, E | TensorError, Scope.Scope> =>
  Effect.gen(function* () {
    const shape = regionShape(region)
    const tensor = yield* engine.allocate(dtype, shape)
    const own = tensorBytes(tensor)
    if (own !== undefined) {
      yield* readRegion(name, region, own)
      return tensor
    }
    const bytes = new Uint8Array(byteLengthOf(dtype, elementCount(shape)))
    yield* readRegion(name, region, bytes)
    const src = Result.getOrThrow(tensorView(yield* engine.wrapHost(bytes), dtype, shape))
    yield* engine.copy([{ dst: tensor, src }])
    return tensor
  })
