// SPDX-License-Identifier: Apache-2.0
/**
 * Whether the tensors of a job fit into memory, asked by all ranks together before any of them takes or loads anything: a
 * host that runs out of memory ends a process, and nobody says which tensor it was.
 */
import { exchange } from "@tensorferry/core/group/Exchange"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { systemFiles } from "../machine/SystemFiles.ts"
import { formatBytes } from "../text/Table.ts"
import { clockName } from "./Observed.ts"

const Share = Schema.Struct({
  /** Ranks of one host share its memory. */
  host: Schema.String,
  /** Bytes of tensors and buffers. */
  needed: Schema.Finite,
  /** Bytes that the rank's process may still use, swap included. */
  free: Schema.Finite
})
export type Share = typeof Share.Type

/** The first ranks of many. */
const formatRanks = (ranks: ReadonlyArray<number>): string =>
  `${ranks.slice(0, 8).join(", ")}${ranks.length > 8 ? ` and ${ranks.length - 8} more` : ""}`

/** In words, the first host that has too little. */
export const shortage = (shares: ReadonlyArray<Share>): string | undefined => {
  for (const [, own] of Map.groupBy(
    shares.map((share, rank) => ({ ...share, rank })),
    ({ host }) => host
  )) {
    const needed = own.reduce((sum, share) => sum + share.needed, 0)
    const free = Math.min(...own.map((share) => share.free))
    if (needed <= free) continue
    const ranks = own.map(({ rank }) => rank)
    const many = ranks.length === 1 ? `Rank ${ranks[0]} needs` : `Ranks ${formatRanks(ranks)} need`
    return `${many} ${formatBytes(needed)} of memory for tensors on one host, and ${formatBytes(free)} are free there.`
  }
  return undefined
}

const ownFree = (): number => {
  const swap = /^SwapFree:\s+(\d+) kB$/m.exec(systemFiles().read("/proc/meminfo") ?? "")
  return process.availableMemory() + 1024 * Number(swap?.[1] ?? 0)
}

/** Fails on every rank with NotEnoughMemory where a host has too little. */
export const checkMemory = Effect.fnUntraced(function* (
  group: ProcessGroupShape,
  needed: number,
  free: () => number = ownFree
) {
  const short = shortage(yield* exchange(group, "memory", Share, { host: clockName(), needed, free: free() }))
  if (short === undefined) return
  return yield* modelError("NotEnoughMemory", {
    rank: group.rank,
    detail: short,
    remedy: "Use more hosts, or smaller layouts; tensorferry plan shows what each rank needs."
  }) satisfies Effect.Effect<never, ModelError>
})
