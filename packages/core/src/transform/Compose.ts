// SPDX-License-Identifier: Apache-2.0
/**
 * Transforms put together: one after the other on the same parameter, or each for its own parameters.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { globMatches } from "../layout/ShardingRules.ts"
import type { TensorEngine } from "../service/TensorEngine.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { wholeRegion } from "./QuantizedRegion.ts"
import { type ReshardTransform, type TransformError, type TransformOp, transformError } from "./ReshardTransform.ts"

/** The same transform for fewer parameters. Globs over parameter names. */
export const forParameters = (patterns: ReadonlyArray<string>, transform: ReshardTransform): ReshardTransform => ({
  ...transform,
  shouldTransform: (paramName) =>
    patterns.some((pattern) => globMatches(pattern, paramName)) && transform.shouldTransform(paramName)
})

/** For every parameter the first transform that wants it. */
export const firstOf = (transforms: ReadonlyArray<ReshardTransform>): ReshardTransform => {
  const chosen = (op: TransformOp): Effect.Effect<ReshardTransform, TransformError> => {
    const transform = transforms.find(({ shouldTransform }) => shouldTransform(op.paramName))
    return transform === undefined
      ? Effect.fail(
          transformError("UnsupportedTensor", {
            paramName: op.paramName,
            detail: "No transform of the choice takes this parameter.",
            remedy: "Ask shouldTransform first."
          })
        )
      : Effect.succeed(transform)
  }
  return {
    name: transforms.map(({ name }) => name).join(" or "),
    shouldTransform: (paramName) => transforms.some(({ shouldTransform }) => shouldTransform(paramName)),
    parts: Math.max(1, ...transforms.map(({ parts }) => parts ?? 1)),
    needsQuantized: transforms.some(({ needsQuantized }) => needsQuantized === true),
    begin: (receives) => {
      for (const transform of transforms) {
        transform.begin?.(
          receives.filter(({ paramName }) => transforms.find((one) => one.shouldTransform(paramName)) === transform)
        )
      }
    },
    prepareSend: (op) => Effect.flatMap(chosen(op), (transform) => transform.prepareSend(op)),
    prepareRecv: (op) => Effect.flatMap(chosen(op), (transform) => transform.prepareRecv(op)),
    finalizeRecv: (op, buffers) => Effect.flatMap(chosen(op), (transform) => transform.finalizeRecv(op, buffers))
  }
}

const refused = (detail: string, remedy: string): Result.Result<never, TransformError> =>
  Result.fail(transformError("InvalidComposition", { detail, remedy }))

/** Buffers between the stages of one receive, the first stage's first. */
type Stages = ReadonlyArray<ReadonlyArray<Tensor>>

/**
 * Transforms one after the other: the sender applies them in this order, the receiver undoes them from the last to the
 * first. A parameter goes through those that want it. All but the last hand on one plain tensor, which the next reads on
 * one end and fills on the other; orders in which that cannot be are refused.
 */
export const compose = (
  transforms: ReadonlyArray<ReshardTransform>
): Result.Result<ReshardTransform, TransformError> => {
  if (transforms.length === 0) return refused("There is nothing to compose.", "Name at least one transform.")
  for (const [at, transform] of transforms.entries()) {
    if (at + 1 < transforms.length && (transform.parts ?? 1) !== 1) {
      return refused(
        `"${transform.name}" makes ${transform.parts} tensors of one, which "${transforms[at + 1]!.name}" cannot take.`,
        "Put it last."
      )
    }
    if (at > 0 && transform.needsQuantized === true) {
      return refused(
        `"${transform.name}" ends in a quantized tensor, but "${transforms[at - 1]!.name}" would stand between them.`,
        "Put it first."
      )
    }
    if (transforms.indexOf(transform) !== at) return refused(`"${transform.name}" is named twice.`, "Name it once.")
  }
  const stagesFor = (paramName: string) => transforms.filter(({ shouldTransform }) => shouldTransform(paramName))
  const within = (op: TransformOp, tensor: Tensor): TransformOp => ({
    ...op,
    tensor,
    region: wholeRegion(tensor.shape)
  })
  /** What each receive has between its stages: its wire buffers name it. */
  const between = new WeakMap<Tensor, Stages>()

  const prepareRecv = Effect.fnUntraced(function* (
    op: TransformOp
  ): Effect.fn.Return<ReadonlyArray<Tensor>, TransformError, TensorEngine | Scope.Scope> {
    const stages: Array<ReadonlyArray<Tensor>> = []
    let current = op
    for (const transform of stagesFor(op.paramName)) {
      // A view of its own, so that what follows is known by it alone.
      const buffers = (yield* transform.prepareRecv(current)).map((tensor) => ({ ...tensor }))
      stages.push(buffers)
      if (buffers[0] !== undefined) current = within(op, buffers[0])
    }
    const last = stages.at(-1) ?? []
    if (last[0] !== undefined) between.set(last[0], stages)
    return last
  })

  return Result.succeed({
    name: transforms.map(({ name }) => name).join(", then "),
    shouldTransform: (paramName) => transforms.some(({ shouldTransform }) => shouldTransform(paramName)),
    parts: transforms.at(-1)!.parts ?? 1,
    needsQuantized: transforms[0]!.needsQuantized === true,
    // Those that follow fill whole buffers, never a part of one.
    begin: (receives) =>
      transforms[0]!.begin?.(receives.filter(({ paramName }) => transforms[0]!.shouldTransform(paramName))),
    prepareSend: Effect.fnUntraced(function* (op) {
      let current = op
      let parts: ReadonlyArray<Tensor> = []
      for (const transform of stagesFor(op.paramName)) {
        parts = yield* transform.prepareSend(current)
        if (parts[0] !== undefined) current = within(op, parts[0])
      }
      return parts
    }),
    prepareRecv,
    finalizeRecv: Effect.fnUntraced(function* (op, buffers) {
      const stages = (buffers[0] === undefined ? undefined : between.get(buffers[0])) ?? [buffers]
      const chosen = stagesFor(op.paramName)
      for (let at = chosen.length - 1; at >= 0; at--) {
        const target = at === 0 ? op : within(op, stages[at - 1]![0]!)
        yield* chosen[at]!.finalizeRecv(target, stages[at]!)
      }
    })
  })
}
