// SPDX-License-Identifier: Apache-2.0
/** Sets of modules of a stack as numbers: which bits each module fills, and which bits a set has. */
import type { Family, ModuleSpec, StackSpec } from "../../structure/Family.ts"

/** What a module fills. */
export interface Place {
  readonly set: number
  readonly bits: number
  /** It is one of many with a number in its name. */
  readonly isListed: boolean
}

/** Sets of a stack, by number. */
export interface SetTable {
  readonly stack: StackSpec
  readonly sets: ReadonlyArray<string>
  readonly places: ReadonlyMap<ModuleSpec, Place>
  /** All bits of each set: of what a layer has once, and of what it has for every number. */
  readonly full: ReadonlyArray<number>
  readonly listed: ReadonlyArray<number>
  /** Modules by set and bit, in the family's order. */
  readonly fillers: ReadonlyArray<ReadonlyArray<ReadonlyArray<ModuleSpec>>>
  /** Sets of which a layer has one of each list. */
  readonly needs: ReadonlyArray<ReadonlyArray<number>>
}

const known = new WeakMap<StackSpec, Map<string, SetTable>>()

const tableOf = (stack: StackSpec, lacking: ReadonlyArray<string>): SetTable => {
  const sets: Array<string> = []
  const slots: Array<Array<string>> = []
  const fillers: Array<Array<Array<ModuleSpec>>> = []
  const places = new Map<ModuleSpec, Place>()
  const full: Array<number> = []
  const listed: Array<number> = []
  for (const spec of stack.modules) {
    if (spec.member === undefined || lacking.includes(spec.path)) continue
    const { set: name } = spec.member
    const at = sets.indexOf(name) < 0 ? sets.push(name) - 1 : sets.indexOf(name)
    slots[at] ??= []
    fillers[at] ??= []
    full[at] ??= 0
    listed[at] ??= 0
    let bits = 0
    for (const slot of spec.member.slots) {
      const own = slots[at]!
      const bit = own.indexOf(slot) < 0 ? own.push(slot) - 1 : own.indexOf(slot)
      bits |= 1 << bit
      fillers[at]![bit] ??= []
      fillers[at]![bit]!.push(spec)
    }
    const isListed = spec.path.includes("{}")
    places.set(spec, { set: at, bits, isListed })
    if (isListed) listed[at]! |= bits
    else full[at]! |= bits
  }
  const needs = (stack.needs ?? []).map((names) => names.map((name) => sets.indexOf(name)).filter((at) => at >= 0))
  return { stack, sets, places, full, listed, fillers, needs: needs.filter((own) => own.length > 0) }
}

/** The sets of a stack of a family for models of one type. */
export const setTable = ({ lacks }: Family, modelType: string, stack: StackSpec): SetTable => {
  const ofStack = known.get(stack) ?? new Map<string, SetTable>()
  known.set(stack, ofStack)
  const own = lacks?.[modelType] === undefined ? "" : modelType
  const found = ofStack.get(own) ?? tableOf(stack, lacks?.[own] ?? [])
  ofStack.set(own, found)
  return found
}
