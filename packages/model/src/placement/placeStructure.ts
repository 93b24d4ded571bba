// SPDX-License-Identifier: Apache-2.0
/**
 * From the structure of a model, degrees of parallelism and a placement to where each tensor lies: its stage, its cut and its
 * ranks of experts. This is what core lays out and plans; beyond it nobody knows what a tensor means.
 */
import type { Interval } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { ModelStructure, Module, ModuleKind } from "../describe/ModelStructure.ts"
import { LayoutError, type ParallelConfig } from "../layout/ModelLayout.ts"
import { expertDegrees } from "../layout/ParallelConfig.ts"
import type { StatedCut } from "../layout/TensorCut.ts"
import type { Experts, PlacedTensor } from "../layout/TensorPlacement.ts"
import { type ModuleCuts, moduleCuts } from "./cuts.ts"
import { expertRuns } from "./experts.ts"
import { formatDegrees, legalDegrees } from "./legalDegrees.ts"
import type { Placement } from "./Placement.ts"
import { stagesOf } from "./stages.ts"

const uncut: StatedCut = { cuts: [], sizes: undefined }

const refuse = (paramNames: ReadonlyArray<string>, detail: string, remedy: string): Result.Result<never, LayoutError> =>
  Result.fail(new LayoutError({ kind: "InvalidConfig", paramNames: [...paramNames], detail, remedy }))

/** Whether a module is cut over the ranks of experts. */
const isExpert = ({ kind, expert }: Module): boolean => expert !== undefined || kind.expertDim !== undefined

/** Stages by stack, then by layer. */
const stageTable = (
  { stacks }: ModelStructure,
  placement: Placement,
  stages: number
): Result.Result<ReadonlyArray<ReadonlyMap<number, number> | number>, LayoutError> => {
  const table: Array<ReadonlyMap<number, number> | number> = []
  for (const { kind, layers } of stacks) {
    if (kind !== "language" && kind !== "encoder") {
      table.push(kind === "mtp" ? stages - 1 : 0)
      continue
    }
    const found = stagesOf(layers, stages, placement.stages, placement.virtual)
    if (Result.isFailure(found))
      return refuse([], `Layers cannot be placed: ${found.failure}.`, "State stages that hold every layer once.")
    table.push(found.success)
  }
  return Result.succeed(table)
}

const stageOf = (
  module: Module,
  table: ReadonlyArray<ReadonlyMap<number, number> | number>,
  stages: number
): number => {
  if (module.stack === undefined || module.layer === undefined) return module.stage === "last" ? stages - 1 : 0
  const own = table[module.stack]!
  return typeof own === "number" ? own : own.get(module.layer)!
}

/** The stage of each tensor, whatever its cut. */
export const stagesByName = (
  structure: ModelStructure,
  stages: number,
  placement: Placement
): Result.Result<ReadonlyMap<string, number>, LayoutError> =>
  Result.map(
    stageTable(structure, placement, stages),
    (table) =>
      new Map(
        structure.modules.flatMap((module) =>
          module.tensors.map(({ name }) => [name, stageOf(module, table, stages)] as const)
        )
      )
  )

/** Experts by the path of all of them: as many as the highest number says. */
const namedCounts = (modules: ReadonlyArray<Module>): ReadonlyMap<string, number> => {
  const counts = new Map<string, number>()
  for (const { expert, expertsOf } of modules) {
    if (expert === undefined || expertsOf === undefined) continue
    counts.set(expertsOf, Math.max(counts.get(expertsOf) ?? 0, expert + 1))
  }
  return counts
}

/** A layer that a map of experts is stated for and that no model of this config has. */
const strangeLayer = ({ stacks, numbers }: ModelStructure, { experts }: Placement): string | undefined => {
  if (typeof experts !== "object" || Array.isArray(experts)) return undefined
  const known = new Set(stacks.flatMap(({ layers }) => layers.map(String)))
  // Files may hold some of the layers.
  const isLayer = (name: string): boolean =>
    known.has(name) || (/^(0|[1-9]\d*)$/.test(name) && Number(name) < (numbers.layers ?? 0))
  return Object.keys(experts).find((name) => !isLayer(name))
}

/** Runs of experts by rank, found once per count and, where a map states them, per layer. */
const expertTable = (placement: Placement, ranks: number) => {
  const known = new Map<string, Result.Result<ReadonlyArray<ReadonlyArray<Interval>>, string>>()
  const { experts: choice = "linear" } = placement
  const isByLayer = typeof choice !== "string" && !Array.isArray(choice)
  const byCount = new Map<number, Result.Result<ReadonlyArray<ReadonlyArray<Interval>>, string>>()
  return (count: number, layer: number | undefined) => {
    const last = isByLayer ? undefined : byCount.get(count)
    if (last !== undefined) return last
    const key = isByLayer ? `${count}/${layer}` : String(count)
    const found = known.get(key) ?? expertRuns(choice, count, ranks, layer)
    known.set(key, found)
    byCount.set(count, found)
    return found
  }
}

