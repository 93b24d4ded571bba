// SPDX-License-Identifier: Apache-2.0
/**
 * How a weight is cut over the ranks of a group, and what that cut is of each tensor of its form.
 *
 * Invariant: all tensors of a module are cut at the same places of the weight, and no place lies inside a unit, a block, a
 * group or a word of what is stored.
 */
import { chunkInterval, type Interval, lengthOf } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { Run } from "../describe/DimLayout.ts"
import type { ModuleKind } from "../describe/ModelStructure.ts"
import { storedInterval } from "../forms/cutPlaces.ts"
import type { DimMap } from "../forms/Form.ts"
import type { StatedCut } from "../layout/TensorCut.ts"
import { axes } from "../structure/Roles.ts"
import type { Placement } from "./Placement.ts"

/** What of a placement cuts of weights depend on. */
export type CutChoice = Pick<Placement, "kvHeads" | "vocabulary">

/** One rank's share of a dimension: elements in local order, and how long the local dimension is. */
interface Share {
  readonly intervals: ReadonlyArray<Interval>
  readonly length: number
}

/** Units of a run at one position, or why they cannot be shared out. */
const unitsAt = (run: Run, position: number, degree: number, choice: CutChoice): Result.Result<Interval, string> => {
  const { count, axis } = run
  const { rule, label } = axes[axis]
  if (rule === "pad") return Result.succeed(chunkInterval(count, degree, position))
  if (count % degree === 0) {
    const share = count / degree
    return Result.succeed([position * share, (position + 1) * share])
  }
  if (rule === "replicate" && degree > count && degree % count === 0) {
    if (axis === "kvHeads" && choice.kvHeads === "rows")
      return Result.fail(`${count} ${label} are fewer than ${degree} ranks, and rows of one are not shared out`)
    const unit = Math.floor((position * count) / degree)
    return Result.succeed([unit, unit + 1])
  }
  return Result.fail(`${count} ${label} do not divide by ${degree}`)
}

/** Rows of a vocabulary with the padding behind it that a placement states. */
export const paddedRows = (rows: number, degree: number, { vocabulary }: CutChoice): number => {
  if (vocabulary === undefined) return rows
  const multiple = vocabulary.multipleOf * (vocabulary.of === "share" ? degree : 1)
  return Math.ceil(rows / multiple) * multiple
}

/** The vocabulary with padding behind it. */
const paddedShare = (length: number, position: number, degree: number, choice: CutChoice): Share | undefined => {
  if (choice.vocabulary === undefined) return undefined
  const share = Math.ceil(paddedRows(length, degree, choice) / degree)
  return {
    intervals: [[Math.min(length, position * share), Math.min(length, (position + 1) * share)]],
    length: share
  }
}

const shareAt = (
  runs: ReadonlyArray<Run>,
  length: number,
  position: number,
  degree: number,
  choice: CutChoice
): Result.Result<Share, string> => {
  if (runs.length === 1 && axes[runs[0]!.axis].rule === "pad") {
    const padded = paddedShare(length, position, degree, choice)
    if (padded !== undefined) return Result.succeed(padded)
  }
  const intervals: Array<Interval> = []
  let start = 0
  for (const run of runs) {
    const units = unitsAt(run, position, degree, choice)
    if (Result.isFailure(units)) return Result.fail(units.failure)
    const [from, to] = units.success
    intervals.push([start + from * run.unit, start + to * run.unit])
    start += run.count * run.unit
  }
  return Result.succeed({ intervals, length: intervals.reduce((sum, one) => sum + lengthOf(one), 0) })
}

/** A share of the weight as a share of one tensor's dimension. */
const storedShare = (share: Share, length: number, stored: number, map: DimMap): Result.Result<Share, string> => {
  const intervals: Array<Interval> = []
  for (const [from, to] of share.intervals) {
    if (from === to) continue
    const found = storedInterval([from, to], length, stored, map)
    if (Result.isFailure(found)) return Result.fail(found.failure)
    intervals.push(found.success)
  }
  const held = intervals.reduce((sum, one) => sum + lengthOf(one), 0)
  const padding = share.length - share.intervals.reduce((sum, one) => sum + lengthOf(one), 0)
  if (padding > 0 && (padding * map.holds) % map.per !== 0)
    return Result.fail(`padding of ${padding} is no multiple of ${map.per}`)
  return Result.succeed({ intervals, length: held + (padding * map.holds) / map.per })
}

