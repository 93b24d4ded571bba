// SPDX-License-Identifier: Apache-2.0
/**
 * What a refit session holds and how updates arrive: names, types and shapes on the wire, the tensors in use and the form
 * that they have, aliases, groups, and what is rebuilt after a commit.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { DType } from "../base/DType.ts"
import { equalShapes, formatShape, type Shape } from "../base/Region.ts"
import { TensorEngine, type TensorError } from "../service/TensorEngine.ts"
import { isQuantized, type QuantizedTensor, shapeOfValues } from "../tensor/QuantizedTensor.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import type { TensorDict } from "../tensor/TensorDict.ts"
import { quantizeWhole } from "../transform/Quantize.ts"
import type { TransformError } from "../transform/ReshardTransform.ts"
import { type RefitError, refitError } from "./RefitError.ts"

/** A tensor in use: plain, or quantized with its scales. */
export type HeldTensor = Tensor | QuantizedTensor

type FormWork = Effect.Effect<void, TensorError | TransformError | RefitError, TensorEngine>

/**
 * How the tensor in use differs from what travels. It is written only through its form, never by updates themselves, so
 * that any number of updates gives the same bytes.
 */
export interface KernelForm {
  /** Names the form in errors and specs; two sides with the same name mean the same bytes. */
  readonly id: string
  /** Writes the tensor in use from the wire form. */
  readonly pack: (wire: Tensor, live: HeldTensor) => FormWork
  /** Back: what a tensor in use stands for. Comparisons and patches after an aborted update need it. */
  readonly unpack?: (live: HeldTensor, wire: Tensor) => FormWork
}

/** One tensor of a session: what travels, and what is in use. */
export interface RefitTensor {
  /** What travels. The tensor in use may have another type. */
  readonly dtype: DType
  readonly shape: Shape
  /** `base` where it is not said. */
  readonly group?: string
  readonly live: HeldTensor
  /** Where versions alternate between two places, the second. */
  readonly spare?: HeldTensor
  /** By default a cast, or the quantization that the recipe of the tensor in use names. */
  readonly form?: KernelForm
}

/** Something computed from weights, which a commit makes stale. */
export interface DerivedCache {
  /** Names the cache in errors. */
  readonly name: string
  /** Run once per commit, when all data is there and before it is used. Leaving it out is an error, not a wish. */
  readonly refresh?: (weights: TensorDict) => Effect.Effect<void, { readonly message: string }>
}

/** The weights that are updated in place: tensors, forms that kernels need, caches that are derived of them. */
export interface RefitSpec {
  /** The weights by name. */
  readonly tensors: ReadonlyMap<string, RefitTensor>
  /**
   * Name to the name whose values it has (tied weights). An alias may have memory of its own among `tensors`; it is filled
   * from what arrives for the other name.
   */
  readonly aliases?: ReadonlyMap<string, string>
  /** Groups of which every update must bring something. */
  readonly groups?: ReadonlyArray<string>
  /** What is computed from weights and made again after each commit. */
  readonly caches?: ReadonlyArray<DerivedCache>
  /**
   * `copy` (default): the weights in use are written in place, so that addresses stay; a failure in the middle leaves
   * nothing usable. `exchange`: a version is made in the place that is not in use, and takes its turn when it is whole; a
   * failure leaves the old version in use. The commit's result says that addresses changed.
   */
  readonly publish?: "copy" | "exchange"
  /** Names that the session does not know: refused (default), or a warning of the commit. */
  readonly unknown?: "refuse" | "warn"
  /** A commit warns when it is the so-manieth in a row with the same content. 3 by default. */
  readonly repeatLimit?: number
  /** Around every commit that changes something: nothing uses the weights in between. `resume` runs whenever `pause` ended well. */
  readonly pause?: Effect.Effect<void, { readonly message: string }>
  /** Runs once the new weights are in use. */
  readonly resume?: Effect.Effect<void, { readonly message: string }>
}

/** The group that the tensor names, or `base`. */
export const groupOf = ({ group }: RefitTensor): string => group ?? "base"

/** The form of a tensor that names none. */
export const defaultForm = (name: string): KernelForm => ({
  id: "wire",
  pack: (wire, live) =>
    isQuantized(live)
      ? quantizeWhole(name, wire, live)
      : Effect.flatMap(TensorEngine, (engine) => engine.copy([{ dst: live, src: wire }])),
  unpack: (live, wire) =>
    Effect.flatMap(TensorEngine, (engine) => {
      if (isQuantized(live)) return engine.dequantize(live, wire)
      return engine.copy([{ dst: wire, src: live }])
    })
})

/** The form that the tensor names, or the default one. */
export const formOf = (name: string, { form }: RefitTensor): KernelForm => form ?? defaultForm(name)

/** True where the values of the tensor in use are all that travelled. */
export const restores = (tensor: RefitTensor): boolean =>
  tensor.form === undefined
    ? !isQuantized(tensor.live) && tensor.live.dtype === tensor.dtype
    : tensor.form.unpack !== undefined

/** The part of a tensor in use that says where it lies. */
const plainOf = (tensor: HeldTensor): Tensor => (isQuantized(tensor) ? tensor.data : tensor)

const invalid = (detail: string, remedy: string, paramName?: string): RefitError =>
  refitError("InvalidSpec", { detail, remedy, ...(paramName === undefined ? {} : { paramName }) })

/** Why a session cannot be made of this. */
export const specFault = (spec: RefitSpec): RefitError | undefined => {
  for (const [name, tensor] of spec.tensors) {
    const held = [tensor.live, ...(tensor.spare === undefined ? [] : [tensor.spare])]
    if (spec.publish === "exchange" && tensor.spare === undefined) {
      return invalid("It has no spare, but versions alternate between two places.", "Give a spare tensor.", name)
    }
    const other = held.find((each) => !equalShapes(shapeOfValues(each), tensor.shape))
    if (tensor.form === undefined && other !== undefined) {
      const found = formatShape(shapeOfValues(other))
      return invalid(
        `It is ${found}, but ${formatShape(tensor.shape)} travels.`,
        "Name the form that makes one of the other.",
        name
      )
    }
  }
  for (const [alias, target] of spec.aliases ?? []) {
    if (spec.aliases?.has(target) === true || !spec.tensors.has(target)) {
      return invalid(
        `It is an alias of ${target}, which is not a tensor of the session.`,
        "Name the tensor itself.",
        alias
      )
    }
  }
  const known = new Set([...spec.tensors.values()].map(groupOf))
  const missing = spec.groups?.find((group) => !known.has(group))
  if (missing !== undefined) return invalid(`No tensor is of the expected group ${missing}.`, "Correct the groups.")
  const hollow = spec.caches?.find(({ refresh }) => refresh === undefined)
  return hollow === undefined
    ? undefined
    : invalid(`The cache ${hollow.name} has no refresh.`, "Give it a refresh, or leave the cache out.")
}

/** Dense memory for everything that travels, by name; aliases have none. */
export const allocateWire = (
  spec: RefitSpec
): Effect.Effect<ReadonlyMap<string, Tensor>, TensorError, TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const wire = new Map<string, Tensor>()
    for (const [name, { dtype, shape, live }] of spec.tensors) {
      if (spec.aliases?.has(name) === true) continue
      wire.set(name, yield* engine.allocate(dtype, shape, plainOf(live).device))
    }
    return wire
  })
