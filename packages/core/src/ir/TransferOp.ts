// SPDX-License-Identifier: Apache-2.0
/**
 * One end of one transfer, as a rank's plan lists it. Data only.
 */
import * as Schema from "effect/Schema"
import { DType } from "../base/DType.ts"
import { Rank, TaskId } from "../base/Ids.ts"
import { Region } from "../base/Region.ts"

export const TransferOp = Schema.Struct({
  /** Local name on this rank. */
  paramName: Schema.String,
  peerRank: Rank,
  isSend: Schema.Boolean,
  /** Region of this rank's tensor, every dimension stated. */
  mySlice: Region,
  /** Region of the peer's tensor, for checks and explanations. */
  peerSlice: Region,
  taskId: TaskId,
  /** Element type in which the region travels; an end that holds another type casts. */
  wireDtype: DType
})
export type TransferOp = typeof TransferOp.Type
