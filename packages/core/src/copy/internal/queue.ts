// SPDX-License-Identifier: Apache-2.0
/**
 * The operations that wait for the next run.
 *
 * Invariant: a list that was given whole, and is all there is, is taken as it is, so that a run knows it again by itself.
 */
import type { CopyOp } from "../../service/CopyService.ts"

export interface CopyQueue {
  readonly add: (op: CopyOp) => void
  readonly addAll: (ops: ReadonlyArray<CopyOp>) => void
  /** Everything, in the order in which it came; the queue is empty afterwards. */
  readonly take: () => ReadonlyArray<CopyOp>
}

export const makeQueue = (): CopyQueue => {
  let given: Array<ReadonlyArray<CopyOp>> = []
  /** Operations queued one by one since the last list; the queue is the lists and then these. */
  let added: Array<CopyOp> = []
  return {
    add: (op) => {
      added.push(op)
    },
    addAll: (ops) => {
      given.push(added, ops)
      added = []
    },
    take: () => {
      const taken = [...given, added].filter((list) => list.length > 0)
      given = []
      added = []
      return taken.length === 1 ? taken[0]! : taken.flat()
    }
  }
}
