// SPDX-License-Identifier: Apache-2.0
/**
 * Mistral's own format, `consolidated*.safetensors` with `params.json`, as the model that it is under published names.
 *
 * The two differ in names, and in the rows of queries and keys: Mistral rotates neighbours of a head, `transformers` the
 * first half of a head against the second. Row `s * half + i` of a head there is row `2 * i + s` here.
 *
 * Invariant: every tensor has a known name. One that has none is refused, never guessed.
 */
import { bitsOf } from "@tensorferry/core/base/DType"
import { elementCount, isEmptyRegion, isInside, type Region, regionShape } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import type { Checkpoint, CheckpointTensor } from "../checkpoint/CheckpointIndex.ts"

const Count = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 31 }))

/** The fields of `params.json` that are needed. */
export const MistralParams = Schema.Struct({
  dim: Count,
  n_layers: Count,
  n_heads: Count,
  n_kv_heads: Schema.optionalKey(Schema.NullOr(Count)),
  head_dim: Schema.optionalKey(Schema.NullOr(Count)),
  hidden_dim: Count,
  vocab_size: Schema.optionalKey(Count),
  norm_eps: Schema.optionalKey(Schema.Finite),
  rope_theta: Schema.optionalKey(Schema.NullOr(Schema.Finite)),
  sliding_window: Schema.optionalKey(Schema.NullOr(Count)),
  moe: Schema.optionalKey(
    Schema.NullOr(Schema.Struct({ num_experts: Count, num_experts_per_tok: Schema.optionalKey(Count) }))
  )
})
export type MistralParams = typeof MistralParams.Type

/** Bytes of `params.json` as its fields, or what is wrong with them. */
export const parseMistralParams = (bytes: Uint8Array): Result.Result<MistralParams, string> =>
  Result.mapError(
    Schema.decodeResult(Schema.fromJsonString(MistralParams))(new TextDecoder().decode(bytes)),
    ({ message }) => message
  )

const headSize = ({ dim, head_dim, n_heads }: MistralParams): number => head_dim ?? Math.floor(dim / n_heads)

/** The same in the words of a config.json that `transformers` reads. */
export const mistralConfig = (params: MistralParams, tensors: ReadonlyMap<string, CheckpointTensor>) => {
  const isMixture = params.moe != null
  return {
    architectures: [isMixture ? "MixtralForCausalLM" : "MistralForCausalLM"],
    model_type: isMixture ? "mixtral" : "mistral",
    hidden_size: params.dim,
    intermediate_size: params.hidden_dim,
    num_hidden_layers: params.n_layers,
    num_attention_heads: params.n_heads,
    num_key_value_heads: params.n_kv_heads ?? params.n_heads,
    head_dim: headSize(params),
    vocab_size: params.vocab_size ?? tensors.get("tok_embeddings.weight")?.shape[0] ?? 1,
    hidden_act: "silu",
    rms_norm_eps: params.norm_eps ?? 1e-5,
    rope_theta: params.rope_theta ?? 10_000,
    sliding_window: params.sliding_window ?? null,
    tie_word_embeddings: !tensors.has("output.weight"),
    ...(params.moe == null
      ? {}
      : { num_local_experts: params.moe.num_experts, num_experts_per_tok: params.moe.num_experts_per_tok ?? 2 })
  }
}

const fixedNames: Readonly<Record<string, string>> = {
  "tok_embeddings.weight": "model.embed_tokens.weight",
  "norm.weight": "model.norm.weight",
  "output.weight": "lm_head.weight"
}

const layerNames: ReadonlyArray<readonly [pattern: RegExp, name: string]> = [
  [/^attention\.w([qkvo])\.weight$/, "self_attn.$1_proj.weight"],
  [/^feed_forward\.w1\.weight$/, "mlp.gate_proj.weight"],
  [/^feed_forward\.w2\.weight$/, "mlp.down_proj.weight"],
  [/^feed_forward\.w3\.weight$/, "mlp.up_proj.weight"],
  [/^attention_norm\.weight$/, "input_layernorm.weight"],
  [/^ffn_norm\.weight$/, "post_attention_layernorm.weight"],
  [/^feed_forward\.gate\.weight$/, "block_sparse_moe.gate.weight"],
  [/^feed_forward\.experts\.(\d+)\.(w[123])\.weight$/, "block_sparse_moe.experts.$1.$2.weight"]
]

