// SPDX-License-Identifier: Apache-2.0
/** Faults that transformers 5 met in files of good models, and edits of its recorded loads and saves, refused by kind and name. */
import { transformers } from "@tensorferry/model/names/conventions/transformers"
import { conflictingAlias, equalTensors } from "@tensorferry/model/names/equalTensors"
import { type MappedModel, mapModel } from "@tensorferry/model/names/mapModel"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import * as Result from "effect/Result"
import type { NameVerdict } from "./nameMappings.ts"
import {
  type Checkpoint,
  faultyCheckpoint,
  judgeNegative,
  judgePlan,
  type NegativeCase,
  type PlanNegative
} from "./nameRefusals.ts"
import type { RecordedTransformers } from "./transformersNames.ts"

/** A file of recorded loads and saves with faults. */
export interface RecordedFaults extends RecordedTransformers {
  readonly negative: ReadonlyArray<NegativeCase & { readonly base: string }>
  readonly plan_negative: ReadonlyArray<PlanNegative>
}

/** Loads a checkpoint. Numbers are its values, and no two tensors have the same: a pair that must be equal is not. */
const load = ({ config, tensors }: Checkpoint): Result.Result<MappedModel, Error> =>
  Result.gen(function* () {
    const choice = { preset: config.model_type as string, config, placement: {} }
    const structure = yield* structureOf(tensors, choice)
    const mapping = transformers.mapping(structure, { stages: 1, tp: 1 })
    const degrees = { tp: 1, pp: 1, dp: 1 }
    const model = yield* mapModel({ structure, tensors, mapping, config: degrees, placement: {} })
    const [pair] = equalTensors(structure)
    return pair === undefined ? model : yield* Result.fail(conflictingAlias(pair))
  })

/** All faults of a recording. */
export const checkTransformersRefusals = ({
  families,
  negative,
  plan_negative: plans
}: RecordedFaults): ReadonlyArray<NameVerdict> => {
  const cases = new Map(families.flatMap((model) => model.cases.map((one) => [one.id, { model, one }] as const)))
  const judged = <Case extends { readonly id: string; readonly base: string }>(
    fault: Case,
    judge: (of: {
      readonly model: (typeof families)[0]
      readonly one: (typeof families)[0]["cases"][0]
    }) => string | undefined
  ): NameVerdict => {
    const base = cases.get(fault.base)
    return { name: fault.id, fault: base === undefined ? `there is no case ${fault.base}` : judge(base) }
  }
  return [
    ...negative.map((fault) =>
      judged(fault, ({ model, one }) => {
        const checkpoint = faultyCheckpoint(fault, model.hf_config, one.sources)
        return judgeNegative(fault, checkpoint, load(checkpoint))
      })
    ),
    ...plans.map((fault) => judged(fault, ({ one }) => judgePlan(fault, one, one.sources)))
  ]
}
