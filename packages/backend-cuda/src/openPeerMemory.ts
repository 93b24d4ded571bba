// SPDX-License-Identifier: Apache-2.0
/**
 * How this process gets at the memory of another rank: within one process by its addresses, on one host by mapping it.
 *
 * Invariant: what cannot work is said in words before it is tried, and nothing is opened that the flow does not need.
 */

import type { Gpu } from "@tensorferry/gpu/Gpu"
import type { Flow } from "@tensorferry/native/driver/Flows"
import type { PeerList, PublishedBlock } from "@tensorferry/native/driver/PeerList"
import { isSameHost, isSameProcess } from "@tensorferry/native/driver/ProcessIdentity"
import * as Result from "effect/Result"
import type { Mapping, Mappings } from "./Mappings.ts"
import type { PublishedSettings } from "./Publication.ts"
import type { Reached } from "./planning/route.ts"

/** What a peer published, as far as it concerns this rank. */
export interface Peer {
  readonly settings: PublishedSettings
  readonly list: PeerList
}

export interface PeerMemory {
  readonly reached: Reached
  /** By number of the block in the peer's list. */
  readonly mappings: ReadonlyMap<number, Mapping>
}

const unreached = (why: string): PeerMemory => ({ reached: { _tag: "Unreached", why }, mappings: new Map() })

/** Blocks and devices under the peer's parts of a flow; undefined where the list contradicts itself. */
const placesOf = (flow: Flow, { blocks, memories }: PeerList) => {
  const numbers = new Set<number>()
  const ordinals = new Set<number>()
  for (const { theirs } of flow.pairs) {
    const memory = memories[theirs.memory]
    const block = memory === undefined ? undefined : blocks[memory.block]
    if (memory === undefined || block === undefined) return undefined
    const isInside =
      memory.address >= block.address && memory.address + memory.byteLength <= block.address + block.byteLength
    if (!isInside) return undefined
    numbers.add(memory.block)
    ordinals.add(memory.ordinal)
  }
  return { numbers, ordinals }
}

/** Opens the memory under the peer's parts of a flow, or says why that cannot be. */
export const openPeerMemory = (
  gpu: Gpu,
  mappings: Mappings,
  self: PublishedSettings,
  peer: Peer,
  flow: Flow
): PeerMemory => {
  const { settings, list } = peer
  const places = placesOf(flow, list)
  if (places === undefined) return unreached("the peer's list of memories contradicts itself")
  const opened = (
    open: (block: PublishedBlock) => Result.Result<Mapping, string>
  ): Result.Result<PeerMemory["mappings"], string> => {
    const found = new Map<number, Mapping>()
    for (const number of places.numbers) {
      const mapping = open(list.blocks[number]!)
      if (Result.isFailure(mapping)) return Result.fail(mapping.failure)
      found.set(number, mapping.success)
    }
    return Result.succeed(found)
  }
  const answer = (
    name: "same-process" | "ipc",
    reason: string,
    found: Result.Result<PeerMemory["mappings"], string>
  ) =>
    Result.isFailure(found)
      ? unreached(found.failure)
      : { reached: { _tag: "Reached" as const, name, reason }, mappings: found.success }

  if (isSameProcess(self.process, settings.process)) {
    for (const ordinal of places.ordinals) {
      const enabled = gpu.enablePeerAccess(ordinal)
      if (Result.isFailure(enabled)) return unreached(enabled.failure)
    }
    const within = (block: PublishedBlock) => Result.succeed(mappings.within(settings.process, block))
    return answer("same-process", "the peer is a rank of this process", opened(within))
  }
  if (!isSameHost(self.process, settings.process)) return unreached("the peer runs on another host")
  const ordinal = gpu.ordinalOf(settings.deviceUuid)
  if (ordinal !== undefined && ordinal !== gpu.ordinal) {
    const can = gpu.addon.canAccessPeer(gpu.libraries, gpu.ordinal, ordinal)
    if (can.code === "Ok" && !can.value)
      return unreached(`devices ${gpu.ordinal} and ${ordinal} cannot access each other`)
  }
  return answer(
    "ipc",
    "the peer's memory is mapped",
    opened((block) => mappings.open(settings.process, block))
  )
}
