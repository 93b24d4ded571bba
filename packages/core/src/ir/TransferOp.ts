// SPDX-License-Identifier: Apache-2.0
/**
 * One end of one transfer, as a rank's plan lists it. Data only.
 */
import * as Schema from "effect/Schema"
import { DType } from "../base/DType.ts"
import { Rank, TaskId } from "../base/Ids.ts"
import { Natural } from "../base/Numbers.ts"
import { Region } from "../base/Region.ts"

/**
 * One region that a rank sends or receives: the parameter, the peer, where it lies on both ends, and the type on the wire.
 */
export const TransferOp = Schema.Struct({
  /** Local name on this rank. */
  paramName: Schema.String,
  peerRank: Rank,
  isSend: Schema.Boolean,
  /** Region of this rank's tensor, every dimension stated. */
  mySlice: Region,
  /** Region of the peer's tensor, for checks and explanations. */
  peerSlice: Region,
  /** Both ends of a transfer have one number, which no other transfer between the two has in this direction. */
  taskId: TaskId,
  /** Element type in which the region travels; an end that holds another type casts. */
  wireDtype: DType,
  /** What the peer's tensor holds, where that is not what travels. */
  peerDtype: Schema.optionalKey(DType),
  /** By dimension of the destination's region, the dimension of the source's; left out where they are the same. */
  axes: Schema.optionalKey(Schema.Array(Natural)),
  /**
   * Index into the plan's reductions. The reducing rank sends its result, or receives a contribution to it; other ranks send
   * their contributions.
   */
  reduction: Schema.optionalKey(Natural)
})
export type TransferOp = typeof TransferOp.Type
