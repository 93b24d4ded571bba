// SPDX-License-Identifier: Apache-2.0
/**
 * Files that vLLM saves of each tensor-parallel rank's own parameters (`model-rank-R-part-P.safetensors`), put together as
 * the model under published names: fused projections are taken apart, padding of the vocabulary is left out.
 *
 * Invariant: a parameter is known by name, its shape is the one that the configuration's degrees give, and every rank has
 * it. Anything else is refused, never guessed.
 */
import { readdir } from "node:fs/promises"
import { join } from "node:path"
import { bitsOf, byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import {
  elementCount,
  equalShapes,
  formatShape,
  fullRegion,
  intersect,
  type Region,
  regionShape,
  type Shape
} from "@tensorferry/core/base/Region"
import { coverageFault } from "@tensorferry/core/planner/Coverage"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import type { Checkpoint, CheckpointTensor } from "../checkpoint/CheckpointIndex.ts"
import { readSmallFile, systemCall } from "../checkpoint/FileAccess.ts"
import { makeFileCache } from "../checkpoint/FileCache.ts"
import { regionRuns } from "../checkpoint/RegionRuns.ts"
import { asOneRun, scatter } from "../regionBytes.ts"

const filePattern = /^model-rank-(\d{1,5})-part-(\d{1,6})\.safetensors$/

/** Whether a file is one of a rank's. */
export const isShardedState = (name: string): boolean => filePattern.test(name)

/** Families whose published names and fusions are those that are known here. */
const knownTypes = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"] as const

const Count = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 31 }))

const Config = Schema.fromJsonString(
  Schema.Struct({
    model_type: Schema.String,
    hidden_size: Count,
    num_attention_heads: Count,
    num_key_value_heads: Schema.optionalKey(Schema.NullOr(Count)),
    head_dim: Schema.optionalKey(Schema.NullOr(Count)),
    vocab_size: Count,
    num_experts: Schema.optionalKey(Schema.NullOr(Count)),
    num_local_experts: Schema.optionalKey(Schema.NullOr(Count))
  })
)
type Config = typeof Config.Type

/** A region of a published tensor, and where it lies in a rank's parameter. */
interface Part {
  readonly name: string
  readonly shape: Shape
  readonly global: Region
  readonly local: Region
}

const span = (start: number, length: number) => [start, start + length] as const

/** Rows of a published tensor among the rows of a parameter; the other dimensions are whole. */
const rows = (name: string, whole: number, at: number, from: number, count: number, shape: Shape): Part => ({
  name,
  shape: [whole, ...shape.slice(1)],
  global: [span(at, count), ...fullRegion(shape.slice(1))],
  local: [span(from, count), ...fullRegion(shape.slice(1))]
})

const replicatedNames =
  /(norm\.(weight|bias)|\.(mlp|block_sparse_moe)\.gate\.weight|\.(o_proj|down_proj)\.bias|rotary_emb\.inv_freq)$/

const expertNames = {
  mixtral: ["w1", "w3", "w2"],
  others: ["gate_proj", "up_proj", "down_proj"]
} as const

