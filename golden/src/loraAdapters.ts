// SPDX-License-Identifier: Apache-2.0
/**
 * LoRA adapters as recorded by running peft: which modules an adapter changes and by how much, and what the base's values are
 * once it is merged, against what our reader and merge make of the same files.
 *
 * Cases marked `suspect` are those in which a base with one storage for embedding and head was merged so that a side changes
 * that the adapter leaves alone, or changes twice. There, each side is held against what the adapter means for it.
 */
import { elementCount, equalShapes, type Shape } from "@tensorferry/core/base/Region"
import {
  type Adapter,
  type AdapterBase,
  inputsFirstTypes,
  type LowRank,
  type NamedShape
} from "@tensorferry/model/names/adapters/Adapter"
import { adapterConfig } from "@tensorferry/model/names/adapters/AdapterConfig"
import { adapterName, parseAdapterName } from "@tensorferry/model/names/adapters/AdapterNames"
import { checkCopies, mergeTensor } from "@tensorferry/model/names/adapters/mergeAdapter"
import { type AdapterOptions, readAdapter } from "@tensorferry/model/names/adapters/readAdapter"
import type { MappingError } from "@tensorferry/model/names/MappingError"
import * as Result from "effect/Result"

type Named = ReadonlyArray<readonly [string, Shape]>

interface RecordedTensor {
  readonly name: string
  readonly data: string
}

/** A case of the form `lora/1`. */
export interface RecordedAdapter {
  readonly id: string
  readonly family: string
  readonly values: "exact" | "random"
  readonly lora_config: object
  readonly adapter_config: object
  readonly hf_config: { readonly model_type: string }
  readonly adapter_tensors: ReadonlyArray<RecordedTensor & { readonly shape: Shape }>
  readonly in_memory: Named
  readonly applied: ReadonlyArray<{
    readonly module: string
    readonly parameter: string | null
    readonly layer_type: string
    readonly rank: number
    readonly alpha: number
    readonly scale: number
    readonly fan_in_fan_out: boolean
    readonly dora: boolean
  }>
  readonly base_names: Named
  readonly tied: boolean
  readonly tied_after_merge: boolean
  readonly base_tensors: ReadonlyArray<RecordedTensor>
  readonly merged_tensors: ReadonlyArray<RecordedTensor>
  readonly changed: ReadonlyArray<string>
  readonly suspect: boolean
}

/** An adapter that must be refused: a case's own, with something else about it. */
export interface RecordedRefusal {
  readonly id: string
  readonly family: string
  readonly loaded_onto: string
  readonly lora_config: object
  readonly removed: ReadonlyArray<string>
  readonly added: Named
  readonly reshaped: Named
  readonly config_changed: object
  readonly must_refuse: boolean
  readonly kind: string
  readonly subject: ReadonlyArray<string>
}

export interface RecordedAdapters {
  readonly cases: ReadonlyArray<RecordedAdapter>
  readonly negative: ReadonlyArray<RecordedRefusal>
}

export interface AdapterVerdict {
  readonly name: string
  readonly fault: string | undefined
}

const named = (list: Named): ReadonlyArray<NamedShape> => list.map(([name, shape]) => ({ name, shape }))

const floats = (data: string): Float32Array => {
  const bytes = Buffer.from(data, "base64")
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength))
}

/** Values of recorded tensors, by name. */
export const valuesOf = (tensors: ReadonlyArray<RecordedTensor>): ReadonlyMap<string, Float32Array> =>
  new Map(tensors.map(({ name, data }) => [name, floats(data)]))

const head = "lm_head.weight"

/** Names of one storage: what the recording calls tied is the head and the embedding. */
const baseOf = ({ base_names: names, tied, hf_config: config }: RecordedAdapter): AdapterBase => {
  const embedding = names.find(([name]) => /(^|\.)(embed_tokens|wte)\.weight$/.test(name))
  const aliases = tied && embedding !== undefined ? new Map([[head, embedding[0]]]) : undefined
  const hasInputsFirst = inputsFirstTypes.has(config.model_type)
  return { tensors: named(names), isDeclared: true, hasInputsFirst, ...(aliases === undefined ? {} : { aliases }) }
}

