// SPDX-License-Identifier: Apache-2.0
/** What the command line refuses about a model: its files, rules and layouts. */
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Schema from "effect/Schema"

/** What is wrong with the models, layouts, files or ranks of a command. */
export const ModelReason = Schema.Union([
  /** Flags that say too little or contradict each other: wrong usage, exit code 2. */
  reason("InvalidUsage"),
  /** The manifest is not one, or contradicts the files beside it. */
  reason("InvalidManifest"),
  /** The rules file cannot be read. */
  reason("InvalidRules"),
  /** Layouts that do not fit together or the model. */
  reason("InvalidLayout"),
  /** Two models, or a model and what should be a copy of it, differ. */
  reason("Different"),
  /** The output folder holds something. */
  reason("OutputExists"),
  /** A file operation failed. */
  reason("FileFailed"),
  /** The memory of this backend cannot be filled from files. */
  reason("Unsupported"),
  /** A rank ended without a result. */
  reason("RankEnded"),
  /** A rank got a job description that it cannot read. */
  reason("InvalidJob"),
  /** A file of shapes is not one. */
  reason("InvalidShapes"),
  /** A saved plan is not one. */
  reason("InvalidPlan"),
  /** A delta is not one, is damaged, or does not give what it states. */
  reason("InvalidDelta"),
  /** A delta was made from another version than the one it is to be applied to. */
  reason("WrongBase"),
  /** A package that this subcommand needs is not installed. */
  reason("MissingPackage"),
  /** The tensors do not fit into the memory of a host or a device, or take more than was allowed. */
  reason("NotEnoughMemory")
])
export type ModelReason = typeof ModelReason.Type

/** What is wrong with a model, a layout or a job: the tensor, the file, the rank and a remedy. */
export class ModelError extends ReasonError<ModelError>()("ModelError", ModelReason) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const modelError = (tag: ModelReason["_tag"], input: ReasonInput): ModelError =>
  new ModelError({ reason: reasonOf(tag, input) })
