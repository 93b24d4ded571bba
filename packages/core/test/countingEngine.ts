// SPDX-License-Identifier: Apache-2.0
/** A reference engine that tells what was asked of it. */

import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Layer from "effect/Layer"
import { TensorEngine } from "../src/service/TensorEngine.ts"
import type { Move } from "../src/tensor/Tensor.ts"

export interface EngineCalls {
  allocations: number
  /** Every batch, as the very list that was passed. */
  readonly batches: Array<ReadonlyArray<Move>>
}

/** One engine per rank that builds the layer; `calls` gets an entry for each, in the order of ranks. */
export const countingEngine = (calls: Array<EngineCalls>): Layer.Layer<TensorEngine> =>
  Layer.sync(TensorEngine, () => {
    const engine = ReferenceEngine.make()
    const own: EngineCalls = { allocations: 0, batches: [] }
    calls.push(own)
    return {
      ...engine,
      allocate: (...request) => {
        own.allocations += 1
        return engine.allocate(...request)
      },
      copy: (moves) => {
        own.batches.push(moves)
        return engine.copy(moves)
      }
    }
  })
