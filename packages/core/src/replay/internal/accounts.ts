// SPDX-License-Identifier: Apache-2.0
/** What a replay pipeline has spent and done, added up for its report. */
import type { ReplayPipelineReport } from "../ReplayPipelineReport.ts"

export interface PipelineAccounts {
  readonly packed: (nanos: bigint, redrawn: number) => void
  readonly submitted: (seconds: number) => void
  readonly copied: (seconds: number) => void
  readonly stalled: (nanos: bigint) => void
  readonly sampled: () => void
  readonly report: () => ReplayPipelineReport
}

const secondsOf = (nanos: bigint): number => Number(nanos) / 1e9

/** Accounts of batches of so many rows, each of so many bytes. */
export const makeAccounts = (rows: number, rowBytes: number): PipelineAccounts => {
  const sums = { batches: 0, stall: 0n, pack: 0n, submit: 0, copy: 0, redrawn: 0 }
  return {
    packed: (nanos, redrawn) => {
      sums.pack += nanos
      sums.redrawn += redrawn
    },
    submitted: (seconds) => {
      sums.submit += seconds
    },
    copied: (seconds) => {
      sums.copy += seconds
    },
    stalled: (nanos) => {
      sums.stall += nanos
    },
    sampled: () => {
      sums.batches += 1
    },
    report: () => ({
      batches: sums.batches,
      rows: sums.batches * rows,
      bytes: sums.batches * rows * rowBytes,
      stallSeconds: secondsOf(sums.stall),
      packSeconds: secondsOf(sums.pack),
      submitSeconds: sums.submit,
      copySeconds: sums.copy,
      redrawn: sums.redrawn
    })
  }
}
