// SPDX-License-Identifier: Apache-2.0
/**
 * What both ends of a quantizing transform do alike: options, memory for codes and scales, what is known of blocks, and the
 * parts that travel.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { DType } from "../base/DType.ts"
import { elementCount, formatShape, type Region, regionShape, type Shape } from "../base/Region.ts"
import { type KnownScales, TensorEngine, type TensorError } from "../service/TensorEngine.ts"
import type { Device } from "../tensor/Device.ts"
import {
  codeShapeOf,
  codeTypeOf,
  hasGlobal,
  layoutOf,
  mxfp8Recipe,
  type QuantizationRecipe,
  type QuantizedTensor,
  ruleNumberOf,
  scaleShapeOf,
  scaleTypesOf,
  shapeOfValues,
  sharesBeyond
} from "../tensor/QuantizedTensor.ts"
import type { Move, Tensor } from "../tensor/Tensor.ts"
import { quantizedTensorFault } from "./QuantizedRegion.ts"
import { fromTensorError, regionOf, type TransformError, type TransformOp, transformError } from "./ReshardTransform.ts"
import { inRowsMoves } from "./ScaleLayouts.ts"

/** The largest magnitudes of the blocks that a region touches, over all elements of each. */
export interface RegionMaxima {
  /** Row and column at which the region begins within its first block; 0 and 0 by default. */
  readonly origin?: readonly [row: number, column: number]
  /** Row-major, one per block; under a global scale one for all. */
  readonly values: Float32Array
}

/**
 * What is known of blocks beyond a rank's own tensor, by parameter and region of the rank's tensor; undefined where all that
 * shares a scale lies in the tensor itself.
 */
export type KnownMaxima = (
  paramName: string,
  region: Region,
  side: "source" | "destination"
) => RegionMaxima | undefined

/** States that every rank's tensor is all that shares its scales: no parameter is cut within a block. */
export const ownMaxima: KnownMaxima = () => undefined

/** Who quantizes, what it quantizes to, and which parameters. */
export interface QuantizeOptions {
  /** Who quantizes. `receiver` by default. */
  readonly side?: "sender" | "receiver"
  /** What the sender makes, and what quantized destinations must be. By default the receiver takes the destination's own. */
  readonly recipe?: QuantizationRecipe
  /** What travels in the `receiver` form; bfloat16 by default. */
  readonly wireDtype?: "bfloat16" | "float16" | "float32"
  /** Globs over parameter names; all parameters by default. */
  readonly parameters?: ReadonlyArray<string>
  /** Bytes of tensors that may be gathered at one time in this process. 8 GiB by default. */
  readonly accumulatorLimit?: number
  /** Needed by forms with a global scale, and where a scale is that of a row or tensor. */
  readonly maxima?: KnownMaxima
}

/** Work of a hook: what it allocates lives as long as the update. */
export type Work<A> = Effect.Effect<A, TransformError, TensorEngine | Scope.Scope>

/** What both ends share. */
export type QuantizeWork = ReturnType<typeof makeQuantizeWork>

