// SPDX-License-Identifier: Apache-2.0
/**
 * Names of tensors as a family writes them: numbers are taken out of a name once, and what is left is looked up. A model of
 * a hundred thousand tensors has a hundred such patterns.
 */
import { adapterPrefix } from "../forms/adapters.ts"
import type { Family, ModuleSpec, StackSpec, TowerSpec } from "../structure/Family.ts"

/** A name without its numbers, `{}` in their place. */
export interface NamePattern {
  readonly pattern: string
  readonly numbers: ReadonlyArray<number>
}

const isDigit = (code: number): boolean => code >= 48 && code <= 57

/** Numbers are whole components of a name. Longer ones than nine digits count nothing and stay. */
export const patternOf = (name: string): NamePattern => {
  let pattern = ""
  let copied = 0
  const numbers: Array<number> = []
  for (let at = 0; at < name.length; at++) {
    if (!isDigit(name.charCodeAt(at)) || (at > 0 && name[at - 1] !== ".")) continue
    let end = at + 1
    while (end < name.length && isDigit(name.charCodeAt(end))) end++
    if (end - at <= 9 && (end === name.length || name[end] === ".")) {
      pattern += `${name.slice(copied, at)}{}`
      numbers.push(Number(name.slice(at, end)))
      copied = end
    }
    at = end
  }
  return { pattern: pattern + name.slice(copied), numbers }
}

/** What a pattern names. */
export type NamedThing =
  | {
      readonly _tag: "Module"
      readonly spec: ModuleSpec
      /** Position among the family's stacks; undefined for what stands outside of them. */
      readonly stack: number | undefined
      readonly stage: "first" | "last" | undefined
      /** Which of the name's numbers is the layer's and which the expert's. */
      readonly layerAt: number | undefined
      readonly expertAt: number | undefined
      /** Behind the module's name, as "weight". */
      readonly suffix: string
      /** Characters of the name behind the module's: the suffix and what parts it. */
      readonly tail: number
      /** What stands before the stack's own names. */
      readonly prefix: string
    }
  | {
      readonly _tag: "Tower"
      readonly tower: TowerSpec
      readonly position: number
      readonly layerAt: number | undefined
    }

type Module = Extract<NamedThing, { readonly _tag: "Module" }>

const countNumbers = (text: string): number => text.split("{}").length - 1

const modulesOf = (family: Family): ReadonlyMap<string, Module> => {
  const table = new Map<string, Module>()
  const add = (key: string, spec: ModuleSpec, more: Pick<Module, "stack" | "stage" | "layerAt" | "prefix">): void => {
    if (table.has(key)) return
    const before = countNumbers(key) - countNumbers(spec.path)
    const expertAt = spec.path.includes("experts.{}") ? before : undefined
    table.set(key, { _tag: "Module", spec, expertAt, suffix: "", tail: 0, ...more })
  }
  for (const [stack, { prefixes, layers, modules, ends }] of family.stacks.entries()) {
    for (const prefix of prefixes) {
      const layerAt = countNumbers(prefix) + countNumbers(layers) - 1
      for (const spec of modules)
        add(`${prefix}${layers}${spec.path}`, spec, { stack, stage: undefined, layerAt, prefix })
      for (const spec of ends)
        add(`${prefix}${spec.path}`, spec, { stack, stage: spec.stage, layerAt: undefined, prefix })
    }
  }
  for (const spec of family.ends ?? []) {
    add(spec.path, spec, { stack: undefined, stage: spec.stage, layerAt: undefined, prefix: "" })
  }
  return table
}

/** Places in a name where a module's own part may end, the last first. */
const endsOf = (pattern: string): ReadonlyArray<number> => {
  const found = [pattern.length]
  for (let at = pattern.length - 1; at > 0; at--) if (pattern[at] === "." || pattern[at] === "_") found.push(at)
  return found
}

/** What an adapter or another wrapper puts between a module's name and its tensor's. */
const plainSuffix = (suffix: string): string =>
  suffix.replace(/^base_layer\./, "").replace(/^(lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector)\.default/, "$1")

const lookUp = (table: ReadonlyMap<string, Module>, pattern: string): Module | undefined => {
  for (const end of endsOf(pattern)) {
    const found = table.get(pattern.slice(0, end))
    if (found === undefined) continue
    const isWhole = end === pattern.length
    // A tensor's companions follow it behind "_", a module's tensors behind ".".
    if (isWhole ? found.spec.as !== "tensor" : (pattern[end] === "_") !== (found.spec.as === "tensor")) continue
    return { ...found, suffix: plainSuffix(pattern.slice(end + 1)), tail: pattern.length - end }
  }
  return undefined
}

const towerOf = (family: Family, pattern: string): NamedThing | undefined => {
  for (const [position, tower] of (family.towers ?? []).entries()) {
    const prefix = tower.prefixes.find((one) => pattern.startsWith(one))
    if (prefix === undefined) continue
    return { _tag: "Tower", tower, position, layerAt: /(^|\.)(layers?|blocks)\.\{\}\./.test(pattern) ? 0 : undefined }
  }
  return undefined
}

/** What patterns of names are in a family; undefined for those that it does not know. Each is looked up once. */
export const nameTable = (family: Family): ((pattern: string) => NamedThing | undefined) => {
  const table = modulesOf(family)
  const known = new Map<string, NamedThing | undefined>()
  return (pattern) => {
    if (known.has(pattern)) return known.get(pattern)
    const base = pattern.startsWith(adapterPrefix) ? pattern.slice(adapterPrefix.length) : pattern
    const found = towerOf(family, base) ?? lookUp(table, base)
    known.set(pattern, found)
    return found
  }
}

/** Whether a stack's layers from the config's count on predict further tokens. */
export const isExtraLayer = (
  family: Family,
  stack: StackSpec,
  layer: number | undefined,
  layers: number | undefined
): boolean =>
  family.hasExtraLayers === true &&
  stack === family.stacks[0] &&
  layer !== undefined &&
  layers !== undefined &&
  layer >= layers
