// SPDX-License-Identifier: Apache-2.0
/**
 * A structure in figures: what is cut alike, on which grain, and by which degrees it can be cut. What `describe` prints and
 * what pages about families are made of.
 */
import type { ModelStructure, Module, ModuleKind } from "../describe/ModelStructure.ts"
import type { Axis } from "../structure/Roles.ts"
import type { CutChoice } from "./cuts.ts"
import { degreesOf, kindsOf, legalDegrees } from "./legalDegrees.ts"

/** Units along one axis of a structure. */
export interface AxisSummary {
  readonly axis: Axis
  /** Different counts where layers differ. */
  readonly counts: ReadonlyArray<number>
}

/** What is cut alike. */
export interface StructureSummary {
  /** The kind of its stack; undefined outside of stacks. */
  readonly stack: string | undefined
  readonly structure: string
  readonly modules: number
  readonly axes: ReadonlyArray<AxisSummary>
  /** Experts of a layer; different numbers where layers differ. */
  readonly experts: ReadonlyArray<number>
  /** Elements that no cut parts, by the forms of the weights. */
  readonly grain: number
  /** Legal degrees of tensor parallelism, of one expert where it is one; undefined where every rank holds it whole. */
  readonly degrees: ReadonlyArray<number> | undefined
}

/** A form, and how many modules have it in which structures. */
export interface FormSummary {
  readonly form: string
  readonly modules: number
  readonly structures: ReadonlyArray<string>
  /** What its tensors are for the weight. */
  readonly parts: ReadonlyArray<string>
}

/** All figures of a structure. */
export interface ModelSummary {
  readonly structures: ReadonlyArray<StructureSummary>
  readonly forms: ReadonlyArray<FormSummary>
  readonly degrees: {
    readonly tp: ReadonlyArray<number>
    /** Empty without experts. */
    readonly etp: ReadonlyArray<number>
    /** Most ranks that each hold an expert; 1 without experts. */
    readonly mostEp: number
    /** Most stages that each hold a layer. */
    readonly mostPp: number
  }
}

const gcd = (a: number, b: number): number => (b === 0 ? a : gcd(b, a % b))
const lcm = (a: number, b: number): number => (a / gcd(a, b)) * b

/** Elements of the cut dimension that belong together in some tensor. */
const grainOf = ({ form, runs }: ModuleKind): number => {
  const dim = runs.findIndex((own) => own.length > 0)
  if (dim < 0) return 1
  return form.parts
    .flatMap(({ maps }) => maps.filter((map) => map.dim === dim))
    .reduce((all, { per }) => lcm(all, per), 1)
}

const ascending = (numbers: Iterable<number>): ReadonlyArray<number> => [...new Set(numbers)].sort((a, b) => a - b)

const axesOf = (kinds: Iterable<ModuleKind>): ReadonlyArray<AxisSummary> => {
  const counts = new Map<Axis, Set<number>>()
  for (const { runs } of kinds) {
    for (const { axis, count } of runs.flat()) counts.set(axis, (counts.get(axis) ?? new Set()).add(count))
  }
  return [...counts].map(([axis, own]) => ({ axis, counts: ascending(own) }))
}

const expertCounts = (modules: ReadonlyArray<Module>): ReadonlyArray<number> => {
  const named = new Map<string, number>()
  const stacked: Array<number> = []
  for (const { expert, expertsOf, kind } of modules) {
    if (expert !== undefined) named.set(expertsOf!, Math.max(named.get(expertsOf!) ?? 0, expert + 1))
    else if (kind.expertDim !== undefined) stacked.push(kind.form.shape[kind.expertDim]!)
  }
  return ascending([...named.values(), ...stacked])
}

const grouped = <A>(items: Iterable<A>, keyOf: (item: A) => string): ReadonlyMap<string, ReadonlyArray<A>> => {
  const groups = new Map<string, Array<A>>()
  for (const item of items) {
    const key = keyOf(item)
    const own = groups.get(key)
    if (own === undefined) groups.set(key, [item])
    else own.push(item)
  }
  return groups
}

/** The figures of a structure. */
export const summaryOf = (structure: ModelStructure, choice: CutChoice = {}): ModelSummary => {
  const stackOf = ({ stack }: Module): string | undefined =>
    stack === undefined ? undefined : structure.stacks[stack]!.kind
  const groups = grouped(structure.modules, (module) => `${stackOf(module) ?? ""}/${module.kind.spec.structure}`)
  const structures = [...groups.values()].map((modules): StructureSummary => {
    const kinds = kindsOf(modules)
    const isCut = [...kinds.keys()].some(({ runs }) => runs.some((own) => own.length > 0))
    return {
      stack: stackOf(modules[0]!),
      structure: modules[0]!.kind.spec.structure,
      modules: modules.length,
      axes: axesOf(kinds.keys()),
      experts: expertCounts(modules),
      grain: [...kinds.keys()].map(grainOf).reduce(lcm, 1),
      degrees: isCut ? degreesOf(kinds.values(), choice) : undefined
    }
  })
  const forms = [...grouped(structure.modules, ({ kind }) => kind.form.name)].map(
    ([form, modules]): FormSummary => ({
      form,
      modules: modules.length,
      structures: [...new Set(modules.map(({ kind }) => kind.spec.structure))],
      parts: [...new Set([...kindsOf(modules).keys()].flatMap((kind) => kind.form.parts.map((part) => part.kind)))]
    })
  )
  const layers = structure.stacks.find(({ kind }) => kind === "language" || kind === "encoder")?.layers.length ?? 1
  return {
    structures,
    forms,
    degrees: {
      ...legalDegrees(structure, choice),
      mostEp: Math.max(1, ...structures.flatMap(({ experts }) => experts)),
      mostPp: Math.max(1, layers)
    }
  }
}
