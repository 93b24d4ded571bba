// SPDX-License-Identifier: Apache-2.0
/**
 * Mappings of other processes' memory files, made once and shared by all programs of a driver.
 *
 * Invariant: a mapping stays while a program uses it. One that no program has used since the preparation before the
 * latest is unmapped, so that memory which its owner gave up is not kept for ever.
 */

import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import * as Result from "effect/Result"
import type { Addon, NativeMemory } from "./Addon.ts"
import type { PublishedFile, PublishedProcess } from "./Publication.ts"

export interface PeerMap {
  readonly memory: NativeMemory
  users: number
}

export const makePeerMaps = (addon: Addon) => {
  const maps = new Map<string, PeerMap>()
  let idleBefore = new Set<string>()

  const close = (key: string): void => {
    const map = maps.get(key)
    maps.delete(key)
    if (map !== undefined) addon.closeMemory(map.memory.memory, undefined)
  }

  return {
    /** The mapping of a file of the process, with one user more; reaches so many bytes behind the file's offset. */
    acquire: (
      peer: Pick<PublishedProcess, "pid" | "processStart">,
      { descriptor, inode, byteOffset }: PublishedFile,
      byteLength: number
    ): Result.Result<PeerMap, NativeFailure> => {
      const key = `${peer.pid}:${peer.processStart}:${inode}`
      const byteEnd = byteOffset + byteLength
      const known = maps.get(key)
      if (known !== undefined && byteEnd <= known.memory.byteLength) {
        known.users += 1
        return Result.succeed(known)
      }
      const opened = addon.openMemory(
        peer.pid,
        BigInt(peer.processStart),
        descriptor,
        BigInt(inode),
        byteEnd,
        false,
        false
      )
      if (opened.code !== "Ok") return Result.fail(opened)
      const map = { memory: opened.value, users: 1 }
      maps.set(key, map)
      return Result.succeed(map)
    },
    release: (map: PeerMap): void => {
      map.users -= 1
    },
    /** Called after each preparation. */
    retire: (): void => {
      const idle = new Set<string>()
      for (const [key, map] of maps) {
        if (map.users > 0) continue
        if (idleBefore.has(key)) close(key)
        else idle.add(key)
      }
      idleBefore = idle
    },
    closeAll: (): void => {
      for (const key of [...maps.keys()]) close(key)
    }
  }
}

export type PeerMaps = ReturnType<typeof makePeerMaps>