/** The published tensors in one rank's parameter; what is wrong with it in words. */
export const partsOfParameter = (
  name: string,
  shape: Shape,
  { rank, ranks }: { readonly rank: number; readonly ranks: number },
  config: Config
): Result.Result<ReadonlyArray<Part>, string> => {
  const base = name.replace(/[^.]+\.(weight|bias)$/, "")
  const kind = name.slice(base.length)
  const suffix = kind.replace(/^.*\./, "")
  const [queries, keys] = [config.num_attention_heads, config.num_key_value_heads ?? config.num_attention_heads]
  const size = config.head_dim ?? Math.floor(config.hidden_size / queries)
  const unfit = Result.fail(`${formatShape(shape)} is not its part of ${ranks} ranks`)
  if (kind.startsWith("qkv_proj.")) {
    const [own, shared] = [(queries / ranks) * size, Math.max(1, keys / ranks) * size]
    const perHead = Math.max(1, ranks / keys)
    if (shape[0] !== own + 2 * shared || ![own, shared, perHead].every(Number.isInteger)) return unfit
    const at = keys >= ranks ? rank * shared : Math.floor(rank / perHead) * size
    return Result.succeed([
      rows(`${base}q_proj.${suffix}`, queries * size, rank * own, 0, own, shape),
      rows(`${base}k_proj.${suffix}`, keys * size, at, own, shared, shape),
      rows(`${base}v_proj.${suffix}`, keys * size, at, own + shared, shared, shape)
    ])
  }
  if (kind.startsWith("gate_up_proj.")) {
    const half = shape[0]! / 2
    if (!Number.isInteger(half)) return unfit
    return Result.succeed(
      ["gate_proj", "up_proj"].map((one, at) =>
        rows(`${base}${one}.${suffix}`, half * ranks, rank * half, at * half, half, shape)
      )
    )
  }
  if (kind === "embed_tokens.weight" || kind === "lm_head.weight") {
    const own = Math.max(0, Math.min(shape[0]!, config.vocab_size - rank * shape[0]!))
    if (shape[0]! * ranks < config.vocab_size) return unfit
    return Result.succeed([rows(name, config.vocab_size, Math.min(rank * shape[0]!, config.vocab_size), 0, own, shape)])
  }
  if (kind === "o_proj.weight" || kind === "down_proj.weight") {
    const [height, width] = shape as [number, number]
    const global = [span(0, height), span(rank * width, width)]
    return Result.succeed([{ name, shape: [height, width * ranks], global, local: fullRegion(shape) }])
  }
  const fused = /^(.*\.experts\.)(?:routed_experts\.)?(w13|w2)_weight$/.exec(name)
  if (fused !== null && shape.length === 3) {
    const [experts, height, width] = shape as [number, number, number]
    if (experts !== (config.num_experts ?? config.num_local_experts)) {
      return Result.fail(`it holds ${experts} experts, and ranks with experts of their own are not read`)
    }
    const [gate, up, down] = config.model_type === "mixtral" ? expertNames.mixtral : expertNames.others
    const half = height / 2
    if (fused[2] === "w13" && !Number.isInteger(half)) return unfit
    return Result.succeed(
      Array.from({ length: experts }, (_, expert) => expert).flatMap((expert): ReadonlyArray<Part> => {
        const module = `${fused[1]}${expert}.`
        if (fused[2] === "w2") {
          const global = [span(0, height), span(rank * width, width)]
          const local = [span(expert, 1), span(0, height), span(0, width)]
          return [{ name: `${module}${down}.weight`, shape: [height, width * ranks], global, local }]
        }
        return [gate, up].map((one, at) => ({
          name: `${module}${one}.weight`,
          shape: [half * ranks, width],
          global: [span(rank * half, half), span(0, width)],
          local: [span(expert, 1), span(at * half, half), span(0, width)]
        }))
      })
    )
  }
  if (ranks === 1 || replicatedNames.test(name)) {
    return Result.succeed([{ name, shape, global: fullRegion(shape), local: fullRegion(shape) }])
  }
  return Result.fail("how vLLM cuts it is not known")
}

interface Piece {
  readonly file: string
  readonly stored: string
  readonly global: Region
  readonly local: Region
}

const failure = (
  tag: "InvalidIndex" | "TensorInvalid" | "Unsupported",
  file: string,
  detail: string,
  paramName?: string
) =>
  checkpointError(tag, {
    detail,
    remedy: "Save the state with all ranks again, or use the checkpoint that vLLM loaded.",
    file,
    ...(paramName === undefined ? {} : { paramName })
  })

const readConfig = (folder: string) =>
  Effect.gen(function* () {
    const file = join(folder, "config.json")
    const config = Schema.decodeResult(Config)(new TextDecoder().decode(yield* readSmallFile(file, 16 * 1024 * 1024)))
    const known = knownTypes.join(", ")
    if (Result.isFailure(config)) {
      const detail = `It does not have the sizes that a saved state of vLLM is read by: ${config.failure.message.slice(0, 300)}`
      return yield* failure("Unsupported", file, detail)
    }
    const { model_type: type } = config.success
    if (knownTypes.some((one) => one === type)) return config.success
    return yield* failure("Unsupported", file, `A saved state of vLLM is read of ${known}, not of ${type}.`)
  })

const openFileLimit = 64