const lowRanksOf = ({ changes }: Adapter): ReadonlyArray<LowRank> =>
  [...changes.values()].flat().filter((change): change is LowRank => change._tag === "LowRank")

const withoutWrappers = (module: string): string => module.replaceAll(".base_layer", "")

/** Which modules are adapted, with which rank and scale. */
const compareApplied = (adapter: Adapter, recorded: RecordedAdapter): string | undefined => {
  const own = new Map(lowRanksOf(adapter).map((one) => [`${one.module} ${one.parameter ?? ""}`, one]))
  for (const one of recorded.applied) {
    const key = `${withoutWrappers(one.module)} ${one.parameter ?? ""}`
    const found = own.get(key)
    if (found === undefined) return `${key} is not adapted`
    own.delete(key)
    if (found.rank !== one.rank || found.alpha !== one.alpha || found.scale !== one.scale)
      return `${key}: rank ${found.rank}, alpha ${found.alpha}, scale ${found.scale}, recorded ${one.rank}, ${one.alpha}, ${one.scale}`
    if ((found.magnitude !== undefined) !== one.dora) return `${key}: magnitudes differ`
    const kind =
      one.layer_type === "ParamWrapper" ? "parameter" : one.layer_type === "Embedding" ? "embedding" : "linear"
    if (found.kind !== kind) return `${key}: ${found.kind}, recorded ${kind}`
    if (kind === "linear" && found.isTransposed !== one.fan_in_fan_out) return `${key}: turned otherwise`
  }
  const [more] = own.keys()
  return more === undefined ? undefined : `${more} is adapted, recorded otherwise`
}

/** Names in memory mean what names in the file mean. */
const compareNames = (recorded: RecordedAdapter): string | undefined => {
  const meaning = (name: string): string => {
    const parsed = parseAdapterName(name)
    if (parsed === undefined) return name
    const { adapter: _adapter, ...rest } = parsed
    return JSON.stringify(rest)
  }
  const inFile = new Map(recorded.adapter_tensors.map(({ name, shape }) => [meaning(name), shape]))
  for (const [name, shape] of recorded.in_memory) {
    const found = inFile.get(meaning(name))
    if (found === undefined) return `${name} has no tensor in the file`
    if (!equalShapes(found, shape)) return `${name} is [${shape}] in memory and [${found}] in the file`
  }
  return undefined
}

/** One unit in the last place of a float32. */
const ulp = (value: number): number => 2 ** (Math.floor(Math.log2(Math.max(Math.abs(value), 2 ** -126))) - 23)

const compareValues = (
  own: Float32Array,
  wanted: Float32Array,
  sizes: Float32Array | undefined
): string | undefined => {
  if (own.length !== wanted.length) return `${own.length} values, recorded ${wanted.length}`
  const at = own.findIndex((value, index) => {
    const other = wanted[index]!
    return sizes === undefined ? !Object.is(value, other) : Math.abs(value - other) > 4 * ulp(sizes[index]!)
  })
  return at < 0 ? undefined : `element ${at} is ${own[at]}, recorded ${wanted[at]}`
}

/** Bounds of the partial sums of each element: the same merge of magnitudes. */
const partialSums = (
  adapter: Adapter,
  tensor: string,
  shape: Shape,
  base: Float32Array,
  values: ReadonlyMap<string, Float32Array>
): Float32Array => {
  const plain = (adapter.changes.get(tensor) ?? []).map((change) =>
    change._tag === "LowRank" ? { ...change, magnitude: undefined } : change
  )
  const absolute = (one: Float32Array): Float32Array => one.map(Math.abs)
  const sums = mergeTensor(plain, shape, absolute(base), (name) => absolute(values.get(name)!))
  return Result.isSuccess(sums) ? sums.success : absolute(base)
}

/** What a side of one storage is once only its own change is in it. */
const sideValues = (
  adapter: Adapter,
  side: string,
  shape: Shape,
  base: Float32Array,
  values: ReadonlyMap<string, Float32Array>
): Float32Array =>
  Result.getOrElse(
    mergeTensor(adapter.changes.get(side) ?? [], shape, base, (name) => values.get(name)!),
    () => base
  )

