// SPDX-License-Identifier: Apache-2.0
/**
 * What a config and its family promise of a checkpoint, held against what is there: layers and experts by number, modules
 * that belong together, lengths, biases, and what stands around the layers. A number that nothing states is not checked.
 *
 * One pass over the modules; shapes are looked at once per kind of module.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { formatShape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { ModelStructure, Module, ModuleKind, ModuleSite, Unknown } from "../../describe/ModelStructure.ts"
import type { ModelTensor } from "../../layout/ModelLayout.ts"
import type { Companion, ModuleSpec } from "../../structure/Family.ts"
import { biasShape, fitsPromise, formatPromise, lengthOf, promisedShape } from "../../structure/promisedShape.ts"
import { type MappingError, type MappingFault, mappingError } from "../MappingError.ts"
import { biasTally, statedBias } from "./biases.ts"
import { type LayerSets, layerSets } from "./layerSets.ts"

type Checked = Result.Result<void, MappingError>

const remedies: { readonly [Kind in MappingFault]?: string } = {
  missing_source: "Complete the checkpoint, or correct its config.json.",
  unexpected_source: "Remove it from the checkpoint, or correct its config.json.",
  shape_mismatch: "Take the checkpoint and the config.json of one model.",
  written_twice: "Keep one of them.",
  unsupported: "Convert the checkpoint to a form that is known."
}

const refuse = (kind: MappingFault, subject: string, detail: string): Checked =>
  mappingError(kind, subject, undefined, detail, remedies[kind] ?? "")

const codes: ReadonlySet<DType> = new Set<DType>(["uint8", "int8", "int32", "uint32", "int16", "int64", "uint16"])

const suffixOf = (path: string, name: string): string => {
  const rest = name.slice(name.lastIndexOf(path) + path.length)
  return rest === "" ? "" : rest.slice(1)
}

/** A tensor that is not as long as is stated; undefined where all are. */
const shapeFault = (
  spec: ModuleSpec,
  path: string,
  tensors: ReadonlyArray<ModelTensor>,
  weight: ReadonlyArray<number> | undefined,
  { numbers }: ModelStructure
): Checked | undefined => {
  const wanted = promisedShape(spec, numbers)
  const isStack = spec.dims?.[0]?.is === "experts"
  for (const { name, shape, dtype } of tensors) {
    const suffix = suffixOf(path, name)
    const companion = spec.companions?.find((one) => one.suffix === suffix)
    const isMain = suffix === "weight" || suffix === ""
    const own = isMain ? (weight ?? (codes.has(dtype) ? undefined : shape)) : shape
    const promise =
      companion !== undefined
        ? companion.shape.map((length) => lengthOf(length, numbers))
        : wanted === undefined || wanted.length === 0
          ? undefined
          : isMain
            ? wanted
            : suffix === "bias"
              ? biasShape(spec, wanted)
              : undefined
    if (own === undefined || promise === undefined || fitsPromise(own, promise, isStack && isMain)) continue
    return refuse(
      "shape_mismatch",
      name,
      `Its shape is ${formatShape(own)}, ${formatPromise(promise)} follows from the config.`
    )
  }
  return undefined
}

const kindFault = (module: Module, structure: ModelStructure): Checked | undefined => {
  const { spec, form } = module.kind
  // What is packed says its weight's shape by its form.
  // Bytes without rows say nothing of the weight.
  if (form.uncut?.along === "any") return undefined
  const weight = spec.dims === undefined || form.name === "adapter" || form.name === "part" ? undefined : form.shape
  const packed = form.parts.findIndex(({ kind }) => kind === "packed")
  if (packed >= 0 && weight !== undefined) {
    const wanted = promisedShape(spec, structure.numbers)
    if (wanted !== undefined && !fitsPromise(weight, wanted, spec.dims?.[0]?.is === "experts"))
      return refuse(
        "shape_mismatch",
        module.tensors[packed]!.name,
        `It stands for ${formatShape(weight)}, ${formatPromise(wanted)} follows from the config.`
      )
  }
  return shapeFault(spec, module.path, module.tensors, weight, structure)
}