/** Cuts of each kind of module, found once per degree. */
const cutTable = (structure: ModelStructure, placement: Placement) => {
  const known = new Map<ModuleKind, Map<number, Result.Result<ModuleCuts, LayoutError>>>()
  const make = (module: Module, degree: number, name: string): Result.Result<ModuleCuts, LayoutError> => {
    const shapes = module.tensors.map(({ shape }) => shape)
    return Result.mapError(moduleCuts(module.kind, shapes, degree, placement), (detail) => {
      const { tp, etp } = legalDegrees(structure, placement)
      // Experts without a degree of their own are cut by tp, like everything else.
      const legal = name === "etp" ? etp : isExpert(module) ? tp.filter((one) => etp.includes(one)) : tp
      return new LayoutError({
        kind: "InvalidConfig",
        paramNames: module.tensors.slice(0, 1).map((tensor) => tensor.name),
        detail: `${name}=${degree} does not fit ${module.kind.spec.structure}: ${detail}.`,
        remedy: `Choose ${name} of ${formatDegrees(legal)}.`
      })
    })
  }
  return (module: Module, degree: number, name: string): Result.Result<ModuleCuts, LayoutError> => {
    let ofKind = known.get(module.kind)
    if (ofKind === undefined) {
      ofKind = new Map()
      known.set(module.kind, ofKind)
    }
    const found = ofKind.get(degree) ?? make(module, degree, name)
    if (!ofKind.has(degree)) ofKind.set(degree, found)
    return found
  }
}

/** Tensors of a structure where they lie: in the order of the model, then those that it shares under other names. */
export const placeStructure = (
  structure: ModelStructure,
  config: ParallelConfig,
  placement: Placement
): Result.Result<Map<string, PlacedTensor>, LayoutError> => {
  const { ep, etp } = expertDegrees(config)
  const stages = stageTable(structure, placement, config.pp)
  if (Result.isFailure(stages)) return Result.fail(stages.failure)
  const strange = strangeLayer(structure, placement)
  if (strange !== undefined)
    return refuse(
      [],
      `Experts cannot be placed: the map of experts is for layer ${strange}, which the model does not have.`,
      "State maps by numbers of layers."
    )
  const counts = namedCounts(structure.modules)
  const runs = expertTable(placement, ep)
  const cuts = cutTable(structure, placement)
  const placed = new Map<string, PlacedTensor>()
  const named: NamedExperts = new Map()
  /** Modules of one kind share the lists of their shapes, by which core knows them again. */
  const shapes = new Map<ModuleKind, Module["tensors"]>()
  for (const module of structure.modules) {
    const { kind, tensors, layer, expert } = module
    const known = shapes.get(kind)
    if (known === undefined) shapes.set(kind, tensors)
    const alike = kind.spec.dims === undefined ? tensors : (known ?? tensors)
    const ofExpert = isExpert(module)
    // Without expert parallelism experts are cut like everything else.
    const name = ofExpert && (ep > 1 || config.etp !== undefined) ? "etp" : "tp"
    const cut = cuts(module, ofExpert ? etp : config.tp, name)
    if (Result.isFailure(cut)) return Result.fail(cut.failure)
    const count =
      expert === undefined
        ? kind.expertDim === undefined
          ? undefined
          : kind.form.shape[kind.expertDim]!
        : counts.get(module.expertsOf!)!
    const held = count === undefined ? undefined : runs(count, layer)
    if (held !== undefined && Result.isFailure(held))
      return refuse([tensors[0]!.name], `Experts cannot be placed: ${held.failure}.`, "State a map that fits.")
    const stage = stageOf(module, stages.success, config.pp)
    for (let at = 0; at < tensors.length; at++) {
      const tensor = tensors[at]!
      const part = cut.success[at]
      placed.set(tensor.name, {
        name: tensor.name,
        dtype: tensor.dtype,
        shape: alike[at]!.shape,
        rule: part?.cut ?? uncut,
        dim: part?.dim,
        stage,
        experts: expertsOf(module, at, count, held?.success, named),
        aliasOf: undefined
      })
    }
  }
  for (const { name, of } of structure.aliases) {
    const owner = placed.get(of)
    if (owner !== undefined && !placed.has(name))
      placed.set(name, { ...owner, name, stage: config.pp - 1, aliasOf: of })
  }
  return Result.succeed(placed)
}

/** What is said of experts by their runs and numbers: of one number and count, the same for all layers. */
type NamedExperts = Map<ReadonlyArray<ReadonlyArray<Interval>>, Array<Experts>>

const namedExpert = (
  known: NamedExperts,
  count: number,
  number: number,
  held: ReadonlyArray<ReadonlyArray<Interval>>
): Experts => {
  let own = known.get(held)
  if (own === undefined) {
    own = []
    known.set(held, own)
  }
  own[number] ??= { _tag: "Named", count, number, held }
  return own[number]
}

const expertsOf = (
  { kind, expert, tensors }: Module,
  at: number,
  count: number | undefined,
  held: ReadonlyArray<ReadonlyArray<Interval>> | undefined,
  named: NamedExperts
): Experts | undefined => {
  if (count === undefined || held === undefined || tensors[at]!.shape.includes(0)) return undefined
  if (expert !== undefined) return namedExpert(named, count, expert, held)
  // A companion that all experts share is whole on every rank.
  const dim = kind.form.parts[at]!.maps.findIndex((map) => map.dim === kind.expertDim)
  return dim < 0 ? undefined : { _tag: "Fused", count, dim, held }
}
