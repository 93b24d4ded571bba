// SPDX-License-Identifier: Apache-2.0
/**
 * From a config.json and the tensors' names, types and shapes to the structure of the model. Pure; a name is looked up once
 * per pattern, and a form is found once per kind of module.
 */
import { elementCount, equalShapes, formatShape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type Form, type StoredTensor, stays } from "../forms/Form.ts"
import { formOf, wholeForm } from "../forms/formOf.ts"
import { type QuantizationConfig, quantizationOf } from "../forms/QuantizationConfig.ts"
import { weightDims } from "../forms/WeightDims.ts"
import type { ModelTensor } from "../layout/ModelLayout.ts"
import type { Dim, Family, ModuleSpec } from "../structure/Family.ts"
import { type ConfigObject, textOf } from "../structure/ModelConfig.ts"
import { type ModelNumbers, numbersOf } from "../structure/ModelNumbers.ts"
import { promisedShape } from "../structure/promisedShape.ts"
import { type Run, runsOf } from "./DimLayout.ts"
import type { ModelStructure, Module, ModuleKind, Stack, StackKind, Unknown } from "./ModelStructure.ts"
import { isExtraLayer, type NamedThing, nameTable, patternOf } from "./NameTable.ts"
import { unlikeModules } from "./unlikeModules.ts"

/** A model and the family by which it is read. */
export interface DescribeInput {
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly config: ConfigObject | undefined
  readonly family: Family
  /** Which of the family's types was named. */
  readonly modelType: string
}

/** A module whose tensors are still being found. */
interface Found {
  readonly path: string
  readonly named: Extract<NamedThing, { readonly _tag: "Module" }>
  readonly stack: number | undefined
  readonly layer: number | undefined
  readonly expert: number | undefined
  suffixes: Suffixes
  /** Made anew with each one more: a list that grows has room for many, and most modules have two. */
  tensors: ReadonlyArray<ModelTensor>
}

/** Suffixes of a module's tensors in their order. Modules that have the same ones share the list. */
interface Suffixes {
  readonly all: ReadonlyArray<string>
  readonly next: Map<string, Suffixes>
}

const withSuffix = ({ all, next }: Suffixes, suffix: string): Suffixes => {
  const known = next.get(suffix)
  if (known !== undefined) return known
  const made: Suffixes = { all: [...all, suffix], next: new Map() }
  next.set(suffix, made)
  return made
}

/** Numbers the stacks as they are met. */
const stackList = () => {
  const stacks: Array<{ readonly kind: StackKind; readonly prefix: string; readonly layers: Set<number> }> = []
  return {
    stacks,
    note: (kind: StackKind, prefix: string, layer: number | undefined): number => {
      const known = stacks.findIndex((stack) => stack.kind === kind && stack.prefix === prefix)
      const at = known < 0 ? stacks.push({ kind, prefix, layers: new Set() }) - 1 : known
      if (layer !== undefined) stacks[at]!.layers.add(layer)
      return at
    }
  }
}

/** The order of outputs and inputs in stacks of experts, which writers disagree on; the hidden state tells. */
const swapsStacks = (found: Iterable<Found>, hidden: number | undefined): boolean => {
  let [plain, swapped] = [0, 0]
  if (hidden === undefined) return false
  for (const { named, tensors, suffixes } of found) {
    const { dims } = named.spec
    if (dims?.[0]?.is !== "experts") continue
    const at = dims.findIndex(({ isHidden }) => isHidden === true)
    const shape = tensors[suffixes.all.findIndex((suffix) => suffix === "" || suffix === "weight")]?.shape
    if (at < 0 || shape?.length !== 3) continue
    const [own, other] = [shape[at] === hidden, shape[3 - at] === hidden]
    if (own && !other) plain++
    if (other && !own) swapped++
  }
  return swapped > 0 && plain === 0
}

const swapped = (dims: ReadonlyArray<Dim>): ReadonlyArray<Dim> =>
  dims[0]?.is === "experts" && dims.length === 3 ? [dims[0], dims[2]!, dims[1]!] : dims

const hiddenFault = (dims: ReadonlyArray<Dim>, form: Form, hidden: number | undefined): string | undefined => {
  const at = dims.findIndex(({ is, isHidden }) => isHidden === true && is !== "other")
  if (hidden === undefined || at < 0 || dims[0]?.is !== "experts" || form.shape[at] === hidden) return undefined
  return `its shape ${formatShape(form.shape)} has no hidden size of ${hidden} where the family has it`
}