/** Whether a module is more than its bias and its companions. */
const hasWeight = (spec: ModuleSpec, path: string, names: ReadonlyArray<string>): boolean =>
  names.some((name) => {
    const suffix = suffixOf(path, name)
    return (
      suffix !== "bias" && (spec.companions?.some((one) => one.suffix === suffix) !== true || spec.member === undefined)
    )
  })

/** What all modules of a kind have: their tensors are called alike. */
interface KindFacts {
  readonly separator: string
  readonly hasWeight: boolean
  readonly hasBias: boolean
  /** A companion that is missing. */
  readonly lacks: string | undefined
}

const factsOf = (
  { kind: { spec }, path, tensors }: Module,
  { family: { lacks }, modelType }: ModelStructure
): KindFacts => {
  const names = tensors.map(({ name }) => name)
  const suffixes = new Set(names.map((name) => suffixOf(path, name)))
  const isWanted = ({ suffix, isOptional }: Companion): boolean =>
    isOptional !== true && lacks?.[modelType]?.includes(`${spec.path}.${suffix}`) !== true
  return {
    separator: spec.as === "tensor" ? "_" : ".",
    hasWeight: hasWeight(spec, path, names),
    hasBias: suffixes.has("bias"),
    lacks: spec.companions?.find((one) => isWanted(one) && !suffixes.has(one.suffix))?.suffix
  }
}

/** What tensors of modules are called, whatever their form. */
const usualSuffix =
  /^(weight|bias|qweight|qzeros|(weight_)?g_idx|blocks|SCB|weight_(packed|shape|format)|base_layer\..*|lora_.*|.*(scale|zero_point|absmax|quant_|bitsandbytes).*)?$/

/** A tensor of a module that no module has. */
const strayOf = (
  spec: ModuleSpec,
  path: string,
  tensors: ReadonlyArray<ModelTensor>,
  { config, quantization }: ModelStructure
): string | undefined =>
  spec.structure === "tower"
    ? undefined
    : tensors.find(({ name }) => {
        const suffix = suffixOf(path, name)
        if (suffix === "bias") return quantization === undefined && statedBias(spec.bias, config) === false
        return !usualSuffix.test(suffix) && spec.companions?.some((one) => one.suffix === suffix) !== true
      })?.name

const strayFault = (tensor: string, { family }: ModelStructure): Checked =>
  refuse("unexpected_source", tensor, `Models of ${family.name} with this config have none.`)

interface NotUnderstood {
  readonly site: NonNullable<Unknown["site"]>
  readonly why: string
  readonly tensors: ReadonlyArray<ModelTensor>
}

/** Modules of the family that have no form. */
const notUnderstood = (
  { unknown }: ModelStructure,
  tensors: ReadonlyArray<ModelTensor>
): ReadonlyArray<NotUnderstood> => {
  const known = unknown.filter(({ site }) => site !== undefined)
  if (known.length === 0) return []
  const byPath = new Map<string, NotUnderstood & { readonly tensors: Array<ModelTensor> }>()
  const pathOf = new Map(known.map(({ tensor, site }) => [tensor, site!.path]))
  for (const { site, why } of known) byPath.set(site!.path, { site: site!, why: why!, tensors: [] })
  for (const tensor of tensors) byPath.get(pathOf.get(tensor.name) ?? "")?.tensors.push(tensor)
  return [...byPath.values()]
}

const formFault = ({ tensors, why }: NotUnderstood): Checked => {
  const isPlain = tensors.every(({ dtype }) => !codes.has(dtype))
  return refuse(isPlain ? "shape_mismatch" : "unsupported", tensors[0]!.name, `${why}.`)
}

