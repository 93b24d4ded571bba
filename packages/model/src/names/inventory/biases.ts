// SPDX-License-Identifier: Apache-2.0
/** Biases: modules that belong together have all of them, or none. */
import type { BiasRule, ModuleSpec } from "../../structure/Family.ts"
import type { ConfigObject } from "../../structure/ModelConfig.ts"

/** Modules that have a bias or have none together. */
interface Tally {
  readonly rule: BiasRule | undefined
  withBias: number
  without: number
  /** The first bias that is there, and the first that is not. */
  present: string | undefined
  absent: string | undefined
}

/** What is wrong with biases. */
export interface BiasFault {
  readonly kind: "missing_source" | "unexpected_source"
  readonly tensor: string
  readonly detail: string
}

/** Query, key and value go together, and so do gate and up; others by themselves. */
const groupOf = ({ dims, path, structure }: ModuleSpec): string => {
  const roles = dims?.flatMap((dim) => (dim.is === "out" ? dim.roles : [])) ?? []
  if (roles.some((role) => role === "q" || role === "k" || role === "v")) return "queries, keys and values"
  if (roles.some((role) => role === "gate" || role === "up")) return `gates and ups of ${structure}`
  return path
}

/** Whether modules have a bias; undefined where neither the family nor the config says it. */
export const statedBias = (rule: BiasRule | undefined, config: ConfigObject | undefined): boolean | undefined => {
  if (rule === undefined || typeof rule === "string") return rule === undefined ? undefined : rule === "always"
  for (const field of rule) if (typeof config?.[field] === "boolean") return config[field] as boolean
  return undefined
}

/** Counts biases of modules. */
export const biasTally = () => {
  const tallies = new Map<string, Tally>()
  const bySpec: Array<Map<ModuleSpec, Tally>> = []
  const tallyOf = (stack: number, spec: ModuleSpec): Tally => {
    bySpec[stack] ??= new Map()
    const known = bySpec[stack].get(spec)
    if (known !== undefined) return known
    const key = `${stack} ${groupOf(spec)}`
    const tally = tallies.get(key) ?? {
      rule: spec.bias,
      withBias: 0,
      without: 0,
      present: undefined,
      absent: undefined
    }
    tallies.set(key, tally)
    bySpec[stack].set(spec, tally)
    return tally
  }
  return {
    note: (stack: number, spec: ModuleSpec, hasBias: boolean, name: () => string): void => {
      const tally = tallyOf(stack, spec)
      if (hasBias) {
        tally.withBias++
        tally.present ??= name()
      } else {
        tally.without++
        tally.absent ??= name()
      }
    },
    /** Writers of quantized weights leave biases of zeros: then only what is alike counts. */
    faultOf: (config: ConfigObject | undefined, isQuantized: boolean): BiasFault | undefined => {
      for (const { rule, withBias, without, present, absent } of tallies.values()) {
        const stated = isQuantized ? undefined : statedBias(rule, config)
        const isWanted = stated ?? withBias > without
        const why =
          stated === undefined
            ? `${isWanted ? without : withBias} of ${withBias + without} differ`
            : "as the family or the config says"
        if (isWanted && absent !== undefined)
          return { kind: "missing_source", tensor: absent, detail: `Modules like it have a bias (${why}).` }
        if (!isWanted && present !== undefined)
          return { kind: "unexpected_source", tensor: present, detail: `Modules like it have no bias (${why}).` }
      }
      return undefined
    }
  }
}
