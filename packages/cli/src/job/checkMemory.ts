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
import { DeviceShare } from "../device/jobMemory.ts"
import { systemFiles } from "../machine/SystemFiles.ts"
import { formatBytes } from "../text/Table.ts"
import { clockName } from "./Observed.ts"

const Share = Schema.Struct({
  /** Ranks of one host share its memory. */
  host: Schema.String,
  /** Bytes of tensors and buffers. */
  needed: Schema.Finite,
  /** Bytes that the rank's process may still use, swap included. */
  free: Schema.Finite,
  /** Where tensors lie on a device. Ranks of one device share its memory. */
  device: Schema.optionalKey(DeviceShare)
})
export type Share = typeof Share.Type

/** Memory that some ranks share. */
interface Place {
  readonly key: string
  readonly words: string
  readonly rank: number
  readonly needed: number
  readonly free: number
  /** Whether tensors lie here, and not only what passes. */
  readonly isOfTensors: boolean
}

const placesOf = (shares: ReadonlyArray<Share>): ReadonlyArray<Place> =>
  shares.flatMap(({ device, free, host, needed }, rank): ReadonlyArray<Place> => {
    const own = { key: host, words: "one host", rank, needed, free, isOfTensors: device === undefined }
    if (device === undefined) return [own]
    const { id, name } = device
    const there = { rank, needed: device.needed, free: device.free, isOfTensors: true }
    return [own, { key: `${host} ${id}`, words: `device ${name}`, ...there }]
  })

/** The first ranks of many. */
const formatRanks = (ranks: ReadonlyArray<number>): string =>
  `${ranks.slice(0, 8).join(", ")}${ranks.length > 8 ? ` and ${ranks.length - 8} more` : ""}`

/** In words, the first host or device that has too little, or where tensors take more than the limit. */
export const shortage = (
  shares: ReadonlyArray<Share>,
  limit: number = Number.POSITIVE_INFINITY
): string | undefined => {
  for (const [, own] of Map.groupBy(placesOf(shares), ({ key }) => key)) {
    const { isOfTensors, words } = own[0]!
    const needed = own.reduce((sum, share) => sum + share.needed, 0)
    const free = Math.min(...own.map((share) => share.free))
    const allowed = isOfTensors ? limit : Number.POSITIVE_INFINITY
    if (needed <= Math.min(free, allowed)) continue
    const ranks = own.map(({ rank }) => rank)
    const many = ranks.length === 1 ? `Rank ${ranks[0]} needs` : `Ranks ${formatRanks(ranks)} need`
    const what = `${many} ${formatBytes(needed)} of memory for ${isOfTensors ? "tensors" : "buffers"} on ${words}`
    return needed <= free
      ? `${what}, and the limit is ${formatBytes(limit)}.`
      : `${what}, and ${formatBytes(free)} are free there.`
  }
  return undefined
}

const ownFree = (): number => {
  const swap = /^SwapFree:\s+(\d+) kB$/m.exec(systemFiles().read("/proc/meminfo") ?? "")
  return process.availableMemory() + 1024 * Number(swap?.[1] ?? 0)
}

/** What a rank needs, and what it may take. */
export interface MemoryNeeds {
  /** Bytes of the host. */
  readonly needed: number
  readonly device?: DeviceShare | undefined
  /** Most bytes for tensors of all ranks of one host or device. */
  readonly limit?: number | undefined
}

/** Fails on every rank with NotEnoughMemory where a host or a device has too little. */
export const checkMemory = Effect.fnUntraced(function* (
  group: ProcessGroupShape,
  { device, limit, needed }: MemoryNeeds,
  free: () => number = ownFree
) {
  const own: Share = { host: clockName(), needed, free: free(), ...(device === undefined ? {} : { device }) }
  const short = shortage(yield* exchange(group, "memory", Share, own), limit)
  if (short === undefined) return
  return yield* modelError("NotEnoughMemory", {
    rank: group.rank,
    detail: short,
    remedy: `Use more ${device === undefined ? "hosts" : "devices"}, or smaller layouts; tensorferry plan shows what each rank needs.`
  }) satisfies Effect.Effect<never, ModelError>
})