/** The shared half of the transform of these options. */
export const makeQuantizeWork = (options: QuantizeOptions) => {
  const wire = options.wireDtype ?? "bfloat16"
  const sent: QuantizationRecipe = { ...(options.recipe ?? mxfp8Recipe()), layout: "rowMajor" }

  const allocate = (op: TransformOp, dtype: DType, shape: Shape, device: Device): Work<Tensor> =>
    Effect.flatMap(TensorEngine, (engine) =>
      Effect.mapError(engine.allocate(dtype, shape, device), (error) => fromTensorError(op.paramName, error))
    )
  const run = <A, R>(
    op: TransformOp,
    work: (engine: TensorEngine["Service"]) => Effect.Effect<A, TensorError, R>
  ): Effect.Effect<A, TransformError, TensorEngine | R> =>
    Effect.flatMap(TensorEngine, (engine) =>
      Effect.mapError(work(engine), (error) => fromTensorError(op.paramName, error))
    )
  const copy = (op: TransformOp, moves: ReadonlyArray<Move>) => run(op, (engine) => engine.copy(moves))
  const region = (op: TransformOp, tensor: Tensor, part: Region) => regionOf(op.paramName, tensor, part)

  /** What is known of the blocks of a region, on its device. */
  const knownOf = (
    op: TransformOp,
    recipe: QuantizationRecipe,
    part: Region,
    side: "source" | "destination",
    device: Device
  ): Work<KnownScales> =>
    Effect.gen(function* () {
      if (options.maxima === undefined && sharesBeyond(recipe)) {
        return yield* transformError("UnsupportedTensor", {
          paramName: op.paramName,
          detail: `A scale of ${recipe.rule} is that of more than this rank may hold.`,
          remedy:
            "Pass maxima: the largest magnitudes of what shares scales, or ownMaxima where every rank holds all of it."
        })
      }
      const found = options.maxima?.(op.paramName, part, side)
      if (found === undefined) return {}
      const { origin, values } = found
      const shape = hasGlobal(recipe) ? [1] : (scaleShapeOf(recipe, regionShape(part), origin) ?? [0])
      if (elementCount(shape) !== values.length) {
        return yield* transformError("UnsupportedTensor", {
          paramName: op.paramName,
          detail: `${values.length} largest magnitudes are given for ${elementCount(shape)} blocks.`,
          remedy: "Give one for each block that the region touches."
        })
      }
      const maxima = yield* allocate(op, "float32", shape, device)
      const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength)
      const storage = yield* run(op, (engine) => engine.wrapHost(bytes))
      yield* copy(op, [{ dst: maxima, src: { ...maxima, storage, device: storage.device, byteOffset: 0 } }])
      return origin === undefined ? { maxima } : { maxima, origin }
    })

  /** The same tensor with row-major scales; they are copied where they are not. */
  const inRows = (op: TransformOp, source: QuantizedTensor): Work<QuantizedTensor> =>
    Effect.gen(function* () {
      const layout = layoutOf(source.recipe)
      if (layout === "rowMajor") return source
      const shape = scaleShapeOf(source.recipe, shapeOfValues(source))!
      const scale = yield* allocate(op, source.scale.dtype, shape, source.data.device)
      yield* copy(op, inRowsMoves(layout, source.scale, scale))
      return { ...source, scale, recipe: { ...source.recipe, layout: "rowMajor" } }
    })

  const checked = (
    op: TransformOp,
    tensor: QuantizedTensor,
    wanted: QuantizationRecipe | undefined
  ): Work<QuantizedTensor> => {
    const fault = quantizedTensorFault(op.paramName, tensor, wanted)
    return fault === undefined ? Effect.succeed(tensor) : Effect.fail(fault)
  }

  const noBlocks = ({ paramName, region: part }: TransformOp) =>
    transformError("UnsupportedTensor", {
      paramName,
      detail: `${formatShape(regionShape(part))} is no whole number of blocks of ${sent.rule}.`,
      remedy: "Leave the parameter wide, or choose a rule that has blocks cut at the edge."
    })

  const emptyQuantized = (op: TransformOp, shape: Shape, device: Device, scales: Shape): Work<QuantizedTensor> =>
    Effect.gen(function* () {
      const data = yield* allocate(op, codeTypeOf(sent), codeShapeOf(sent, shape), device)
      const scale = yield* allocate(op, scaleTypesOf(sent)[0]!, scales, device)
      const global = hasGlobal(sent) ? { global: yield* allocate(op, "float32", [1], device) } : {}
      return { _tag: "QuantizedTensor", data, scale, ...global, recipe: sent }
    })

  /** Codes, scales, the global scale where there is one, and the recipe as the shape of nothing. */
  const partsOf = (op: TransformOp, { data, scale, global }: QuantizedTensor): Work<ReadonlyArray<Tensor>> =>
    Effect.map(
      allocate(op, "uint8", [0, 1 + ruleNumberOf(sent), 1 + sent.block[0], 1 + sent.block[1]], data.device),
      (tag) => [data, scale, ...(global === undefined ? [] : [global]), tag]
    )

  return {
    options,
    wire,
    sent,
    allocate,
    run,
    copy,
    region,
    knownOf,
    inRows,
    checked,
    noBlocks,
    emptyQuantized,
    partsOf
  }
}
