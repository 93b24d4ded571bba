// SPDX-License-Identifier: Apache-2.0
/**
 * Remembers batches that were checked, so that the same batch costs a comparison the next time. Refits run the same
 * copies over and over, and for small tensors the checks cost more than the copies.
 *
 * Invariant: a batch is known again only while its list holds the very same moves and no region of this process was freed
 * since; moves and tensors are values that nobody changes. A list that its owner drops is forgotten with its batch.
 */
import type { Move } from "@tensorferry/core/tensor/Tensor"
import type { CheckedBatch } from "./checks.ts"
import { HostRegion } from "./HostRegion.ts"

/** Below this, remembering costs as much as checking. */
const fewest = 64

interface Known {
  readonly moves: ReadonlyArray<Move>
  readonly batch: CheckedBatch
  readonly freedRegions: number
}

const areSame = (a: ReadonlyArray<Move>, b: ReadonlyArray<Move>): boolean => {
  if (a.length !== b.length) return false
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false
  return true
}

export const makeBatchCache = () => {
  const batches = new WeakMap<ReadonlyArray<Move>, Known>()
  return {
    get: (moves: ReadonlyArray<Move>): CheckedBatch | undefined => {
      const known = moves.length < fewest ? undefined : batches.get(moves)
      if (known === undefined || known.freedRegions !== HostRegion.freed) return undefined
      return areSame(known.moves, moves) ? known.batch : undefined
    },
    /** For a batch that went through all checks, also those of the addon. */
    set: (moves: ReadonlyArray<Move>, batch: CheckedBatch): void => {
      if (moves.length < fewest || !batch.isOfRegions) return
      batches.set(moves, { moves: [...moves], batch, freedRegions: HostRegion.freed })
    }
  }
}