/** Opens a folder of saved state. */
export const openShardedState = (folder: string): Effect.Effect<Checkpoint, CheckpointError, Scope.Scope> =>
  Effect.gen(function* () {
    const config = yield* readConfig(folder)
    const names = (yield* systemCall("Unreadable", folder, "list the folder", () => readdir(folder))).sort()
    const files = names.flatMap((name) => {
      const found = filePattern.exec(name)
      return found === null ? [] : [{ path: join(folder, name), rank: Number(found[1]) }]
    })
    const ranks = Math.max(...files.map(({ rank }) => rank)) + 1
    const cache = yield* makeFileCache(openFileLimit)
    const stored = new Map<string, Map<number, { file: string; dtype: DType; shape: Shape }>>()
    for (const { path, rank } of files) {
      yield* cache.use(path, (file) =>
        Effect.gen(function* () {
          for (const { dtype, name, shape } of file.tensors.values()) {
            const held = stored.get(name) ?? new Map<number, { file: string; dtype: DType; shape: Shape }>()
            if (held.has(rank)) return yield* failure("InvalidIndex", path, "Two parts of a rank hold it.", name)
            stored.set(name, held.set(rank, { file: path, dtype, shape }))
          }
        })
      )
    }
    const tensors = new Map<string, CheckpointTensor>()
    const pieces = new Map<string, Array<Piece>>()
    for (const [name, held] of stored) {
      if (held.size !== ranks) {
        return yield* failure("InvalidIndex", folder, `${held.size} of ${ranks} ranks hold it.`, name)
      }
      for (const [rank, { dtype, file, shape }] of [...held].sort(([a], [b]) => a - b)) {
        const parts = partsOfParameter(name, shape, { rank, ranks }, config)
        if (Result.isFailure(parts))
          return yield* failure("Unsupported", file, `The parameter is refused: ${parts.failure}.`, name)
        for (const { global, local, name: published, shape } of parts.success) {
          const known = tensors.get(published)
          if (known !== undefined && (known.dtype !== dtype || !equalShapes(known.shape, shape))) {
            return yield* failure("TensorInvalid", file, "Ranks hold parts of other shapes or types.", name)
          }
          const byteLength = byteLengthOf(dtype, elementCount(shape))
          tensors.set(published, { name: published, dtype, shape, byteLength, file })
          const all = pieces.get(published) ?? []
          const isReplica = all.some((one) => JSON.stringify(one.global) === JSON.stringify(global))
          if (!isReplica) all.push({ file, stored: name, global, local })
          pieces.set(published, all)
        }
      }
    }
    for (const [name, { shape }] of tensors) {
      const fault = coverageFault(
        shape,
        pieces.get(name)!.map(({ global }) => global)
      )
      if (fault !== undefined)
        return yield* failure("TensorInvalid", folder, `Its parts are not the tensor: ${fault}`, name)
    }

    const readRegion: Checkpoint["readRegion"] = Effect.fnUntraced(function* (name, region, into) {
      const tensor = tensors.get(name)
      if (tensor === undefined) {
        return yield* checkpointError("TensorMissing", {
          detail: "The checkpoint has no such tensor.",
          remedy: "Check the name.",
          file: folder,
          paramName: name
        })
      }
      const moved = (one: Region, from: Region): Region =>
        one.map(([start, stop], dim) => [start - from[dim]![0], stop - from[dim]![0]] as const)
      for (const { file, global, local, stored } of pieces.get(name)!) {
        const common = intersect(region, global)
        if (common === undefined) continue
        const runs = Result.getOrThrow(regionRuns(regionShape(region), moved(common, region), bitsOf(tensor.dtype)))
        const direct = asOneRun(runs, into)
        const dense = direct ?? new Uint8Array((elementCount(regionShape(common)) * bitsOf(tensor.dtype)) / 8)
        // A parameter of experts has one dimension more, in front.
        const lead = local.length - global.length
        const within = moved(common, global).map(([start, stop], dim) => {
          const base = local[dim + lead]![0]
          return [start + base, stop + base] as const
        })
        yield* cache.use(file, (open) => open.readRegion(stored, [...local.slice(0, lead), ...within], dense))
        if (direct === undefined) scatter(runs, dense, into)
      }
    })
    return { path: folder, tensors, metadata: new Map(), files: cache.seen, readRegion }
  })
