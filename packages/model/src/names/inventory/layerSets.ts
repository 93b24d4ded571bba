// SPDX-License-Identifier: Apache-2.0
/**
 * Which modules of which sets each layer has, and what is missing of them: a set is in a layer whole or not at all, and
 * certain sets are in every layer.
 */
import type { ModelStructure, ModuleSite, Stack } from "../../describe/ModelStructure.ts"
import type { ModuleSpec, StackSpec } from "../../structure/Family.ts"
import type { ModelNumbers } from "../../structure/ModelNumbers.ts"
import { promisedShape } from "../../structure/promisedShape.ts"
import { type SetTable, setTable } from "./setTable.ts"

/** A tensor that is missing or left over. */
export interface SetFault {
  readonly kind: "missing_source" | "unexpected_source" | "written_twice"
  readonly tensor: string
  readonly detail: string
}

export interface LayerSets {
  /** A module is there; its tensor stands for it. */
  readonly note: (site: ModuleSite, spec: ModuleSpec, tensor: string) => void
  /** A tensor of a module is not there. */
  readonly lack: (tensor: string) => void
  readonly fault: () => SetFault | undefined
}

/** What of its sets a layer has. */
interface Layer {
  readonly bits: Array<number>
  /** The first tensor of each set. */
  readonly first: Array<string | undefined>
  readonly listed: Map<number, number>
}

interface StackState {
  readonly stack: Stack
  readonly table: SetTable
  readonly layers: Map<number, Layer>
  readonly numbers: ModelNumbers
  /** Modules that the model has anywhere: others of their slot are named like them. */
  readonly used: Set<ModuleSpec>
}

const count = (bits: number): number => {
  let found = 0
  for (let rest = bits; rest !== 0; rest &= rest - 1) found++
  return found
}

const specOf = ({ family }: ModelStructure, { kind, prefix }: Stack): StackSpec | undefined =>
  family.hasExtraLayers === true && kind === "mtp"
    ? family.stacks[0]
    : family.stacks.find((one) => one.kind === kind && one.prefixes.includes(prefix))

/** The name of a tensor that a module would have. */
const nameOf = ({ stack, table }: StackState, spec: ModuleSpec, layer: number, expert: number | undefined): string =>
  `${stack.prefix}${table.stack.layers.replace("{}", String(layer))}${spec.path.replace("{}", String(expert ?? 0))}${spec.as === "tensor" ? "" : ".weight"}`

const commonLength = (a: string, b: string): number => {
  let at = 0
  while (at < a.length && a[at] === b[at]) at++
  return at
}

/**
 * The module that would fill the first of these bits: one that the model uses elsewhere, one that fills nothing a second
 * time and whose lengths are stated, one that is named like what is there.
 */
const fillerOf = (state: StackState, set: number, bits: number, isListed: boolean, present = 0): ModuleSpec => {
  const { fillers, places } = state.table
  const own = fillers[set]![31 - Math.clz32(bits & -bits)]!.filter((spec) => spec.path.includes("{}") === isListed)
  const isStated = (spec: ModuleSpec): boolean => promisedShape(spec, state.numbers)?.includes(undefined) !== true
  const single = own.filter((spec) => (places.get(spec)!.bits & present) === 0)
  const free = [...single.filter(isStated), ...single.filter((spec) => !isStated(spec))]
  const used = [...state.used].filter((spec) => places.get(spec)!.set === set)
  let best = free[0] ?? own[0]!
  let most = -1
  for (const spec of free.length === 0 ? own : free) {
    if (state.used.has(spec)) return spec
    const common = used.reduce((longest, other) => Math.max(longest, commonLength(spec.path, other.path)), 0)
    if (common > most) [best, most] = [spec, common]
  }
  return best
}

const detailOf = (layer: number, set: string): string => `Layer ${layer} has the others of its ${set}.`

