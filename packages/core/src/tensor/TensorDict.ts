// SPDX-License-Identifier: Apache-2.0
/**
 * The named tensors of one model on one rank: what frameworks call a module's state.
 */
import type * as Effect from "effect/Effect"
import type { QuantizedTensor } from "./QuantizedTensor.ts"
import type { Tensor } from "./Tensor.ts"

/** Tensors of one rank by the names of a plan's parameters, with aliases, and hooks that run after they were written. */
export interface TensorDict {
  /** Local name to tensor, in the order of the model. */
  readonly tensors: ReadonlyMap<string, Tensor | QuantizedTensor>
  /** Names of buffers that travel with the parameters although they are not trained by gradient. */
  readonly persistentBuffers: ReadonlySet<string>
  /** Name to the name whose storage it shares (tied embeddings). An alias is never moved on its own. */
  readonly aliases: ReadonlyMap<string, string>
  /** Run once after the last byte of an update has arrived: rebuild what was computed from old values. */
  readonly refreshCaches: ReadonlyArray<Effect.Effect<void>>
}

/** Completes what is stated; the rest is empty. */
export const tensorDict = (
  tensors: Iterable<readonly [string, Tensor | QuantizedTensor]>,
  options: Partial<Omit<TensorDict, "tensors">> = {}
): TensorDict => ({
  tensors: new Map(tensors),
  persistentBuffers: options.persistentBuffers ?? new Set(),
  aliases: options.aliases ?? new Map(),
  refreshCaches: options.refreshCaches ?? []
})

/** The tensor that a name stands for, through at most one alias. */
export const resolveTensor = (dict: TensorDict, name: string): Tensor | QuantizedTensor | undefined =>
  dict.tensors.get(name) ?? dict.tensors.get(dict.aliases.get(name) ?? "")
