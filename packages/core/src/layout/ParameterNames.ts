// SPDX-License-Identifier: Apache-2.0
/**
 * Global names of parameters: pipeline stages count their layers from 0 and expert-parallel ranks their experts, so local
 * names mean different tensors on different ranks. Everything that matches tensors across ranks uses the names made here.
 */

/** The last number of `weight3`/`bias3` (grouped experts) or of a list element (`local_experts.3.`); longer ones count nothing. */
const groupedExpert = /^(weight|bias)(\d{1,9})$/
const expertList = /^(local_experts|experts)$/

/** Local prefix of a module to its global prefix, e.g. `decoder.layers.0` to `decoder.layers.16`. */
export type LayerPrefixMap = ReadonlyMap<string, string>

/** Replaces the longest prefix of whole path components that the map knows. */
export const globalLayerName = (name: string, prefixes: LayerPrefixMap): string => {
  const parts = name.split(".")
  for (let length = parts.length; length > 0; length--) {
    const mapped = prefixes.get(parts.slice(0, length).join("."))
    if (mapped !== undefined) return [mapped, ...parts.slice(length)].join(".")
  }
  return name
}

/** Where a rank stands among the experts of a model. */
export interface ExpertPosition {
  /** Experts of the whole model. */
  readonly numExperts: number
  /** This rank's place in its expert-parallel group. */
  readonly expertParallelRank: number
  readonly expertParallelSize: number
}

/** Where in the path the local expert number stands, if the name holds one. */
const findExpert = (parts: ReadonlyArray<string>): { readonly at: number; readonly local: number } | undefined => {
  for (let at = 0; at < parts.length; at++) {
    const grouped = groupedExpert.exec(parts[at]!)
    if (grouped !== null) return { at, local: Number(grouped[2]) }
    if (expertList.test(parts[at]!) && /^\d{1,9}$/.test(parts[at + 1] ?? ""))
      return { at: at + 1, local: Number(parts[at + 1]) }
  }
  return undefined
}

/**
 * The name with its local expert number replaced by the global one, for both ways of keeping experts: `weight3` in a
 * grouped module and `local_experts.3.weight` in a list. A fused tensor of all experts has no number and keeps its name;
 * so does an expert that this rank cannot hold, which planners refuse.
 */
export const globalExpertName = (
  name: string,
  position: ExpertPosition
): { readonly name: string; readonly expert: number | null } => {
  const parts = name.split(".")
  const found = findExpert(parts)
  const perRank = position.numExperts / position.expertParallelSize
  if (found === undefined || !Number.isInteger(perRank) || found.local >= perRank) return { name, expert: null }
  const expert = position.expertParallelRank * perRank + found.local
  parts[found.at] = parts[found.at]!.replace(/\d+$/, String(expert))
  return { name: parts.join("."), expert }
}

/** The expert number that a name holds, local or global as the name is. */
export const expertNumber = (name: string): number | null => findExpert(name.split("."))?.local ?? null
