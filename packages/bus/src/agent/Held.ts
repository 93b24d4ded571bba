// SPDX-License-Identifier: Apache-2.0
/**
 * What an agent holds of a pair, and of a batch for its client from the moment that it opens the tensors: whose memory it
 * is, with whom it was dealt, and how it ends.
 */
import type { CopyService } from "@tensorferry/core/service/CopyService"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type * as Context from "effect/Context"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type * as Semaphore from "effect/Semaphore"
import type { Owner } from "../liveness.ts"
import type { Entries } from "../store/KeyValueStore.ts"
import type { Fate } from "./Fate.ts"
import type { PairMembers } from "./Registration.ts"

export interface Pair {
  readonly name: string
  readonly members: PairMembers
  /** This agent's rank in the pair's group, and its side. */
  readonly rank: number
  readonly side: 0 | 1
  readonly group: ProcessGroupShape
  readonly services: Context.Context<CopyService | TensorEngine>
  /** One transfer of the group at a time. */
  readonly turn: Semaphore.Semaphore
  readonly scope: Scope.Closeable
  /** Transfers under way, ended before anything else of the pair is. */
  readonly transfers: Scope.Closeable
  readonly fate: Fate
  /** What this agent holds of batches that the pair carries. */
  readonly claims: Set<Claim>
  /** How many registrations of batches this agent began. */
  registered: number
  /** Of the first rank: the last deal of each batch, as far as registrations of before may still stand. */
  readonly dealt: Map<string, Deal>
  /** What other agents gave up, as the store has it. */
  marks: Entries
  /** Keys of what is over, oldest first: a rank that is late may still have to read them. */
  readonly retired: Array<string>
}

/** One registration of a batch by all ranks of its pair: no other has this id, whatever the name of the batch. */
export const Deal = Schema.Struct({
  id: Schema.String,
  /** The registration of each rank, by rank of the pair's group. */
  tokens: Schema.Array(Schema.String)
})
export type Deal = typeof Deal.Type

export interface Claim {
  readonly batch: string
  /** Whose group carries the batch. */
  readonly pair: Pair
  /** All pairs whose layouts the batch uses. */
  readonly pairs: ReadonlyArray<Pair>
  readonly fate: Fate
  /** Clients whose end is noticed. */
  owners: ReadonlyArray<Owner>
  /** Known once all ranks registered. */
  deal: Deal | undefined
  /** Why this agent gives it up, as others are to know it. */
  why: string
  isMarked: boolean
  isDropping: boolean
}

/** The prefix of the store's keys under which the members of a pair register, each by its agent's rank. */
export const memberPrefix = (pair: string): string => `pair/${encodeURIComponent(pair)}/`
