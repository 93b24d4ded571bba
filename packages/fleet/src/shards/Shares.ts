// SPDX-License-Identifier: Apache-2.0
/**
 * Which bytes of each tensor a rank answers for, so that all ranks of a group, such as those of one replica, answer for each byte
 * once. Pure. What several of them hold counts for the first.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { Interval, Shape } from "@tensorferry/core/base/Region"
import type { PlanTensor } from "@tensorferry/core/ir/ReshardPlan"

/** Intervals along the dimension in which a tensor is cut, in the order in which this rank holds them. */
interface Held {
  readonly local: number
  readonly global: Interval
}

/** What a rank answers for of one tensor. */
export interface TensorShare {
  /** Global name. */
  readonly resolvedName: string
  /** What this rank calls it. */
  readonly name: string
  readonly dtype: DType
  /** Of the whole tensor. */
  readonly shape: Shape
  /** What it holds of it, and what of that it answers for. */
  readonly held: ReadonlyArray<Held>
  readonly counted: ReadonlyArray<Held>
  /** The dimension in which it is cut, and how long it is here. */
  readonly dim: number
  readonly localLength: number
}

const wholePlace = ({ shape, place }: PlanTensor) =>
  place ?? { dim: 0, intervals: [[0, shape[0] ?? 1]] as ReadonlyArray<Interval>, blocks: 0 }

const without = (held: Held, taken: ReadonlyArray<Interval>): ReadonlyArray<Held> => {
  let left: ReadonlyArray<Held> = [held]
  for (const [start, end] of taken) {
    left = left.flatMap(({ local, global: [from, to] }) => {
      if (end <= from || start >= to) return [{ local, global: [from, to] as const }]
      const before = start > from ? [{ local, global: [from, start] as const }] : []
      const after = end < to ? [{ local: local + end - from, global: [end, to] as const }] : []
      return [...before, ...after]
    })
  }
  return left
}

/** What each rank of a group answers for; `tensorsOf` lists what a rank holds. */
export const sharesOf = (
  group: ReadonlyArray<Rank>,
  tensorsOf: (rank: Rank) => ReadonlyArray<PlanTensor>
): ReadonlyMap<Rank, ReadonlyArray<TensorShare>> => {
  const taken = new Map<string, Array<Interval>>()
  const lengths = new Map<string, number>()
  const listed = [...group].sort((a, b) => a - b).map((rank) => [rank, tensorsOf(rank)] as const)
  for (const [, tensors] of listed) {
    for (const tensor of tensors) {
      const end = wholePlace(tensor).intervals.reduce((most, interval) => Math.max(most, interval[1]), 0)
      lengths.set(tensor.resolvedName, Math.max(lengths.get(tensor.resolvedName) ?? 0, end))
    }
  }
  return new Map(
    listed.map(([rank, tensors]) => [
      rank,
      tensors.map((tensor): TensorShare => {
        const { resolvedName, name, dtype, shape } = tensor
        const { dim, intervals } = wholePlace(tensor)
        let local = 0
        const held = intervals.map((global): Held => {
          const at = local
          local += global[1] - global[0]
          return { local: at, global }
        })
        const before = taken.get(resolvedName) ?? []
        const counted = held.flatMap((each) => without(each, before))
        taken.set(resolvedName, [...before, ...counted.map(({ global }) => global)])
        const whole = shape.map((length, at) => (at === dim ? lengths.get(resolvedName)! : length))
        return { resolvedName, name, dtype, shape: whole, held, counted, dim, localLength: local }
      })
    ])
  )
}

/** Whether a rank holds all of a tensor. */
export const isWhole = ({ held, shape, dim }: TensorShare): boolean =>
  held.length === 1 && held[0]!.global[0] === 0 && held[0]!.global[1] === (shape[dim] ?? 1)
