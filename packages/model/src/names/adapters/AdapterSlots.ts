// SPDX-License-Identifier: Apache-2.0
/**
 * Adapters beside weights in use, by name. Only their own tensors travel and are held.
 *
 * Two modes: with `keep`, an engine applies the factors itself and asks for them by name; with `merge`, the weights in use are
 * the base with one adapter merged into it, or none.
 *
 * Invariant: merged weights are always made from a copy of the base, never from what an adapter left, so that nothing builds up
 * however often adapters change. The copy is of those tensors alone that some adapter changes.
 */
import { nearestName } from "@tensorferry/core/base/SimilarName"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { type MappingError, mappingError } from "../MappingError.ts"
import type { Adapter } from "./Adapter.ts"
import { type AdapterTensors, deviceFault, type MergePlace, mergeOnDevice } from "./mergeOnDevice.ts"

/** A weight in use, and which part of the base's tensor it is. */
export type AdaptedWeight = Pick<MergePlace, "live" | "region">

/** An adapter that is held. */
export interface HeldAdapter {
  readonly adapter: Adapter
  /** Copies of its tensors, by their names. */
  readonly tensors: AdapterTensors
}

/** Adapters by name over one set of weights: held beside them, or merged into them and taken out again. */
export interface AdapterSlots {
  /** Adapters that are held, in the order in which they came. */
  readonly names: () => ReadonlyArray<string>
  /** The one that is merged, if one is. */
  readonly merged: () => string | undefined
  /**
   * Holds an adapter under a name, in place of the one that has it. Its tensors are copied, so that the caller's may go. With
   * `merge`, what cannot be merged is refused. An adapter that is merged has to be merged again to show.
   */
  readonly load: (
    name: string,
    adapter: Adapter,
    tensors: AdapterTensors
  ) => Effect.Effect<void, MappingError | TensorError>
  /** Forgets an adapter. One that is merged cannot go. */
  readonly unload: (name: string) => Effect.Effect<void, MappingError>
  /** The factors of an adapter, for an engine that applies them itself. */
  readonly get: (name: string) => Effect.Effect<HeldAdapter, MappingError>
  /** Says that the weights in use were written anew, without any adapter: they are the base from now on. */
  readonly rebase: Effect.Effect<void, TensorError>
  /** Makes the weights in use the base with this adapter, or the base alone. */
  readonly merge: (name: string | undefined) => Effect.Effect<void, MappingError | TensorError>
}

/** Slots over weights in use, by the names of the base's tensors. Memory lives in the scope. */
export const makeAdapterSlots = Effect.fnUntraced(function* (
  weights: ReadonlyMap<string, AdaptedWeight>,
  mode: "keep" | "merge"
): Effect.fn.Return<AdapterSlots, never, TensorEngine | Scope.Scope> {
  const engine = yield* TensorEngine
  const scope = yield* Effect.scope
  const held = new Map<string, HeldAdapter & { readonly scope: Scope.Closeable }>()
  const bases = new Map<string, Tensor>()
  /** Weights that are not known to be the base. */
  const touched = new Set<string>()
  let merged: string | undefined
  yield* Effect.addFinalizer(() =>
    Effect.forEach(held.values(), (one) => Scope.close(one.scope, Exit.void), { discard: true })
  )

  const copyOf = (tensor: Tensor, within: Scope.Scope) =>
    Effect.tap(Scope.provide(engine.allocate(tensor.dtype, tensor.shape, tensor.device), within), (dst) =>
      engine.copy([{ dst, src: tensor }])
    )

  const find = (name: string): Effect.Effect<HeldAdapter, MappingError> => {
    const found = held.get(name)
    if (found !== undefined) return Effect.succeed(found)
    const near = nearestName(name, [...held.keys()])
    const hint = near === undefined ? "Load it first." : `Load it first, or name "${near}".`
    return Effect.fromResult(mappingError("missing_source", name, undefined, "No adapter of this name is held.", hint))
  }

  /** Every target must be a weight here, and in a form that can be merged. */
  const check = ({ changes }: Adapter): Result.Result<void, MappingError> => {
    for (const [target, list] of changes) {
      if (!weights.has(target)) {
        return mappingError(
          "no_target",
          target,
          undefined,
          "No weight here has this name.",
          "Give all weights that adapters change."
        )
      }
      for (const change of mode === "merge" ? list : []) {
        const fault = deviceFault(change)
        if (Result.isFailure(fault)) return fault
      }
    }
    return Result.succeed(undefined)
  }

  const place = (target: string): MergePlace => ({ ...weights.get(target)!, base: bases.get(target)! })

  const merge = Effect.fnUntraced(function* (name: string | undefined) {
    if (mode === "keep") {
      return yield* Effect.fromResult(
        mappingError(
          "unsupported",
          name ?? "",
          undefined,
          "These slots keep adapters for an engine.",
          "Make slots that merge."
        )
      )
    }
    const next = name === undefined ? undefined : yield* find(name)
    const changes = next?.adapter.changes ?? new Map()
    const restored = [...touched].filter((target) => !changes.has(target))
    merged = undefined
    for (const target of changes.keys()) touched.add(target)
    yield* engine.copy(restored.map((target) => ({ dst: place(target).live, src: place(target).base })))
    for (const target of restored) touched.delete(target)
    for (const [target, list] of changes) {
      yield* Effect.scoped(mergeOnDevice(list, place(target), next!.tensors))
    }
    merged = name
  })

  return {
    names: () => [...held.keys()],
    merged: () => merged,
    load: Effect.fnUntraced(function* (name, adapter, tensors) {
      yield* Effect.fromResult(check(adapter))
      const own = yield* Scope.make()
      const copies = Effect.forEach([...tensors], ([key, tensor]) =>
        Effect.map(copyOf(tensor, own), (copy) => [key, copy] as const)
      )
      const entries = yield* Effect.onError(copies, () => Scope.close(own, Exit.void))
      for (const target of mode === "merge" ? adapter.changes.keys() : []) {
        // Before any adapter changed it, the weight in use is the base.
        if (!bases.has(target)) bases.set(target, yield* copyOf(weights.get(target)!.live, scope))
      }
      const before = held.get(name)
      held.delete(name)
      held.set(name, { adapter, tensors: new Map(entries), scope: own })
      if (before !== undefined) yield* Scope.close(before.scope, Exit.void)
    }),
    unload: Effect.fnUntraced(function* (name) {
      yield* find(name)
      if (merged === name) {
        return yield* Effect.fromResult(
          mappingError("invalid_rule", name, undefined, "The adapter is merged.", "Merge another one, or none, first.")
        )
      }
      const { scope: own } = held.get(name)!
      held.delete(name)
      yield* Scope.close(own, Exit.void)
    }),
    get: find,
    rebase: Effect.suspend(() => {
      merged = undefined
      touched.clear()
      return engine.copy([...bases].map(([target, base]) => ({ dst: base, src: weights.get(target)!.live })))
    }),
    merge: (name) => Effect.provideService(merge(name), TensorEngine, engine)
  }
})
