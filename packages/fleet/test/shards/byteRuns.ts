// SPDX-License-Identifier: Apache-2.0
/** Where the bytes of a rank's tensor are in the whole one: for tests that fill shards byte by byte. */
import { bitsOf } from "@tensorferry/core/base/DType"
import type { TensorShare } from "../../src/shards/Shares.ts"

/** Bytes of a tensor on this rank, and where they are in the whole tensor. */
export interface ByteRun {
  readonly local: number
  readonly global: number
  readonly bytes: number
}

/** The bytes of intervals, in the order in which they lie on this rank. */
export function* byteRuns(share: TensorShare, intervals: TensorShare["held"]): Generator<ByteRun> {
  const { shape, dim, dtype, localLength } = share
  const inner = shape.slice(dim + 1).reduce((product, length) => product * length, bitsOf(dtype) / 8)
  const outer = shape.slice(0, dim).reduce((product, length) => product * length, 1)
  const length = shape[dim] ?? 1
  for (let at = 0; at < outer; at++) {
    for (const { local, global } of intervals) {
      const bytes = (global[1] - global[0]) * inner
      if (bytes > 0) {
        yield { local: (at * localLength + local) * inner, global: (at * length + global[0]) * inner, bytes }
      }
    }
  }
}
