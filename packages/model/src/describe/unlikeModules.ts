// SPDX-License-Identifier: Apache-2.0
/**
 * Modules of one structure that have different numbers of what they are cut along, as an MLP whose gate has 124 units and
 * whose down projection has 128: cut by themselves they would part units that belong together.
 */
import type { Axis } from "../structure/Roles.ts"
import type { Module, ModuleKind } from "./ModelStructure.ts"

/** Axes whose units are counted by shapes; those of heads are held against the config. */
const axes = new Set<Axis>(["width", "channels"])

/** Units along the axes of a kind; none where it is not cut by rows or columns. */
const countsOf = ({ form, runs }: ModuleKind): ReadonlyArray<readonly [axis: Axis, count: number]> =>
  form.uncut?.along === "any"
    ? []
    : runs.flat().flatMap(({ axis, count }) => (axes.has(axis) ? [[axis, count] as const] : []))

/** Structures of which kinds differ: most models have none, and their modules are not looked at. */
const suspects = (modules: ReadonlyArray<Module>): ReadonlySet<string> => {
  const known = new Set<ModuleKind>()
  const counts = new Map<string, number>()
  const found = new Set<string>()
  for (const { kind } of modules) {
    if (known.has(kind)) continue
    known.add(kind)
    for (const [axis, count] of countsOf(kind)) {
      const key = `${kind.spec.structure}/${axis}`
      if ((counts.get(key) ?? count) !== count) found.add(kind.spec.structure)
      counts.set(key, count)
    }
  }
  return found
}

/** Modules that differ from those before them in their layer, and how. */
export const unlikeModules = (modules: ReadonlyArray<Module>): ReadonlyMap<Module, string> => {
  const unlike = new Map<Module, string>()
  const structures = suspects(modules)
  if (structures.size === 0) return unlike
  const counts = new Map<string, { readonly count: number; readonly path: string }>()
  for (const module of modules) {
    const { expert, expertsOf, kind, layer, path, stack } = module
    if (!structures.has(kind.spec.structure)) continue
    const place = [stack, layer, expertsOf, expert, kind.spec.structure].join("/")
    for (const [axis, count] of countsOf(kind)) {
      const key = `${place}/${axis}`
      const first = counts.get(key)
      if (first === undefined) counts.set(key, { count, path })
      else if (first.count !== count && !unlike.has(module))
        unlike.set(module, `it has ${count} units of ${axis}, and ${first.path} has ${first.count}`)
    }
  }
  return unlike
}
