// SPDX-License-Identifier: Apache-2.0
/**
 * Recorded models moved for real: from the checkpoint's names to a system's and back, planned, proved and carried out on
 * numbered tensors over all ranks of a layout. What arrives is held against the recorded element maps.
 */
import { elementCount } from "@tensorferry/core/base/Region"
import { checkPlan } from "@tensorferry/core/planner/PlanCheck"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { type ModelTensor, worldSizeOf } from "@tensorferry/model/layout/ModelLayout"
import type { MappedRank } from "@tensorferry/model/names/mapModel"
import { mappedDict } from "@tensorferry/model/names/mappedDict"
import { type MappedLayout, type MappedSide, mappedLayouts } from "@tensorferry/model/names/mappedLayouts"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import {
  elementMapOnce,
  type NameVerdict,
  type RecordedFamily,
  type RecordedNames,
  type RecordedRank,
  sideOf,
  siteOf
} from "./nameMappings.ts"

/** A byte that nothing here numbers, in memory that should be written. */
const poison = 0xa5

/** Elements of the checkpoint are their numbers, as float32: exact below 2^24. */
const numbersOf = (tensors: ReadonlyArray<ModelTensor>): ReadonlyMap<string, number> => {
  let next = 1
  const firsts = new Map<string, number>()
  for (const { name, shape } of tensors) {
    firsts.set(name, next)
    next += elementCount(shape)
  }
  return firsts
}

/** The rank's tensors with what they should hold. */
const wantedOf = (rank: MappedRank, firsts: ReadonlyMap<string, number>): ReadonlyMap<string, Float32Array> =>
  new Map(rank.tensors.map((tensor) => [tensor.name, Float32Array.from(elementMapOnce(tensor, firsts).numbers)]))

const allocate = Effect.fnUntraced(function* (rank: MappedRank) {
  const engine = yield* TensorEngine
  const tensors = new Map<string, Tensor>()
  for (const { name, dtype, shape } of rank.tensors) {
    const tensor = yield* engine.allocate(dtype, shape)
    yield* engine.fill(tensor, poison)
    tensors.set(name, tensor)
  }
  return tensors
})

const valuesOf = ({ storage, byteOffset, shape }: Tensor): Float32Array => {
  const bytes = storage.bytes!
  return new Float32Array(bytes.buffer, bytes.byteOffset + byteOffset, elementCount(shape))
}

/** Elements that differ from what they should be; those that no plan writes, as padding, are the destination's own. */
const compare = (rank: MappedRank, held: ReadonlyMap<string, Tensor>, firsts: ReadonlyMap<string, number>) => {
  for (const tensor of rank.tensors) {
    const { numbers } = elementMapOnce(tensor, firsts)
    const found = valuesOf(held.get(tensor.name)!)
    for (let at = 0; at < numbers.length; at++) {
      const wanted = numbers[at]!
      if (wanted !== 0 && found[at] !== wanted)
        return `${tensor.name}, element ${at}: ${found[at]} arrived, ${wanted} belongs there`
      if (wanted === 0 && new Uint8Array(found.buffer, found.byteOffset + 4 * at, 1)[0] !== poison)
        return `${tensor.name}, element ${at} is padding, and was written`
    }
  }
  return undefined
}

/** Without changes of type and value, so that numbers stay numbers. */
const asNumbers = (side: MappedSide): MappedSide => ({
  ...side,
  mapping: JSON.parse(
    JSON.stringify(side.mapping, (key, value) =>
      key === "dtype"
        ? undefined
        : value?.negExp !== undefined
          ? value.negExp
          : value?.add !== undefined
            ? value.to
            : value
    )
  )
})