const kindOf = (
  spec: ModuleSpec,
  dims: ReadonlyArray<Dim> | undefined,
  tensors: ReadonlyArray<StoredTensor>,
  quantization: QuantizationConfig | undefined,
  numbers: ModelNumbers,
  hidden: number | undefined
): Result.Result<ModuleKind, string> => {
  if (dims === undefined) {
    const several = spec.isScalar === true ? tensors.find(({ shape }) => elementCount(shape) !== 1) : undefined
    return several === undefined
      ? Result.succeed({ spec, form: wholeForm(tensors), runs: [], expertDim: undefined })
      : Result.fail(`its shape ${formatShape(several.shape)} is not that of one number`)
  }
  const weight = weightDims(dims)
  const promised = weight.in === undefined ? undefined : promisedShape({ ...spec, dims }, numbers)?.[weight.in]
  return Result.flatMap(formOf({ weight, tensors, quantization, inputs: promised }), (form) => {
    const fault = hiddenFault(dims, form, hidden)
    if (fault !== undefined) return Result.fail(fault)
    const runs: Array<ReadonlyArray<Run>> = []
    for (const [at, dim] of dims.entries()) {
      // A part of a module need not have all of the weight's dimensions.
      const isHeld = form.parts.some(({ maps }) => maps.some((map) => map.dim === at))
      if (dim.roles.length === 0 || !isHeld) {
        runs.push([])
        continue
      }
      const found = runsOf(dim, form.shape[at]!, numbers)
      if (Result.isFailure(found)) return Result.fail(found.failure)
      runs.push(found.success)
    }
    const expertDim = dims.findIndex(({ is }) => is === "experts")
    return Result.succeed({ spec, form, runs, expertDim: expertDim < 0 ? undefined : expertDim })
  })
}

/** The path of all experts of which one has a path; those that follow each other share it. */
const expertPaths = () => {
  let last = "experts."
  return (path: string): string => {
    const start = path.lastIndexOf("experts.") + "experts".length
    if (start !== last.length || !path.startsWith(last)) last = path.slice(0, start)
    return last
  }
}

type KindResult = Result.Result<ModuleKind, string>

/** Tensors that a kind was found for. */
interface KnownKind extends Pick<Found, "suffixes" | "tensors"> {
  readonly kind: KindResult
}

const isAlike = (a: Pick<Found, "suffixes" | "tensors">, b: Pick<Found, "suffixes" | "tensors">): boolean => {
  if (a.suffixes !== b.suffixes) return false
  for (let at = 0; at < a.tensors.length; at++) {
    const [one, other] = [a.tensors[at]!, b.tensors[at]!]
    if (one.dtype !== other.dtype || !equalShapes(one.shape, other.shape)) return false
  }
  return true
}

/** Kinds of modules, each found once: modules that have the same tensors are of one kind. */
const kindTable = (make: (spec: ModuleSpec, stored: ReadonlyArray<StoredTensor>) => KindResult) => {
  const kinds = new Map<ModuleSpec, Array<KnownKind>>()
  return (found: Found): KindResult => {
    const { spec } = found.named
    const known = kinds.get(spec) ?? []
    for (const one of known) if (isAlike(one, found)) return one.kind
    const { suffixes, tensors } = found
    const kind = make(
      spec,
      tensors.map(({ dtype, shape }, at) => ({ suffix: suffixes.all[at]!, dtype, shape }))
    )
    kinds.set(spec, known)
    known.push({ suffixes, tensors, kind })
    return kind
  }
}

/** Length of the hidden state, by the embedding rather than by the config. */
const hiddenOf = (found: Iterable<Found>, numbers: ModelNumbers): number | undefined => {
  for (const { named, tensors, suffixes } of found) {
    if (named.spec.structure !== "embedding" || named.spec.dims === undefined || named.layerAt !== undefined) continue
    const shape = tensors[suffixes.all.indexOf("weight")]?.shape
    if (shape?.length === 2 && named.spec.path !== "embed_tokens_per_layer") return shape[1]
  }
  return numbers.hidden
}

/** Whether the head is the embedding. */
const isTiedHead = ({ config, family: { isTied }, modelType }: DescribeInput): boolean => {
  const stated = config?.tie_word_embeddings ?? (config === undefined ? undefined : textOf(config).tie_word_embeddings)
  return typeof stated === "boolean"
    ? stated
    : config === undefined || isTied === true || isTied?.includes(modelType) === true
}

/** The head, where the model stores none of its own and it is the embedding. */
const aliasesOf = (isTied: boolean, family: Family, modules: ReadonlyArray<Module>): ModelStructure["aliases"] => {
  const isHead = ({ kind, layer }: Module): boolean => kind.spec.structure === "head" && layer === undefined
  const owner = modules.find(({ kind, layer }) => {
    const { structure, dims, path } = kind.spec
    return structure === "embedding" && dims !== undefined && layer === undefined && path !== "embed_tokens_per_layer"
  })
  const isEncoder = family.stacks[0]?.kind === "encoder"
  if (
    !isTied ||
    owner === undefined ||
    isEncoder ||
    // A classifier has no head beside its scores.
    modules.some(isHead)
  )
    return []
  const head = owner.path.startsWith("language_model.model.") ? "language_model.lm_head" : "lm_head"
  return owner.tensors.map(({ name }) => ({ name: `${head}${name.slice(owner.path.length)}`, of: name }))
}