/** Lengths of blocks that are each cut evenly, where the shares of all positions are. */
const evenSizes = (shares: ReadonlyArray<Share>): ReadonlyArray<number> | undefined => {
  const sizes = shares[0]!.intervals.map(lengthOf)
  const degree = shares.length
  for (const [position, { intervals, length }] of shares.entries()) {
    if (intervals.length !== sizes.length) return undefined
    let start = 0
    let held = 0
    for (const [at, [from, to]] of intervals.entries()) {
      if (to - from !== sizes[at] || from !== start + position * sizes[at]!) return undefined
      start += sizes[at]! * degree
      held += to - from
    }
    if (held !== length) return undefined
  }
  return sizes.length === 0 ? undefined : sizes
}

/** Neighbours become one interval. */
const joined = ({ intervals, length }: Share): Share => {
  const merged: Array<[number, number]> = []
  for (const [from, to] of intervals) {
    const last = merged.at(-1)
    if (last !== undefined && last[1] === from) last[1] = to
    else merged.push([from, to])
  }
  return { intervals: merged, length }
}

/** How one tensor of a module is cut; undefined where every rank holds all of it. */
export interface PartCut {
  readonly dim: number
  readonly cut: StatedCut
}

/** The cuts of a module's tensors, in the order of its form's parts. */
export type ModuleCuts = ReadonlyArray<PartCut | undefined>

const isWhole = (shares: ReadonlyArray<Share>, stored: number): boolean =>
  shares.every(({ intervals, length }) => {
    const one = joined({ intervals, length }).intervals
    return length === stored && one.length === 1 && one[0]![0] === 0 && one[0]![1] === stored
  })

/** Cuts a module over `degree` ranks, or says why it cannot be. `shapes` are those of its tensors. */
export const moduleCuts = (
  kind: ModuleKind,
  shapes: ReadonlyArray<ReadonlyArray<number>>,
  degree: number,
  choice: CutChoice
): Result.Result<ModuleCuts, string> => {
  const { form, runs } = kind
  const none: ModuleCuts = form.parts.map(() => undefined)
  if (degree > 1 && form.uncut?.along === "any" && kind.spec.dims?.some(({ roles }) => roles.length > 0) === true)
    return Result.fail(`it cannot be cut: ${form.uncut.why}`)
  const dim = runs.findIndex((own) => own.length > 0)
  const isPadded = dim >= 0 && choice.vocabulary !== undefined && runs[dim]![0]!.axis === "vocabulary"
  if (dim < 0 || (degree === 1 && !isPadded)) return Result.succeed(none)
  const length = form.shape[dim]!
  const shares: Array<Share> = []
  for (let position = 0; position < degree; position++) {
    const share = shareAt(runs[dim]!, length, position, degree, choice)
    if (Result.isFailure(share)) return Result.fail(share.failure)
    shares.push(share.success)
  }
  if (form.uncut !== undefined && kind.spec.dims?.[dim]?.is === "in")
    return Result.fail(`it cannot be cut along its input: ${form.uncut.why}`)
  const cuts: Array<PartCut | undefined> = []
  for (const [at, { maps }] of form.parts.entries()) {
    const own = maps.findIndex((map) => map.dim === dim)
    if (own < 0) {
      cuts.push(undefined)
      continue
    }
    const stored: Array<Share> = []
    for (const share of shares) {
      const found = storedShare(share, length, shapes[at]![own]!, maps[own]!)
      if (Result.isFailure(found)) return Result.fail(found.failure)
      stored.push(found.success)
    }
    if (isWhole(stored, shapes[at]![own]!)) {
      cuts.push(undefined)
      continue
    }
    const sizes = evenSizes(stored)
    cuts.push({ dim: own, cut: { sizes, cuts: sizes === undefined ? stored.map(joined) : stored } })
  }
  return Result.succeed(cuts)
}
