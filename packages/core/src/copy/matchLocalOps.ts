// SPDX-License-Identifier: Apache-2.0
/**
 * Pairs the two halves of transfers that a rank makes with itself, so that they become plain copies. Pure.
 */
import type { Part, TaskId } from "../base/Ids.ts"

/** Anything that names its transfer; `part` numbers the tensors of one task and is 0 by default. */
export interface HasTaskId {
  readonly taskId: TaskId | undefined
  readonly part?: Part
}

/** Pairs in the order of the sends, and what has no partner. */
export interface LocalMatch<S, R> {
  readonly pairs: ReadonlyArray<{ readonly send: S; readonly recv: R }>
  readonly unmatchedSends: ReadonlyArray<S>
  readonly unmatchedRecvs: ReadonlyArray<R>
  /** Second and later operations with an identity already taken on their side. */
  readonly duplicates: ReadonlyArray<S | R>
}

/**
 * Pairs by `(taskId, part)`; operations without a task id pair in order among themselves. Pairs come in the order of the
 * sends.
 */
export const matchLocalOpsByTaskId = <S extends HasTaskId, R extends HasTaskId>(
  sends: ReadonlyArray<S>,
  recvs: ReadonlyArray<R>
): LocalMatch<S, R> => {
  const duplicates: Array<S | R> = []
  const keyed = <A extends S | R>(ops: ReadonlyArray<A>): ReadonlyMap<string, A> => {
    const map = new Map<string, A>()
    let unnamed = 0
    for (const op of ops) {
      const key = op.taskId === undefined ? `#${unnamed++}` : `${op.taskId}/${op.part ?? 0}`
      if (map.has(key)) duplicates.push(op)
      else map.set(key, op)
    }
    return map
  }
  const bySend = keyed(sends)
  const byRecv = keyed(recvs)
  const pairs: Array<{ send: S; recv: R }> = []
  const unmatchedSends: Array<S> = []
  for (const [key, send] of bySend) {
    const recv = byRecv.get(key)
    if (recv === undefined) unmatchedSends.push(send)
    else pairs.push({ send, recv })
  }
  const unmatchedRecvs = [...byRecv].filter(([key]) => !bySend.has(key)).map(([, recv]) => recv)
  return { pairs, unmatchedSends, unmatchedRecvs, duplicates }
}