/** The published name of a tensor; undefined where none is known. */
export const mistralName = (name: string): string | undefined => {
  const layer = /^layers\.(\d+)\.(.+)$/.exec(name)
  if (layer === null) return fixedNames[name]
  const found = layerNames.find(([pattern]) => pattern.test(layer[2]!))
  return found === undefined ? undefined : `model.layers.${layer[1]}.${layer[2]!.replace(found[0], found[1])}`
}

const isRotated = (name: string): boolean => /\.self_attn\.[qk]_proj\.weight$/.test(name)

/** The checkpoint under published names, and its configuration. */
export const asPublished = (
  checkpoint: Checkpoint,
  params: MistralParams
): Result.Result<
  { readonly checkpoint: Checkpoint; readonly config: ReturnType<typeof mistralConfig> },
  CheckpointError
> => {
  const size = headSize(params)
  const tensors = new Map<string, CheckpointTensor>()
  const stored = new Map<string, string>()
  const unknown: Array<string> = []
  for (const [name, tensor] of checkpoint.tensors) {
    const published = mistralName(name)
    if (published === undefined) {
      unknown.push(name)
      continue
    }
    if (isRotated(published) && (tensor.shape.length !== 2 || tensor.shape[0]! % size !== 0 || size % 2 !== 0)) {
      return Result.fail(
        checkpointError("TensorInvalid", {
          detail: `It has shape [${tensor.shape.join(",")}], which is not one of heads of ${size} rows.`,
          remedy: "Correct head_dim and n_heads in params.json.",
          file: tensor.file,
          paramName: name
        })
      )
    }
    tensors.set(published, { ...tensor, name: published })
    stored.set(published, name)
  }
  if (unknown.length > 0) {
    return Result.fail(
      checkpointError("Unsupported", {
        detail: `${unknown.length} tensors have names that this format is not known to have: ${unknown.slice(0, 5).join(", ")}.`,
        remedy: "Use the checkpoint in the format of transformers, or name the file itself to keep these names.",
        file: checkpoint.path
      })
    )
  }

  /** Rows of whole heads are read, a head at a time, and put into their places. */
  const readRotated = Effect.fnUntraced(function* (name: string, region: Region, into: Uint8Array) {
    const { dtype, file, shape } = tensors.get(name)!
    const rowBytes = (elementCount(regionShape(region.slice(1))) * bitsOf(dtype)) / 8
    const [[first, last], ...columns] = region as [readonly [number, number], ...Region]
    if (!isInside(region, shape) || into.length !== (last - first) * rowBytes || !Number.isInteger(rowBytes)) {
      return yield* checkpointError("InvalidRequest", {
        detail: "The region is not inside the tensor, or the buffer has not its bytes.",
        remedy: "Correct the region or the buffer.",
        file,
        paramName: name
      })
    }
    const block = new Uint8Array(size * rowBytes)
    for (let head = Math.floor(first / size) * size; head < last; head += size) {
      yield* checkpoint.readRegion(stored.get(name)!, [[head, head + size], ...columns], block)
      for (let row = Math.max(first, head); row < Math.min(last, head + size); row++) {
        const [half, at] = [size / 2, row - head]
        const from = 2 * (at % half) + Math.floor(at / half)
        into.set(block.subarray(from * rowBytes, (from + 1) * rowBytes), (row - first) * rowBytes)
      }
    }
  })

  return Result.succeed({
    config: mistralConfig(params, checkpoint.tensors),
    checkpoint: {
      ...checkpoint,
      tensors,
      readRegion: (name, region, into) =>
        isRotated(name) && stored.has(name) && region.length === 2 && !isEmptyRegion(region)
          ? readRotated(name, region, into)
          : checkpoint.readRegion(stored.get(name) ?? name, region, into)
    }
  })
}
