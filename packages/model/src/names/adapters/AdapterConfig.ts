// SPDX-License-Identifier: Apache-2.0
/**
 * The `adapter_config.json` of a low-rank adapter: what of it decides which tensors it has and what they are added to. Other
 * keys are left alone. Features that change the base, or that are no sum of the base and a product, are refused by name.
 */
import { Natural, Positive } from "@tensorferry/core/base/Numbers"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type MappingError, mappingError } from "../MappingError.ts"

const optional = <S extends Schema.Top>(schema: S) => Schema.optionalKey(Schema.NullOr(schema))
const Names = Schema.Array(Schema.String).check(Schema.isMaxLength(65_536))
const Indices = Schema.Array(Natural).check(Schema.isMaxLength(1 << 20))
const Patterns = <S extends Schema.Top>(value: S) => optional(Schema.Record(Schema.String, value))
const Alpha = Schema.Finite

const StatedConfig = Schema.Struct({
  peft_type: optional(Schema.String),
  task_type: optional(Schema.String),
  r: optional(Positive),
  lora_alpha: optional(Alpha),
  rank_pattern: Patterns(Positive),
  alpha_pattern: Patterns(Alpha),
  use_rslora: optional(Schema.Boolean),
  use_dora: optional(Schema.Boolean),
  fan_in_fan_out: optional(Schema.Boolean),
  bias: optional(Schema.Literals(["none", "all", "lora_only"])),
  lora_bias: optional(Schema.Boolean),
  target_modules: optional(Schema.Union([Schema.String, Names])),
  exclude_modules: optional(Schema.Union([Schema.String, Names])),
  target_parameters: optional(Names),
  modules_to_save: optional(Names),
  layers_to_transform: optional(Schema.Union([Natural, Indices])),
  layers_pattern: optional(Schema.Union([Schema.String, Names])),
  trainable_token_indices: optional(Schema.Union([Indices, Schema.Record(Schema.String, Indices)])),
  ensure_weight_tying: optional(Schema.Boolean)
})

/** An adapter's config, with what it leaves out in its place. */
export interface AdapterConfig {
  readonly rank: number
  readonly alpha: number
  /** In the order of the file: the first that fits a module counts. */
  readonly rankPatterns: ReadonlyArray<readonly [pattern: string, rank: number]>
  readonly alphaPatterns: ReadonlyArray<readonly [pattern: string, alpha: number]>
  /** Scales are alpha by the root of the rank. */
  readonly byRoot: boolean
  readonly magnitudes: boolean
  readonly fanInFanOut: boolean
  readonly bias: "none" | "all" | "lora_only"
  readonly lowRankBias: boolean
  /** Ends of paths of modules, or one expression for whole paths. Undefined: what the adapter's tensors say. */
  readonly modules: string | ReadonlyArray<string> | undefined
  readonly excluded: string | ReadonlyArray<string>
  readonly parameters: ReadonlyArray<string>
  readonly saved: ReadonlyArray<string>
  /** Numbers of layers; undefined for all. */
  readonly layers: ReadonlyArray<number> | undefined
  readonly layerPatterns: ReadonlyArray<string>
  /** Rows of embeddings that are trained, by the ends of the embeddings' paths; under "" those of the input embedding. */
  readonly tokens: ReadonlyMap<string, ReadonlyArray<number>>
  readonly ensureTying: boolean
  /** Adapters of classifiers name heads that not every model has. */
  readonly isClassifier: boolean
}

/** Keys under which anything but nothing changes what the adapter's tensors mean. */
const foreign = [
  "alora_invocation_tokens",
  "arrow_config",
  "kasa_config",
  "layer_replication",
  "megatron_config",
  "monteclora_config",
  "use_bdlora",
  "use_qalora",
  "velora_config"
]

/** Ways to begin training that leave the base as it is. */
const plainBeginnings: ReadonlyArray<unknown> = [undefined, null, true, false, "gaussian", "orthogonal", "eva"]

const invalid = (subject: string, detail: string) =>
  mappingError("invalid_rule", subject, undefined, detail, "Correct the adapter's config.")