/** Sets of a layer that are there in part, or twice. */
const partialFault = (state: StackState, number: number, layer: Layer, experts: number): SetFault | undefined => {
  const { table } = state
  for (const [set, name] of table.sets.entries()) {
    const bits = layer.bits[set]!
    const listed = table.listed[set]!
    const hasList = listed !== 0 && layer.listed.size > 0
    if (bits === 0 && !hasList) continue
    const routes = routerBits(table, set)
    const stack = table.full[set]! & ~routes
    // A stack of experts and the same one by one would fill the same elements.
    if (hasList && (bits & stack) !== 0)
      return {
        kind: "written_twice",
        tensor: nameOf(state, fillerOf(state, set, bits & stack, false), number, undefined),
        detail: `Layer ${number} has the same ${name} one by one.`
      }
    const isOneByOne = hasList || (listed !== 0 && bits === (bits & routes) && isListed(state, set))
    const full = isOneByOne ? routes : table.full[set]!
    const missing = full & ~bits
    const rival = isCovered(state, layer, set)
    if (rival && !hasList && count(bits) * 2 < count(full))
      return {
        kind: "unexpected_source",
        tensor: layer.first[set]!,
        detail: `Layer ${number} has nothing else of ${name}.`
      }
    if (missing !== 0)
      return {
        kind: "missing_source",
        tensor: nameOf(state, fillerOf(state, set, missing, false, bits), number, undefined),
        detail: detailOf(number, name)
      }
    if (!hasList && isOneByOne)
      return {
        kind: "missing_source",
        tensor: nameOf(state, fillerOf(state, set, listed, true), number, 0),
        detail: detailOf(number, name)
      }
    if (!hasList) continue
    for (let expert = 0; expert < experts; expert++) {
      const lacks = listed & ~(layer.listed.get(expert) ?? 0)
      if (lacks === 0) continue
      return {
        kind: "missing_source",
        tensor: nameOf(state, fillerOf(state, set, lacks, true), number, expert),
        detail: detailOf(number, name)
      }
    }
  }
  return undefined
}

const routerBits = ({ fillers }: SetTable, set: number): number =>
  fillers[set]!.reduce(
    (bits, own, bit) => (own.some(({ structure }) => structure === "router") ? bits | (1 << bit) : bits),
    0
  )

/** Whether a set is one by one in the model: where some layer has it so, or none has it in a stack. */
const isListed = ({ used, table }: StackState, set: number): boolean => {
  let isStacked = false
  for (const spec of used) {
    if (table.places.get(spec)?.set !== set || spec.structure === "router") continue
    if (spec.path.includes("{}")) return true
    isStacked = true
  }
  return !isStacked
}

const isWhole = (table: SetTable, layer: Layer, set: number): boolean => {
  const isOneByOne = table.listed[set] !== 0 && layer.listed.size > 0
  const wanted = isOneByOne ? routerBits(table, set) : table.full[set]!
  return (wanted !== 0 || isOneByOne) && (layer.bits[set]! & wanted) === wanted
}

/** Whether a layer has another set in place of this one, whole. */
const isCovered = ({ table }: StackState, layer: Layer, set: number): boolean =>
  table.needs.some((own) => own.includes(set) && own.some((other) => other !== set && isWhole(table, layer, other)))

const neededFault = (
  state: StackState,
  number: number,
  layer: Layer | undefined,
  needsShared: boolean
): SetFault | undefined => {
  const { table } = state
  const has = (set: number): boolean =>
    layer !== undefined && (layer.bits[set] !== 0 || (table.listed[set] !== 0 && layer.listed.size > 0))
  for (const own of table.needs) {
    if (own.some(has)) continue
    // Named as other layers have it, where there are any.
    const set = own.find((one) => [...state.used].some((spec) => table.places.get(spec)?.set === one)) ?? own[0]!
    const isOneByOne = table.listed[set] !== 0 && isListed(state, set)
    const bits = isOneByOne ? table.listed[set]! : table.full[set]!
    return {
      kind: "missing_source",
      tensor: nameOf(state, fillerOf(state, set, bits, isOneByOne), number, isOneByOne ? 0 : undefined),
      detail: `Layer ${number} has no ${own.map((one) => table.sets[one]).join(" or ")}.`
    }
  }
  const further = table.sets.indexOf("further")
  if (state.stack.kind === "mtp" && further >= 0 && !has(further))
    return {
      kind: "missing_source",
      tensor: nameOf(state, fillerOf(state, further, table.full[further]!, false), number, undefined),
      detail: `Layer ${number} is one that predicts further tokens.`
    }
  const [experts, shared] = [table.sets.indexOf("experts"), table.sets.indexOf("shared experts")]
  if (needsShared && experts >= 0 && shared >= 0 && has(experts) && !has(shared))
    return {
      kind: "missing_source",
      tensor: nameOf(state, fillerOf(state, shared, table.full[shared]!, false), number, undefined),
      detail: `Layer ${number} has experts, and the config has some that all tokens share.`
    }
  return undefined
}

