// SPDX-License-Identifier: Apache-2.0
/**
 * The one error of reading and writing checkpoints. Every reason names the file, and the tensor where there is one.
 */

import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import * as Schema from "effect/Schema"

/** What is wrong with a file, with the index of files, or with a request to read or write them. */
export const CheckpointReason = Schema.Union([
  /** No such file or folder, or a folder without a checkpoint. */
  reason("NotFound"),
  /** The operating system refuses to open or read it, or it is not a regular file. */
  reason("Unreadable"),
  /** The file ends early, or its size changed after it was opened. */
  reason("Truncated"),
  /** The file was written or replaced after it was opened. */
  reason("Changed"),
  /** The header of a file is not what the format allows. */
  reason("InvalidHeader"),
  /** One tensor's description is wrong, or its data does not have the bytes that its shape needs. */
  reason("TensorInvalid"),
  /** No tensor of this name. */
  reason("TensorMissing"),
  /** A file of a kind that is known and not read, as one that is compressed. */
  reason("Unsupported"),
  /** A region, buffer or option of the caller does not fit. */
  reason("InvalidRequest"),
  /** The index of a checkpoint of several files contradicts itself or the files. */
  reason("InvalidIndex"),
  /** The index names a file that is not a plain name of its own folder. */
  reason("UnsafePath"),
  /** The folder already holds a checkpoint. */
  reason("AlreadyExists"),
  /** No room: the device, the quota or the limit on file sizes is exhausted. */
  reason("DiskFull"),
  /** The operating system refuses to create, write or rename. */
  reason("WriteFailed")
])
export type CheckpointReason = typeof CheckpointReason.Type

/** Why a file of a checkpoint could not be read or written. */
export class CheckpointError extends ReasonError<CheckpointError>()("CheckpointError", CheckpointReason) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const checkpointError = (tag: CheckpointReason["_tag"], input: ReasonInput): CheckpointError =>
  new CheckpointError({ reason: reasonOf(tag, input) })