/**
 * Whether the recorded values of one storage are what comes of all its sides' changes in it, one after the other. Each side by
 * itself is what we merge. Norms of two sides are not sums, and are not looked at.
 */
const compareShared = (
  recorded: RecordedAdapter,
  adapter: Adapter,
  shape: Shape,
  base: Float32Array,
  merged: Float32Array,
  values: ReadonlyMap<string, Float32Array>
): string | undefined => {
  const embedding = baseOf(recorded).aliases!.get(head)!
  const names = adapter.untied.length === 0 ? [embedding, embedding] : [embedding, head]
  const changes = names.flatMap((name) => adapter.changes.get(name) ?? [])
  if (changes.some((change) => change._tag === "LowRank" && change.magnitude !== undefined)) return undefined
  const sides = names.map((name) => sideValues(adapter, name, shape, base, values))
  const sizes = names.map((name) => partialSums(adapter, name, shape, base, values))
  const isSum = changes.every(({ _tag }) => _tag === "LowRank")
  const at = merged.findIndex((value, element) => {
    const own = sides.map((side) => side[element]!)
    if (!isSum) return !own.some((one) => Object.is(one, value))
    const sum = own.reduce((total, one) => total + (one - base[element]!), base[element]!)
    const near = recorded.values === "exact" ? 0 : 8 * ulp(sizes.reduce((total, size) => total + size[element]!, 0))
    return Math.abs(sum - value) > near
  })
  return at < 0 ? undefined : `element ${at} of the shared storage is recorded as ${merged[at]}`
}

const compareMerged = (adapter: Adapter, recorded: RecordedAdapter): string | undefined => {
  const shapes = new Map(recorded.base_names)
  const base = valuesOf(recorded.base_tensors)
  const merged = valuesOf(recorded.merged_tensors)
  const values = valuesOf(recorded.adapter_tensors)
  for (const tensor of adapter.changes.keys())
    if (!recorded.changed.includes(tensor)) return `${tensor} changes, recorded otherwise`
  for (const tensor of recorded.changed) {
    // A name that shares storage has the values of the other name.
    const source = adapter.untied.includes(tensor) ? tensor : (baseOf(recorded).aliases?.get(tensor) ?? tensor)
    const shape = shapes.get(tensor)!
    if (recorded.suspect && (tensor === head || baseOf(recorded).aliases?.get(head) === tensor)) {
      const fault = compareShared(recorded, adapter, shape, base.get(tensor)!, merged.get(tensor)!, values)
      if (fault !== undefined) return `${tensor}: ${fault}`
      continue
    }
    const own = mergeTensor(adapter.changes.get(source) ?? [], shape, base.get(tensor)!, (name) => values.get(name)!)
    if (Result.isFailure(own)) return own.failure.message
    if (own.success.length !== elementCount(shape)) return `${tensor}: ${own.success.length} values`
    const wanted = merged.get(tensor)!
    const sizes =
      recorded.values === "exact" ? undefined : partialSums(adapter, source, shape, base.get(tensor)!, values)
    const fault = compareValues(own.success, wanted, sizes)
    if (fault !== undefined) return `${tensor}: ${fault}`
  }
  const copies = checkCopies(
    adapter,
    (name) => values.get(name)!,
    (name) => base.get(name) ?? new Float32Array(0)
  )
  return Result.isFailure(copies) ? copies.failure.message : undefined
}

const read = (
  config: object,
  tensors: ReadonlyArray<NamedShape>,
  base: AdapterBase,
  options: AdapterOptions = {}
): Result.Result<Adapter, MappingError> =>
  Result.flatMap(adapterConfig(config), (stated) => readAdapter(stated, tensors, base, options))

/** A recorded adapter as it is read for its base. */
export const readRecorded = (recorded: RecordedAdapter): Result.Result<Adapter, MappingError> =>
  read(recorded.adapter_config, recorded.adapter_tensors, baseOf(recorded))