/** Experts of a layer: as the config says, or as the highest number does. */
const expertCount = (stated: number | undefined, { listed }: Layer): number => {
  if (stated !== undefined) return stated
  let most = 0
  for (const number of listed.keys()) most = Math.max(most, number + 1)
  return most
}

/** Numbers from zero, one at a time. */
function* firstNumbers(count: number): Generator<number> {
  for (let number = 0; number < count; number++) yield number
}

/** Collects modules layer by layer. */
export const layerSets = (structure: ModelStructure): LayerSets => {
  const { stacks, family, modelType, numbers, isTied } = structure
  const states = stacks.map((stack): StackState | undefined => {
    const spec = specOf(structure, stack)
    return spec === undefined
      ? undefined
      : { stack, table: setTable(family, modelType, spec), numbers, layers: new Map(), used: new Set() }
  })
  const ends = new Map<string, ModuleSpec>()
  let lacking: string | undefined
  const layerFault = (): SetFault | undefined => {
    for (const state of states) {
      if (state === undefined) continue
      const { stack, layers } = state
      const isMain = stack.kind === "language" || stack.kind === "encoder"
      // The first that is missing ends it, whatever number a config states.
      const all = isMain && numbers.layers !== undefined ? firstNumbers(numbers.layers) : stack.layers
      for (const number of all) {
        const layer = layers.get(number)
        const partial =
          layer === undefined ? undefined : partialFault(state, number, layer, expertCount(numbers.experts, layer))
        const fault = partial ?? neededFault(state, number, layer, numbers.sharedWidth !== undefined)
        if (fault !== undefined) return fault
      }
    }
    return undefined
  }
  const endFault = (): SetFault | undefined => {
    const language = stacks.find(({ kind }) => kind === "language" || kind === "encoder")
    const spec = family.stacks[0]
    if (spec === undefined) return undefined
    // Without the owner's name it is a base model, which has no head.
    const prefix = language?.prefix ?? spec.prefixes[0]!
    const known = new Set<string>()
    for (const own of [...spec.ends, ...(family.ends ?? [])]) {
      const slot = own.member?.slots[0]
      if (slot === undefined || known.has(slot) || ends.has(slot)) continue
      known.add(slot)
      if (slot === "head" && (isTied || prefix === "")) continue
      if (slot === "embedding" && isTied && ends.get("head")?.dims !== undefined) continue
      const isInside = spec.ends.includes(own)
      const owner = isInside
        ? prefix
        : slot !== "head"
          ? ""
          : prefix.startsWith("language_model.")
            ? "language_model."
            : ""
      return {
        kind: "missing_source",
        tensor: `${owner}${own.path}.weight`,
        detail: slot === "head" ? "The config does not tie the head to the embedding." : "A model has one."
      }
    }
    return undefined
  }
  return {
    note: ({ stack, layer, expert }, spec, tensor) => {
      if (layer === undefined) {
        for (const slot of spec.member?.set === "ends" ? spec.member.slots : []) ends.set(slot, spec)
        return
      }
      const state = stack === undefined ? undefined : states[stack]
      if (state === undefined) return
      let own = state.layers.get(layer)
      if (own === undefined) {
        own = { bits: state.table.sets.map(() => 0), first: [], listed: new Map() }
        state.layers.set(layer, own)
      }
      const place = state.table.places.get(spec)
      if (place === undefined) return
      state.used.add(spec)
      if (place.isListed) own.listed.set(expert!, (own.listed.get(expert!) ?? 0) | place.bits)
      else {
        own.bits[place.set]! |= place.bits
        own.first[place.set] ??= tensor
      }
    },
    lack: (tensor) => {
      lacking ??= tensor
    },
    fault: () =>
      layerFault() ??
      endFault() ??
      (lacking === undefined
        ? undefined
        : { kind: "missing_source", tensor: lacking, detail: "Modules of the family have one." })
  }
}
