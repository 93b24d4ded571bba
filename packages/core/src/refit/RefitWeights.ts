// SPDX-License-Identifier: Apache-2.0
/**
 * The weights of a session in their places: written from wire form tensor by tensor, read back into it, and what is derived
 * from them. Decides nothing: which version is in use, and when it may be written, is the session's.
 */
import * as Effect from "effect/Effect"
import type { TensorEngine } from "../service/TensorEngine.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { type TensorDict, tensorDict } from "../tensor/TensorDict.ts"
import { causedBy, type RefitError, refitError } from "./RefitError.ts"
import { formOf, type HeldTensor, type RefitSpec, restores } from "./RefitSpec.ts"

/** Versions alternate between two places where they are exchanged; otherwise all is `live`. */
export type Place = "live" | "spare"

type Work = Effect.Effect<void, RefitError, TensorEngine>

export interface RefitWeights {
  readonly at: (place: Place) => TensorDict
  /** From wire form, once per name. */
  readonly write: (names: Iterable<string>, place: Place) => Work
  /** Wire memory shows the place again; refused where a form cannot be undone. */
  readonly restore: (name: string, place: Place) => Work
  readonly readLogical: (name: string, place: Place, into: Tensor) => Work
  /** Everything that is derived from a place, once. */
  readonly refreshCaches: (place: Place) => Effect.Effect<void, RefitError>
}

export const makeRefitWeights = (spec: RefitSpec, wire: ReadonlyMap<string, Tensor>): RefitWeights => {
  const aliases = spec.aliases ?? new Map<string, string>()
  const heldAt = (name: string, place: Place): HeldTensor => {
    const { live, spare } = spec.tensors.get(name)!
    return place === "live" ? live : spare!
  }
  const at = (place: Place): TensorDict =>
    tensorDict(
      [...spec.tensors.keys()].map((name) => [name, heldAt(name, place)] as const),
      { aliases: new Map([...aliases].filter(([alias]) => !spec.tensors.has(alias))) }
    )
  return {
    at,
    write: Effect.fnUntraced(function* (names, place) {
      for (const name of names) {
        const { pack } = formOf(name, spec.tensors.get(name)!)
        const packed = pack(wire.get(aliases.get(name) ?? name)!, heldAt(name, place))
        yield* Effect.mapError(packed, causedBy("CommitFailed", name))
      }
    }),
    restore: Effect.fnUntraced(function* (name, place) {
      const tensor = spec.tensors.get(name)!
      const { unpack } = formOf(name, tensor)
      if (!restores(tensor) || unpack === undefined) {
        return yield* refitError("WrongBase", {
          paramName: name,
          detail: "An update that was not committed has overwritten what a patch would build upon.",
          remedy: "Send a full update, or give the tensor a form that can be undone."
        })
      }
      yield* Effect.mapError(unpack(heldAt(name, place), wire.get(name)!), causedBy("CommitFailed", name))
    }),
    readLogical: Effect.fnUntraced(function* (name, place, into) {
      const tensor = spec.tensors.get(name)
      const unpack = tensor === undefined ? undefined : formOf(name, tensor).unpack
      if (unpack === undefined) {
        return yield* refitError("UnknownTensor", {
          paramName: name,
          detail: tensor === undefined ? "The session has no such tensor." : "Its form cannot be undone.",
          remedy: "Give the tensor a form with unpack."
        })
      }
      yield* Effect.mapError(unpack(heldAt(name, place), into), causedBy("CommitFailed", name))
    }),
    refreshCaches: Effect.fnUntraced(function* (place) {
      for (const { name, refresh } of spec.caches ?? []) {
        yield* Effect.mapError(refresh!(at(place)), ({ message }) =>
          refitError("CommitFailed", {
            detail: `The cache ${name} could not be rebuilt: ${message}`,
            remedy: "See the failure that caused it."
          })
        )
      }
    })
  }
}