/** Describes a model of a known family. What it does not understand is listed, not guessed. */
export const describeModel = (input: DescribeInput): ModelStructure => {
  const { tensors, config, family, modelType } = input
  const numbers = numbersOf(config, family.fields, family.defaults)
  const quantization = quantizationOf(config)
  const look = nameTable(family)
  const { stacks, note } = stackList()
  const found = new Map<string, Found>()
  const noSuffix: Suffixes = { all: [], next: new Map() }
  const unknown: Array<Unknown> = []
  const modules: Array<Module> = []
  for (const tensor of tensors) {
    const { pattern, numbers: own } = patternOf(tensor.name)
    const named = look(pattern)
    if (named === undefined) {
      unknown.push({ tensor: tensor.name, why: undefined })
      continue
    }
    if (named._tag === "Tower") {
      const layer = named.layerAt === undefined ? undefined : own[named.layerAt]
      const prefix = named.tower.prefixes.find((one) => tensor.name.includes(one))!
      modules.push(towerModule(tensor, note(named.tower.kind, prefix, layer), layer))
      continue
    }
    const layer = named.layerAt === undefined ? undefined : own[named.layerAt]
    const path = tensor.name.slice(0, tensor.name.length - named.tail)
    const known = found.get(path)
    if (known !== undefined) {
      known.suffixes = withSuffix(known.suffixes, named.suffix)
      known.tensors = [...known.tensors, tensor]
      continue
    }
    const spec = named.stack === undefined ? undefined : family.stacks[named.stack]!
    const isExtra = spec !== undefined && isExtraLayer(family, spec, layer, numbers.layers)
    found.set(path, {
      path,
      named,
      stack: spec === undefined ? undefined : note(isExtra ? "mtp" : spec.kind, named.prefix, layer),
      layer,
      expert: named.expertAt === undefined ? undefined : own[named.expertAt],
      suffixes: withSuffix(noSuffix, named.suffix),
      tensors: [tensor]
    })
  }
  const hidden = hiddenOf(found.values(), numbers)
  const isSwapped = swapsStacks(found.values(), hidden)
  const kindFor = kindTable((spec, stored) => {
    const dims = isSwapped && spec.dims !== undefined ? swapped(spec.dims) : spec.dims
    return kindOf(spec, dims, stored, quantization, numbers, hidden)
  })
  const expertsFor = expertPaths()
  for (const one of found.values()) {
    const { expert, layer, named, path, stack, tensors: own } = one
    const kind = kindFor(one)
    const expertsOf = expert === undefined ? undefined : expertsFor(path)
    const { spec, stage } = named
    if (Result.isFailure(kind)) {
      const site = { path, stage, expertsOf, stack, layer, expert, spec }
      for (const { name } of own) unknown.push({ tensor: name, why: kind.failure, site })
      continue
    }
    modules.push({ path, stage, expertsOf, stack, layer, expert, kind: kind.success, tensors: own })
  }
  const unlike = unlikeModules(modules)
  for (const [{ kind, tensors: own, ...site }, why] of unlike)
    for (const { name } of own) unknown.push({ tensor: name, why, site: { ...site, spec: kind.spec } })
  const alike = unlike.size === 0 ? modules : modules.filter((module) => !unlike.has(module))
  const isTied = isTiedHead(input)
  return {
    family,
    modelType,
    config: config === undefined ? undefined : textOf(config),
    quantization,
    numbers,
    stacks: stacks.map((stack): Stack => ({ ...stack, layers: [...stack.layers].sort((a, b) => a - b) })),
    modules: alike,
    unknown,
    isTied,
    aliases: aliasesOf(isTied, family, alike)
  }
}

const towerSpec: ModuleSpec = { path: "", as: "tensor", structure: "tower", dims: undefined }
const towerKinds = new Map<string, ModuleKind>()

const towerModule = (tensor: ModelTensor, stack: number, layer: number | undefined): Module => {
  const key = `${tensor.dtype} ${tensor.shape.length}`
  const known = towerKinds.get(key)
  const kind: ModuleKind = known ?? {
    spec: towerSpec,
    form: { name: tensor.dtype, shape: tensor.shape, parts: [{ kind: "weight", maps: tensor.shape.map(() => stays) }] },
    runs: [],
    expertDim: undefined
  }
  if (known === undefined) towerKinds.set(key, kind)
  return {
    path: tensor.name,
    kind,
    stack,
    layer,
    stage: "first",
    expert: undefined,
    expertsOf: undefined,
    tensors: [tensor]
  }
}
