// SPDX-License-Identifier: Apache-2.0
/** One rank's part of a job of either kind, before any memory is taken. */
import type { Shape } from "@tensorferry/core/base/Region"
import type { EstimateOptions } from "@tensorferry/core/planner/Estimate"
import type { AnyPlan } from "@tensorferry/core/planner/MeshOps"
import type { TensorEngine, TensorError } from "@tensorferry/core/service/TensorEngine"
import type { TensorDict } from "@tensorferry/core/tensor/TensorDict"
import type { ReshardTransform } from "@tensorferry/core/transform/ReshardTransform"
import type { HeldTensor, ReportProgress } from "@tensorferry/model/HeldTensors"
import type { LocalTensor } from "@tensorferry/model/layout/ModelLayout"
import type { Model } from "@tensorferry/model/Model"
import type { ModelError } from "@tensorferry/model/ModelError"
import type { DigestProof } from "@tensorferry/model/proof/proveDigests"
import type { LayoutProof } from "@tensorferry/model/proof/proveLayout"
import type { writeShards } from "@tensorferry/model/ShardWriter"
import type * as Effect from "effect/Effect"
import type * as Result from "effect/Result"

export interface PreparedJob {
  readonly plan: AnyPlan
  /** What the rank loads, and what it ends up with. */
  readonly source: ReadonlyArray<LocalTensor>
  readonly destination: ReadonlyArray<LocalTensor>
  /** Both sides under the names of the plan. */
  readonly dicts: (
    source: ReadonlyArray<HeldTensor>,
    destination: ReadonlyArray<HeldTensor>
  ) => Effect.Effect<readonly [TensorDict | undefined, TensorDict | undefined], ModelError>
  readonly transform?: ReshardTransform
  /** What the source is loaded from, where that is not the model itself. */
  readonly input?: Model
  /** Sets what of the destination nobody sends. */
  readonly clear?: (
    destination: ReadonlyArray<HeldTensor>
  ) => Effect.Effect<void, ModelError | TensorError, TensorEngine>
  /** What the result must be, bit by bit. */
  readonly proof: Model
  /** Where the result is made of the source's bytes: which parts of sources make it up. Undefined else. */
  readonly digests?: () => DigestProof | undefined
  readonly estimate: EstimateOptions
  /** Traces where elements must lie by what the tensors mean; undefined where nothing says it. */
  readonly prove?: () => Result.Result<LayoutProof | undefined, ModelError>
  /** The tensor that a parameter of the plan is a view of, and the shape of all of it. */
  readonly tensorOf: (paramName: string) => string
  readonly shapeOf: (local: LocalTensor) => Shape
  /** Writes the result, where the job has an output. */
  readonly write?: (
    held: ReadonlyArray<HeldTensor>,
    verified: ReadonlyMap<string, string>,
    progress: ReportProgress
  ) => ReturnType<typeof writeShards>
}
