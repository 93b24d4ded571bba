// SPDX-License-Identifier: Apache-2.0
/** What a replay pipeline has done so far, in batches and seconds. */
export interface ReplayPipelineReport {
  /** Sampled so far. */
  readonly batches: number
  readonly rows: number
  readonly bytes: number
  /** The learner waited for batches. */
  readonly stallSeconds: number
  /** From request to answer. */
  readonly packSeconds: number
  readonly submitSeconds: number
  /** On the device where it keeps time, else from the submission until the copy was seen to have ended. */
  readonly copySeconds: number
  /** Rows that were overwritten while they were packed, and drawn again. */
  readonly redrawn: number
}
