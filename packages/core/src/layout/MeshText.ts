// SPDX-License-Identifier: Apache-2.0
/**
 * Layouts as people write them: `MESH[@RANKS]:PLACEMENTS`.
 *
 * - MESH: lengths joined by `x`, each with a name before it or none has: `8`, `2x4`, `dp=2xtp=4`.
 * - RANKS, row-major: `@8` counts up from rank 8; else a list of ranks and ranges: `@3,1,0,2`, `@0-3,8-11`. Without it
 *   ranks count up from 0.
 * - PLACEMENTS, one per mesh dimension, joined by commas: `R` replicate, `S0` shard tensor dimension 0, `S-1` the last,
 *   `SS(0,2)` strided shard of dimension 0 with split factor 2, `P(sum)` partial (`sum`, `avg`, `max`, `min`, `product`).
 */
import * as Result from "effect/Result"
import { type DeviceMesh, deviceMesh } from "./DeviceMesh.ts"
import { type MeshError, meshError } from "./MeshError.ts"
import {
  type MeshLayout,
  meshLayout,
  PartialOp,
  type Placement,
  partial,
  replicate,
  shard,
  stridedShard
} from "./Placement.ts"

const invalid = (text: string, detail: string): Result.Result<never, MeshError> =>
  meshError(
    "InvalidText",
    `"${text}": ${detail}`,
    'Write a layout as "2x4:S0,R", "8@8:S1" or "dp=2xtp=2@3,1,0,2:P(sum),SS(0,2)".'
  )

interface Dims {
  readonly shape: ReadonlyArray<number>
  readonly names: ReadonlyArray<string>
}

const parseDims = (text: string): Dims | undefined => {
  const shape: Array<number> = []
  const names: Array<string> = []
  let rest = text
  while (true) {
    const match = /^(?:([A-Za-z_]\w*)=)?(\d{1,10})(x|$)/.exec(rest)
    if (match === null) return undefined
    if (match[1] !== undefined) names.push(match[1])
    shape.push(Number(match[2]))
    rest = rest.slice(match[0].length)
    if (match[3] === "") return names.length === 0 || names.length === shape.length ? { shape, names } : undefined
  }
}

/** Ranks of a range are listed one by one, so its length is limited. */
const longestRange = 2 ** 22

const parseRanks = (text: string): ReadonlyArray<number> | undefined => {
  const ranks: Array<number> = []
  for (const entry of text.split(",")) {
    const match = /^(\d{1,10})(?:-(\d{1,10}))?$/.exec(entry)
    if (match === null) return undefined
    const [first, last] = [Number(match[1]), Number(match[2] ?? match[1])]
    if (last < first || last - first >= longestRange) return undefined
    for (let rank = first; rank <= last; rank++) ranks.push(rank)
  }
  return ranks
}

const parsePlacement = (text: string): Placement | undefined => {
  if (text === "R") return replicate
  const plain = /^S(-?\d{1,9})$/.exec(text)
  if (plain !== null) return shard(Number(plain[1]))
  const strided = /^SS\((-?\d{1,9}),(\d{1,15})\)$/.exec(text)
  if (strided !== null) return stridedShard(Number(strided[1]), Number(strided[2]))
  const op = PartialOp.literals.find((name) => text === `P(${name})`)
  return op === undefined ? undefined : partial(op)
}

/** The layout that a text describes; spaces do not count. `worldSize` limits the ranks, as for `deviceMesh`. */
export const parseMeshLayout = (text: string, worldSize?: number): Result.Result<MeshLayout, MeshError> => {
  const compact = text.replace(/\s+/g, "")
  const match = /^([^@:]*)(?:@([^:]*))?:(.*)$/.exec(compact)
  if (match === null) return invalid(text, "there is no colon between the mesh and its placements.")
  const dims = parseDims(match[1]!)
  if (dims === undefined) return invalid(text, `"${match[1]}" is not a mesh.`)
  const listed = match[2] === undefined ? undefined : parseRanks(match[2])
  if (match[2] !== undefined && listed === undefined) return invalid(text, `"${match[2]}" is not a list of ranks.`)
  const isFirst = match[2] !== undefined && /^\d+$/.test(match[2])
  const placements: Array<Placement> = []
  // Commas inside parentheses belong to one placement.
  for (const name of match[3]!.split(/,(?![^(]*\))/)) {
    const placement = parsePlacement(name)
    if (placement === undefined) return invalid(text, `"${name}" is not a placement.`)
    placements.push(placement)
  }
  const mesh = deviceMesh({
    shape: dims.shape,
    ...(dims.names.length === 0 ? {} : { dimNames: dims.names }),
    ...(listed === undefined ? {} : isFirst ? { firstRank: listed[0]! } : { ranks: listed }),
    ...(worldSize === undefined ? {} : { worldSize })
  })
  return Result.flatMap(mesh, (made) => meshLayout(made, placements))
}

/** As `R`, `S0`, `SS(0,2)` or `P(sum)`. */
export const formatPlacement = (placement: Placement): string => {
  switch (placement._tag) {
    case "Replicate":
      return "R"
    case "Shard":
      return `S${placement.dim}`
    case "StridedShard":
      return `SS(${placement.dim},${placement.splitFactor})`
    case "Partial":
      return `P(${placement.op})`
  }
}

const formatRanks = (ranks: ReadonlyArray<number>): string => {
  const runs: Array<[first: number, last: number]> = []
  for (const rank of ranks) {
    const open = runs.at(-1)
    if (open !== undefined && open[1] + 1 === rank) open[1] = rank
    else runs.push([rank, rank])
  }
  if (runs.length === 1) return runs[0]![0] === 0 ? "" : `@${runs[0]![0]}`
  return `@${runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(",")}`
}

/** As `2x4@8`, or `dp=2xtp=4`. */
export const formatMesh = (mesh: DeviceMesh): string =>
  mesh.shape
    .map((length, dim) => (mesh.dimNames === null ? `${length}` : `${mesh.dimNames[dim]}=${length}`))
    .join("x") + formatRanks(mesh.ranks)

/** The shortest text that `parseMeshLayout` reads back as this layout. */
export const formatMeshLayout = (layout: MeshLayout): string =>
  `${formatMesh(layout.mesh)}:${layout.placements.map(formatPlacement).join(",")}`