const unsupported = (subject: string, detail: string) =>
  mappingError("unsupported", subject, undefined, detail, "Merge the adapter with the tool that made it.")

const isNothing = (value: unknown): boolean =>
  value === undefined || value === null || value === false || (Array.isArray(value) && value.length === 0)

const listOf = <A>(value: A | ReadonlyArray<A> | null | undefined): ReadonlyArray<A> =>
  value === null || value === undefined ? [] : Array.isArray(value) ? (value as ReadonlyArray<A>) : [value as A]

const foreignFeature = (object: object): Result.Result<void, MappingError> => {
  const stated = object as Readonly<Record<string, unknown>>
  if (stated.peft_type !== undefined && stated.peft_type !== null && stated.peft_type !== "LORA")
    return unsupported("peft_type", `Adapters of type ${String(stated.peft_type)} are not read.`)
  const key = foreign.find((one) => !isNothing(stated[one]))
  if (key !== undefined) return unsupported(key, "The adapter is not only a product that is added.")
  const beginning = stated.init_lora_weights
  if (plainBeginnings.includes(beginning)) return Result.succeed(undefined)
  return unsupported("init_lora_weights", `Training began with "${String(beginning)}", which changes the base.`)
}

/** Reads what a config states. */
export const adapterConfig = (object: unknown): Result.Result<AdapterConfig, MappingError> =>
  Result.gen(function* () {
    if (typeof object !== "object" || object === null || Array.isArray(object))
      return yield* invalid("adapter_config.json", "It is no object.")
    yield* foreignFeature(object)
    const decoded = Schema.decodeResult(StatedConfig)(object)
    if (Result.isFailure(decoded)) return yield* invalid("adapter_config.json", decoded.failure.message)
    const stated = decoded.success
    const rank = stated.r ?? 8
    const parameters = stated.target_parameters ?? []
    const modules = stated.target_modules ?? undefined
    const isText = typeof modules === "string"
    if (isText && !isNothing(stated.layers_to_transform ?? undefined))
      return yield* invalid("layers_to_transform", "It goes with a list of modules, not with one expression.")
    if (stated.use_dora === true && stated.lora_bias === true)
      return yield* unsupported("lora_bias", "Magnitudes and biases of the adapter exclude each other.")
    const odd = (["fan_in_fan_out", "lora_bias", "use_dora"] as const).find((key) => stated[key] === true)
    if (parameters.length > 0 && odd !== undefined)
      return yield* unsupported(odd, "Adapters of bare parameters know no such thing.")
    const tokens = stated.trainable_token_indices ?? {}
    const layers = listOf(stated.layers_to_transform)
    return {
      rank,
      alpha: stated.lora_alpha ?? 8,
      rankPatterns: Object.entries(stated.rank_pattern ?? {}),
      alphaPatterns: Object.entries(stated.alpha_pattern ?? {}),
      byRoot: stated.use_rslora === true,
      magnitudes: stated.use_dora === true,
      fanInFanOut: stated.fan_in_fan_out === true,
      bias: stated.bias ?? "none",
      lowRankBias: stated.lora_bias === true,
      modules:
        modules === "all-linear" || (modules === undefined && parameters.length === 0) ? undefined : (modules ?? []),
      excluded: stated.exclude_modules ?? [],
      parameters,
      saved: stated.modules_to_save ?? [],
      layers: layers.length === 0 ? undefined : layers,
      layerPatterns: listOf(stated.layers_pattern),
      tokens: new Map(Array.isArray(tokens) ? [["", tokens as ReadonlyArray<number>]] : Object.entries(tokens)),
      ensureTying: stated.ensure_weight_tying === true,
      isClassifier: /_CLS$/.test(stated.task_type ?? "")
    }
  })

/** Reads the text of an adapter_config.json. */
export const parseAdapterConfig = (text: string): Result.Result<AdapterConfig, MappingError> => {
  const json = Result.try((): unknown => JSON.parse(text))
  return Result.isFailure(json) ? invalid("adapter_config.json", "It is no JSON.") : adapterConfig(json.success)
}