/** Numbers of layers and experts that a config does not have. */
const numberFault = (module: ModuleSite, name: string, structure: ModelStructure): Checked | undefined => {
  const { numbers, stacks, config } = structure
  const { layer, stack, expert } = module
  const kind = stack === undefined ? undefined : stacks[stack]!.kind
  if (layer !== undefined && numbers.layers !== undefined && (kind === "language" || kind === "encoder")) {
    if (layer >= numbers.layers)
      return refuse("unexpected_source", name, `The model has ${numbers.layers} layers, numbered from 0.`)
  }
  const further = config?.num_nextn_predict_layers
  if (kind === "mtp" && structure.family.hasExtraLayers === true && typeof further === "number") {
    if (layer !== undefined && layer >= (numbers.layers ?? 0) + further)
      return refuse("unexpected_source", name, `The model has ${numbers.layers} layers and ${further} behind them.`)
  }
  if (expert !== undefined && numbers.experts !== undefined && expert >= numbers.experts)
    return refuse("unexpected_source", name, `The model has ${numbers.experts} experts, numbered from 0.`)
  return undefined
}

const setFault = (sets: LayerSets): Checked | undefined => {
  const fault = sets.fault()
  return fault === undefined ? undefined : refuse(fault.kind, fault.tensor, fault.detail)
}

/** Names of an adapter's file say nothing of a whole model. */
const adapterPrefix = "base_model.model."

/** Holds a checkpoint against its config. Fails with the first tensor that is missing, left over or of another shape. */
export const checkInventory = (
  structure: ModelStructure,
  tensors: ReadonlyArray<ModelTensor>,
  /** Tensors that rules name, though the family does not have them. */
  isNamed: (name: string) => boolean = () => false
): Checked => {
  const { modules, unknown, config, quantization } = structure
  if (tensors[0]?.name.startsWith(adapterPrefix) === true) return Result.succeed(undefined)
  const names = new Set<string>()
  for (const { name } of tensors) {
    if (names.has(name)) return refuse("written_twice", name, "The checkpoint has two tensors of that name.")
    names.add(name)
  }
  const stray = unknown.find(({ site, tensor }) => site === undefined && !isNamed(tensor))
  if (stray !== undefined) return strayFault(stray.tensor, structure)
  const sets = layerSets(structure)
  const biases = biasTally()
  const known = new Map<ModuleKind, KindFacts>()
  let shape: Checked | undefined
  const strange = notUnderstood(structure, tensors)
  for (const { site, tensors: own } of strange) {
    const fault = numberFault(site, own[0]!.name, structure)
    if (fault !== undefined) return fault
    const strayed = strayOf(site.spec, site.path, own, structure)
    if (strayed !== undefined && !isNamed(strayed)) return strayFault(strayed, structure)
    const isPlain = own.every(({ dtype }) => !codes.has(dtype))
    if (isPlain) shape ??= shapeFault(site.spec, site.path, own, undefined, structure)
    const names = own.map(({ name }) => name)
    if (hasWeight(site.spec, site.path, names)) sets.note(site, site.spec, names[0]!)
  }
  for (const module of modules) {
    const { kind, tensors: own, stack, path } = module
    const name = own[0]!.name
    const fault = numberFault(module, name, structure)
    if (fault !== undefined) return fault
    let facts = known.get(kind)
    if (facts === undefined) {
      facts = factsOf(module, structure)
      known.set(kind, facts)
      const strayed = strayOf(kind.spec, path, own, structure)
      if (strayed !== undefined && !isNamed(strayed)) return strayFault(strayed, structure)
      shape ??= kindFault(module, structure)
    }
    if (kind.spec.structure === "tower") continue
    if (facts.hasWeight) sets.note(module, kind.spec, name)
    const { separator } = facts
    biases.note(stack ?? structure.stacks.length, kind.spec, facts.hasBias, () => `${path}${separator}bias`)
    if (facts.lacks !== undefined) sets.lack(`${path}${separator}${facts.lacks}`)
  }
  if (shape !== undefined) return shape
  const formless = strange.find(({ site, tensors: own }) =>
    hasWeight(
      site.spec,
      site.path,
      own.map(({ name }) => name)
    )
  )
  if (formless !== undefined) return formFault(formless)
  const incomplete = setFault(sets)
  if (incomplete !== undefined) return incomplete
  if (strange[0] !== undefined) return formFault(strange[0])
  const bias = biases.faultOf(config, quantization !== undefined)
  return bias === undefined ? Result.succeed(undefined) : refuse(bias.kind, bias.tensor, bias.detail)
}
