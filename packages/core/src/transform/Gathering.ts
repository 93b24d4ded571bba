// SPDX-License-Identifier: Apache-2.0
/**
 * What the transfers of one update bring together for one tensor, to be converted once, after the last of them.
 *
 * Invariants: a gathering lives from its first transfer's preparation to the end of the update's scope, whatever happens;
 * all that exist at one time are within the limit; nothing is converted unless every element came exactly once.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { elementCount, formatShape, regionShape, type Shape } from "../base/Region.ts"
import type { TensorEngine } from "../service/TensorEngine.ts"
import { type TransformError, type TransformOp, transformError } from "./ReshardTransform.ts"

interface Gathering<A> {
  readonly value: A
  prepared: number
  finalized: number
}

export interface Gatherings<A> {
  /** What transfers for `op.tensor` gather; made by the first of an update. `byteLength` counts against the limit. */
  readonly join: (
    op: TransformOp,
    byteLength: number,
    make: Effect.Effect<A, TransformError, TensorEngine | Scope.Scope>
  ) => Effect.Effect<A, TransformError, TensorEngine | Scope.Scope>
  /** One transfer has come; the last one converts. `shape` is that of the whole tensor. */
  readonly arrive: (
    op: TransformOp,
    shape: Shape,
    convert: (value: A) => Effect.Effect<void, TransformError, TensorEngine>
  ) => Effect.Effect<void, TransformError, TensorEngine>
  /** What is gathered for `op.tensor` now. */
  readonly of: (op: TransformOp) => A | undefined
  /** Bytes that are held now. */
  readonly heldBytes: () => number
}

export const makeGatherings = <A>(limit: number): Gatherings<A> => {
  const known = new Map<TransformOp["tensor"], Gathering<A>>()
  let held = 0

  const begin = (op: TransformOp, byteLength: number, make: Parameters<Gatherings<A>["join"]>[2]) =>
    Effect.gen(function* () {
      if (held + byteLength > limit) {
        return yield* transformError("LimitExceeded", {
          paramName: op.paramName,
          detail: `${byteLength} bytes are needed to gather the tensor; ${held} of ${limit} are held already.`,
          remedy: "Raise the transform's accumulatorLimit, or update fewer tensors at a time."
        })
      }
      yield* Effect.acquireRelease(
        Effect.sync(() => {
          held += byteLength
        }),
        () =>
          Effect.sync(() => {
            held -= byteLength
            known.delete(op.tensor)
          })
      )
      const gathering: Gathering<A> = { value: yield* make, prepared: 0, finalized: 0 }
      known.set(op.tensor, gathering)
      return gathering
    })

  return {
    of: (op) => known.get(op.tensor)?.value,
    heldBytes: () => held,
    join: Effect.fnUntraced(function* (op, byteLength, make) {
      const gathering = known.get(op.tensor) ?? (yield* begin(op, byteLength, make))
      gathering.prepared += elementCount(regionShape(op.region))
      return gathering.value
    }),
    arrive: Effect.fnUntraced(function* (op, shape, convert) {
      const gathering = known.get(op.tensor)
      const total = elementCount(shape)
      if (gathering === undefined || gathering.prepared !== total) {
        return yield* transformError("IncompleteTensor", {
          paramName: op.paramName,
          detail: `The update brings ${gathering?.prepared ?? 0} elements for ${formatShape(shape)}, which has ${total}.`,
          remedy: "Plan all of the tensor: its scales are made once, from all elements."
        })
      }
      gathering.finalized += elementCount(regionShape(op.region))
      if (gathering.finalized === total) yield* convert(gathering.value)
    })
  }
}
