// SPDX-License-Identifier: Apache-2.0
/**
 * Saved plans: those of all ranks of a job, between parallel layouts or between meshes, in one file of JSON.
 *
 * Nothing in a file is trusted: what is read back is decoded, and then proved by itself.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import { MeshPlan } from "@tensorferry/core/ir/MeshPlan"
import { ReshardPlanSet } from "@tensorferry/core/ir/ReshardPlan"
import { checkMeshPlans } from "@tensorferry/core/planner/MeshCheck"
import { opsOf } from "@tensorferry/core/planner/MeshOps"
import { checkPlans } from "@tensorferry/core/planner/PlanCheck"
import { type PlanError, planError } from "@tensorferry/core/planner/PlanError"
import { readSmallFile } from "@tensorferry/model/checkpoint/FileAccess"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { writeWhole } from "../model/writeWhole.ts"

/** The plans of all ranks that take part in a transfer between meshes. */
export const MeshPlanSet = Schema.Struct({
  format: Schema.Literal("tensorferry.mesh-plan-set"),
  version: Schema.Literal(1),
  plans: Schema.Array(MeshPlan)
})
export type MeshPlanSet = typeof MeshPlanSet.Type

const PlanSet = Schema.Union([ReshardPlanSet, MeshPlanSet])
export type PlanSet = typeof PlanSet.Type

const codec = Schema.fromJsonString(PlanSet)

/** A plan is read as one text and checked whole, which takes about twenty times its length in memory. */
const mostBytes = 2 ** 28

/** Plans one by one, because the text of all may be longer than a text can be. */
export const savePlans = Effect.fnUntraced(function* (
  file: string,
  { format, version, plans }: PlanSet
): Effect.fn.Return<void, ModelError> {
  const texts = plans.map((plan) => JSON.stringify(plan))
  if (texts.reduce((sum, text) => sum + text.length + 1, 1024) > mostBytes) {
    return yield* modelError("FileFailed", {
      file,
      detail: `The plans are longer than the ${mostBytes} bytes that can be read back.`,
      remedy: "Save plans of fewer ranks or tensors."
    })
  }
  const head = JSON.stringify({ format, version }).slice(0, -1)
  const pieces = [`${head},"plans":[`, ...texts.flatMap((text, at) => (at === 0 ? [text] : [",", text])), "]}"]
  yield* Effect.mapError(writeWhole(file, "the plan", pieces), ({ reason }) =>
    modelError("FileFailed", { file, detail: reason.detail, remedy: reason.remedy })
  )
})

export const readPlans = Effect.fnUntraced(function* (file: string): Effect.fn.Return<PlanSet, ModelError> {
  const bytes = yield* Effect.mapError(readSmallFile(file, mostBytes), ({ reason }) =>
    modelError("FileFailed", { file, detail: reason.detail, remedy: reason.remedy })
  )
  const decoded = Schema.decodeResult(codec, { onExcessProperty: "error" })(new TextDecoder().decode(bytes))
  if (Result.isSuccess(decoded)) return decoded.success
  return yield* modelError("InvalidPlan", {
    file,
    detail: decoded.failure.message,
    remedy: "Save it again with tensorferry plan --save."
  })
})

/** Every rank of the meshes has a plan; plans that state other meshes have another digest, which is a fault of its own. */
const absentFaults = (plans: ReadonlyArray<MeshPlan>): ReadonlyArray<PlanError> => {
  const found = new Set<Rank>(plans.map(({ rank }) => rank))
  const meshes = (plans[0]?.maps ?? []).flatMap(({ source, target }) => [source.mesh, target.mesh])
  const absent = [...new Set(meshes.flatMap(({ ranks }) => ranks))].filter((rank) => !found.has(rank))
  const remedy = "Make the plan again from the layouts; do not edit it."
  return absent.length === 0
    ? []
    : [planError("InvalidPlan", "", absent, "The meshes have ranks without plans.", remedy)]
}

/** Everything that is wrong with plans of either kind. */
export const faultsOf = (set: PlanSet): ReadonlyArray<PlanError> =>
  set.format === "tensorferry.mesh-plan-set"
    ? [...absentFaults(set.plans), ...checkMeshPlans(set.plans)]
    : checkPlans(set.plans)

/** Transfers of the plans of all ranks, each counted once. */
export const countOps = (set: PlanSet): number => set.plans.reduce((sum, plan) => sum + opsOf(plan).recvOps.length, 0)
