// SPDX-License-Identifier: Apache-2.0
/**
 * Forms of weights that a convention has no names for. Rules that join weights and leave scales behind, or join what is no
 * row of a weight, make files that look right.
 */
import type { ModelStructure, Module } from "../../describe/ModelStructure.ts"
import type { PartKind } from "../../forms/Form.ts"
import { kindsOf } from "../../placement/legalDegrees.ts"

/**
 * `none`: it has no quantized weights. `joined`: projections are joined by their rows, scales with them. `stacked`: only
 * experts are joined. Of experts, both have the blocks of FP8 that stand one by one in the checkpoint.
 */
export type QuantizedHolding = "none" | "joined" | "stacked"

const plainParts: ReadonlySet<PartKind> = new Set<PartKind>([
  ...(["weight", "bias", "state", "adapterA", "adapterB", "magnitude"] as const)
])
/** Parts whose rows are those of the weight. */
const rowParts: ReadonlySet<PartKind> = new Set<PartKind>([
  ...(["packed", "blockScale", "groupScale", "channelScale", "zeroPoint"] as const)
])

/** A tensor of a module that has no place beside joined weights. */
const looseTensor = ({ kind: { form }, tensors }: Module): string | undefined => {
  if (form.uncut?.along === "any") return tensors[0]!.name
  const at = form.parts.findIndex(({ kind, maps }, part) => {
    if (plainParts.has(kind)) return false
    // Parts of a joined weight have one number each, in the order of the parts.
    if (kind === "tensorScale" || kind === "globalScale") return tensors[part]!.shape.length !== 1
    return !rowParts.has(kind) || (maps[0]?.dim !== 0 && maps[0]?.dim !== undefined)
  })
  return at < 0 ? undefined : tensors[at]!.name
}

const isExpert = ({ expert, kind }: Module): boolean => expert !== undefined || kind.expertDim !== undefined

/** Blocks of FP8 with their scales, as experts that stand one by one have them. */
const isBlocks = ({ expert, kind: { form }, tensors }: Module): boolean =>
  expert !== undefined &&
  form.parts.every(
    ({ kind }, at) =>
      kind === "weight" ||
      ((kind === "blockScale" || kind === "groupScale") && /[.]weight_scale_inv$/.test(tensors[at]!.name))
  )

const unheldTensor = (module: Module, holding: QuantizedHolding): string | undefined => {
  const { kind, tensors } = module
  const { form, spec } = kind
  if (spec.structure === "cache") return holding === "stacked" ? undefined : tensors[0]!.name
  if (form.uncut === undefined && form.parts.every((part) => plainParts.has(part.kind))) return undefined
  if (holding === "none") return tensors[0]!.name
  if (isExpert(module)) {
    // Stacks keep their names where nothing else is joined.
    if (holding === "stacked" && module.expert === undefined && spec.as === "tensor") return undefined
    return isBlocks(module) ? undefined : tensors[0]!.name
  }
  return holding === "stacked" ? undefined : looseTensor(module)
}

/** The first tensor that a convention has no place for, and what it is of, in words; undefined where there is none. */
export const unheldForm = (
  { modules }: ModelStructure,
  holding: QuantizedHolding
): { readonly tensor: string; readonly what: string } | undefined => {
  for (const module of kindsOf(modules).values()) {
    const tensor = unheldTensor(module, holding)
    if (tensor === undefined) continue
    const { structure } = module.kind.spec
    const what = structure === "cache" ? "scales of a quantized cache" : `${module.kind.form.name} of ${structure}`
    return { tensor, what }
  }
  return undefined
}
