// SPDX-License-Identifier: Apache-2.0
/**
 * What ranks read from each other's statements before changes move: who needs what, and whether changes are of what a
 * destination holds. Pure.
 *
 * Invariant: changes are sent only to who states the version of the sender's copies and, where both know it, the digest of all
 * changes that led there; and they are taken only by who still holds that.
 */
import { createHash } from "node:crypto"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import { type ReshardError, reshardError } from "@tensorferry/core/reshard/ReshardError"
import * as Result from "effect/Result"
import type { Arrival } from "./Arrivals.ts"
import { type ChangeRow, rowWords } from "./ChangeMoves.ts"
import type { Statement } from "./ChangePosts.ts"
import type { PartNeed } from "./ChangeScan.ts"

/** What was stated, by rank. */
export type Statements = ReadonlyMap<Rank, Statement>

/** Digests of all changes that led to what a rank holds, by the rank that sent or received them. */
export type Proofs = ReadonlyMap<Rank, string>

/** Numbers of a row of needs: task, part, need. */
export const needWords = 3

const needs: ReadonlyArray<PartNeed> = ["changes", "whole", "wholeIfChanged", "always"]
/** In the place of a part: all of them. */
const everyPart = 2 ** 32 - 1

const rowsOf = ({ head: { words }, rows }: Statement): ReadonlyArray<ReadonlyArray<number>> =>
  Array.from({ length: words === 0 ? 0 : rows.length / words }, (_, at) => [
    ...rows.subarray(at * words, (at + 1) * words)
  ])

/** What is known after a statement, of what was known before. */
export const follow = (before: string, bytes: Uint8Array): string =>
  createHash("sha256").update(before).update(bytes).digest("hex")

/** By sender, what of its regions a rank cannot take by its changes. */
export const needRows = (
  arrivals: ReadonlyMap<TransferOp, Arrival>,
  lost: ReadonlySet<string>
): ReadonlyMap<Rank, ReadonlyArray<number>> => {
  const rows = new Map<Rank, Array<number>>()
  for (const [{ paramName, peerRank, taskId }, { parts }] of arrivals) {
    const own = rows.get(peerRank) ?? []
    rows.set(peerRank, own)
    if (lost.has(paramName)) own.push(taskId, everyPart, needs.indexOf("whole"))
    for (const [part, { need }] of parts.entries()) {
      if (need !== "changes") own.push(taskId, part, needs.indexOf(need))
    }
  }
  return rows
}

/** What each receiver needs, and which of them hold what the copies are of. */
export const readNeeds = (
  heard: Statements,
  base: string | undefined,
  proofs: Proofs
): {
  readonly known: ReadonlySet<Rank>
  readonly needOf: (op: TransferOp, part: number) => PartNeed
} => {
  const stated = new Map<string, PartNeed>()
  const known = new Set<Rank>()
  for (const [peer, statement] of heard) {
    const { holds, proof } = statement.head
    if (base !== undefined && holds === base && (proof === null || proof === proofs.get(peer))) known.add(peer)
    if (statement.head.words !== needWords) continue
    for (const [task, part, need] of rowsOf(statement)) {
      stated.set(`${peer} ${task} ${part}`, needs[need!] ?? "whole")
    }
  }
  const needOf = ({ peerRank, taskId }: TransferOp, part: number): PartNeed => {
    const own = stated.get(`${peerRank} ${taskId} ${part}`)
    if (own === "always") return own
    const all = stated.get(`${peerRank} ${taskId} ${everyPart}`)
    return known.has(peerRank) ? (all ?? own ?? "changes") : "whole"
  }
  return { known, needOf }
}

/** What senders state of each part, or what cannot be. */
export const readRows = (
  rank: Rank,
  heard: Statements,
  recvOps: ReadonlyArray<TransferOp>
): Result.Result<ReadonlyMap<TransferOp, ReadonlyMap<number, ChangeRow>>, ReshardError> => {
  const byKey = new Map(recvOps.map((op) => [`${op.peerRank} ${op.taskId}`, op]))
  const rows = new Map<TransferOp, Map<number, ChangeRow>>()
  for (const [peer, statement] of heard) {
    for (const [task, part, count, positionBytes, list, after] of rowsOf(statement)) {
      const op = byKey.get(`${peer} ${task}`)
      if (statement.head.words !== rowWords || op === undefined) {
        return Result.fail(
          reshardError("ExchangeFailed", {
            rank,
            peer,
            detail: `Rank ${peer} states changes of task ${task}, which the plan does not have.`,
            remedy: "Plan again on all ranks, and run the same version on all."
          })
        )
      }
      const known = rows.get(op) ?? new Map<number, ChangeRow>()
      rows.set(op, known.set(part!, [task!, part!, count!, positionBytes!, list!, after!]))
    }
  }
  return Result.succeed(rows)
}

/** Refuses statements of another update. */
export const versionFault = (rank: Rank, heard: Statements, version: string): ReshardError | undefined => {
  const other = [...heard].find(([, { head }]) => head.version !== version)
  return other === undefined
    ? undefined
    : reshardError("InvalidPlan", {
        rank,
        peer: other[0],
        detail: `Rank ${other[0]} updates to version ${other[1].head.version}, this one to ${version}.`,
        remedy: "Call update for the same version on all ranks."
      })
}

/** Refuses changes of anything but what this rank holds. */
export const baseFault = (
  rank: Rank,
  heard: Statements,
  holds: string | null,
  proofs: Proofs
): ReshardError | undefined => {
  const other = [...heard].find(([peer, { head }]) => {
    const proof = proofs.get(peer)
    return head.holds !== null && (head.holds !== holds || (proof !== undefined && proof !== head.proof))
  })
  return other === undefined
    ? undefined
    : reshardError("ExchangeFailed", {
        rank,
        peer: other[0],
        isRetryable: true,
        detail: `Rank ${other[0]} sends changes of version ${other[1].head.holds}, this rank holds ${holds ?? "none"}.`,
        remedy: "Update again: everything is sent."
      })
}
