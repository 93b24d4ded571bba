// SPDX-License-Identifier: Apache-2.0
/**
 * Low-rank adapters: `A` has the inputs of its base, `B` its outputs, and neither is cut along the rank. Embeddings have
 * them the other way round. Magnitudes of DoRA go with the outputs.
 */
import type { Shape } from "@tensorferry/core/base/Region"
import { type FormPart, follows, type StoredTensor, stays } from "./Form.ts"
import type { WeightDims } from "./WeightDims.ts"

/** What the name of every tensor in an adapter's file begins with. */
export const adapterPrefix = "base_model.model."

/** What an adapter's tensor is to a weight of `shape`; undefined where it does not fit. */
export const adapterForm = (weight: WeightDims, { suffix, shape }: StoredTensor, base: Shape): FormPart | undefined => {
  const { out, in: input } = weight
  const map = (dim: number | undefined, length: number | undefined) =>
    dim === undefined || base[dim] !== length ? undefined : follows(dim)
  // Stacked experts have an adapter of all experts' ranks together.
  if (weight.dims.some(({ is }) => is === "experts")) return undefined
  switch (suffix) {
    case "lora_A.weight":
    case "lora_embedding_B": {
      const isEmbedding = suffix === "lora_embedding_B"
      const found = map(input, isEmbedding ? shape[0] : shape[1])
      if (found === undefined || shape.length !== 2) return undefined
      return { kind: isEmbedding ? "adapterB" : "adapterA", maps: isEmbedding ? [found, stays] : [stays, found] }
    }
    case "lora_B.weight":
    case "lora_embedding_A": {
      const isEmbedding = suffix === "lora_embedding_A"
      const found = map(out, isEmbedding ? shape[1] : shape[0])
      if (found === undefined || shape.length !== 2) return undefined
      return { kind: isEmbedding ? "adapterA" : "adapterB", maps: isEmbedding ? [stays, found] : [found, stays] }
    }
    case "lora_B.bias":
    case "lora_magnitude_vector":
    case "lora_magnitude_vector.weight": {
      const found = map(out, shape[0])
      if (found === undefined || shape.length > 2 || (shape[1] ?? 1) !== 1) return undefined
      const maps = shape.length === 1 ? [found] : [found, stays]
      return { kind: suffix === "lora_B.bias" ? "bias" : "magnitude", maps }
    }
    default:
      return undefined
  }
}