/** Moves numbered tensors from one side to another; the first element that is not where it belongs. */
export const moveNumbers = (
  tensors: ReadonlyArray<ModelTensor>,
  source: MappedSide,
  destination: MappedSide
): Effect.Effect<string | undefined, unknown> =>
  Effect.gen(function* () {
    const layouts = yield* Effect.fromResult(mappedLayouts(tensors, asNumbers(source), asNumbers(destination)))
    const index = yield* Effect.fromResult(indexRosters(layouts.source.roster, layouts.destination.roster))
    const firsts = numbersOf(tensors)
    const size = Math.max(layouts.source.ranks.length, layouts.destination.ranks.length)
    const sideFor = Effect.fnUntraced(function* (layout: MappedLayout, rank: number, isFilled: boolean) {
      const own = layout.rankOf(rank)
      if (own.tensors.length === 0) return undefined
      const held = yield* allocate(own)
      if (isFilled) for (const [name, values] of wantedOf(own, firsts)) valuesOf(held.get(name)!).set(values)
      const dict = yield* Effect.fromResult(mappedDict(own, layout.parametersOf(rank), held))
      return { own, held, dict }
    })
    const faults = yield* runCluster({ size }, (rank) =>
      Effect.gen(function* () {
        const plan = planRank(index, rank)
        const [wrong] = checkPlan(plan)
        if (wrong !== undefined) return wrong.message
        const from = yield* sideFor(layouts.source, rank, true)
        const to = yield* sideFor(layouts.destination, rank, false)
        yield* executeReshardPlan(plan, from?.dict, to?.dict)
        return to === undefined ? undefined : compare(to.own, to.held, firsts)
      })
    )
    return faults.find((fault) => fault !== undefined)
  })

/** The checkpoint's own names, on one rank. */
const whole = (side: MappedSide): MappedSide => ({
  ...side,
  mapping: { rules: [], others: "keep" },
  config: { tp: 1, pp: 1, dp: 1 },
  placement: {}
})

/** Layers that predict further tokens are not in every system: what it does not hold cannot come back. */
const holdsAll = ({ mapping }: MappedSide, tensors: ReadonlyArray<ModelTensor>): boolean =>
  !mapping.rules.some(
    (rule) =>
      "ignore" in rule &&
      tensors.some(
        ({ name }) =>
          rule.ignore === name || (name.startsWith(rule.ignore.split("{")[0]!) && rule.ignore.endsWith("{rest...}"))
      )
  )

/** Ranks of a recorded layout. */
const ranksOf = (one: RecordedRank): number => worldSizeOf(siteOf(one).config)

/** Carries out recorded layouts of a system, there and back: all of them, or those of so many ranks. */
export const checkTransfers = (
  recorded: RecordedNames,
  isTried: (ranks: number) => boolean = () => true
): Effect.Effect<ReadonlyArray<NameVerdict>> =>
  Effect.forEach(
    recorded.families.flatMap(layoutsOf).filter(({ one }) => isTried(ranksOf(one))),
    ({ family, one }) =>
      Effect.gen(function* () {
        const tensors = (one.sources ?? family.sources).map(
          ([name, shape]): ModelTensor => ({ name, dtype: "float32", shape })
        )
        const side = yield* Effect.fromResult(sideOf(recorded.engine, family, one, tensors))
        const there = yield* moveNumbers(tensors, whole(side), side)
        const back =
          there === undefined && holdsAll(side, tensors) ? yield* moveNumbers(tensors, side, whole(side)) : undefined
        return there ?? (back === undefined ? undefined : `back: ${back}`)
      }).pipe(
        Effect.catchCause((cause) => Effect.succeed(String(cause))),
        Effect.map((fault) => ({ name: `${recorded.engine} ${one.id}, moved`, fault }))
      )
  )

/** One of the recorded ranks of each layout. */
const layoutsOf = (
  family: RecordedFamily
): ReadonlyArray<{ readonly family: RecordedFamily; readonly one: RecordedRank }> => {
  const found = new Map<string, RecordedRank>()
  for (const one of family.cases) {
    const { tp, pp, ep, etp, expert_parallel, expert_placement, pipeline, vocab_divisor } = one
    const key = JSON.stringify([tp, pp, ep, etp, expert_parallel, expert_placement, pipeline?.stages, vocab_divisor])
    if (!found.has(key)) found.set(key, one)
  }
  return [...found.values()].map((one) => ({ family, one }))
}