/** One recorded adapter; returns what differs first. */
export const checkAdapter = (recorded: RecordedAdapter): string | undefined => {
  const { adapter_config: config, adapter_tensors: tensors, suspect } = recorded
  const base = baseOf(recorded)
  const plain = read(config, tensors, base)
  const isConflict = Result.isFailure(plain) && plain.failure.kind === "conflicting_alias"
  if (suspect && Result.isSuccess(plain) && plain.success.tied.length === 0)
    return "A change of one side of a shared storage is not refused."
  // Where the recorded model no longer shares storage, it was untied.
  const isUntied = isConflict && (suspect || !recorded.tied_after_merge)
  const adapter = isUntied ? read(config, tensors, base, { tied: "untie" }) : plain
  if (Result.isFailure(adapter)) return adapter.failure.message
  // Both sides of a tied change are one here.
  const isOne = recorded.tied && adapter.success.tied.length > 0
  const applied = isOne ? recorded.applied.filter(({ module }) => module !== "lm_head") : recorded.applied
  return (
    compareApplied(adapter.success, { ...recorded, applied }) ??
    compareNames(recorded) ??
    compareMerged(adapter.success, recorded)
  )
}

/** One adapter that must be refused. */
export const checkRefusal = (recorded: RecordedRefusal, cases: ReadonlyArray<RecordedAdapter>): string | undefined => {
  const same = cases.find((one) => one.family === recorded.family && isEqual(one.lora_config, recorded.lora_config))
  const trained = cases.find(({ family }) => family === recorded.family)
  const own = same ?? (trained === undefined ? undefined : plainAdapter(recorded.lora_config, trained))
  const onto = cases.find(({ family }) => family === recorded.loaded_onto)
  if (own === undefined || onto === undefined) return "No case has its adapter or its base."
  const shapes = new Map(recorded.reshaped)
  const tensors = own.adapter_tensors
    .filter(({ name }) => !recorded.removed.includes(name))
    .map(({ name, shape }) => ({ name, shape: shapes.get(name) ?? shape }))
  const config = { ...own.adapter_config, ...recorded.config_changed }
  const result = read(config, [...tensors, ...named(recorded.added)], baseOf(onto))
  if (Result.isSuccess(result)) return recorded.must_refuse ? `It is not refused (${recorded.kind}).` : undefined
  const { kind, subject } = result.failure
  if (!recorded.must_refuse) return `It is refused: ${result.failure.message}`
  return kind === recorded.kind && recorded.subject.includes(subject)
    ? undefined
    : `${kind} (${subject}), recorded ${recorded.kind} (${recorded.subject.join(", ")})`
}

const isEqual = (one: object, other: object): boolean => {
  const plain = (config: object): string => JSON.stringify(Object.entries(config).sort(([a], [b]) => (a < b ? -1 : 1)))
  return plain(one) === plain(other)
}

/** The adapter of a config for which there is no case: factors of matrices whose modules it lists. */
const plainAdapter = (config: object, { base_names: names }: RecordedAdapter) => {
  const { r = 8, target_modules: modules } = config as { readonly r?: number; readonly target_modules?: unknown }
  if (!Array.isArray(modules)) return undefined
  const tensors = names.flatMap(([name, [out, input, ...more]]) => {
    const module = name.replace(/\.weight$/, "")
    const isMeant = modules.some((end) => module === end || module.endsWith(`.${end}`))
    if (module === name || input === undefined || more.length > 0 || !isMeant) return []
    const isEmbedding = /(^|\.)(embed_tokens|wte)$/.test(module)
    return isEmbedding
      ? [
          { name: adapterName(module, "lora_embedding_A"), shape: [r, out!] },
          { name: adapterName(module, "lora_embedding_B"), shape: [input, r] }
        ]
      : [
          { name: adapterName(module, "lora_A.weight"), shape: [r, input] },
          { name: adapterName(module, "lora_B.weight"), shape: [out!, r] }
        ]
  })
  return { adapter_config: config, adapter_tensors: tensors }
}

/** All of a recording. */
export const checkAdapters = ({ cases, negative }: RecordedAdapters): ReadonlyArray<AdapterVerdict> => [
  ...cases.map((one) => ({ name: one.id, fault: checkAdapter(one) })),
  ...negative.map((one) => ({ name: `refuses ${one.id}`, fault: checkRefusal(one, cases) }))
]
