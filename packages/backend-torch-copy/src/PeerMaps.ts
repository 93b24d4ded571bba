// SPDX-License-Identifier: Apache-2.0
/**
 * Mappings of other processes' memory files, made once and shared by all programs of a driver.
 *
 * Invariant: a mapping stays while a program uses it, also where a longer one of the same file took its place. One that no
 * program has used since the preparation before the latest is unmapped, so that memory which its owner gave up is not kept
 * for ever.
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
  /** Of each file the one that new programs share. */
  const latest = new Map<string, PeerMap>()
  const all = new Set<PeerMap>()
  let idleBefore: ReadonlySet<PeerMap> = new Set()

  const close = (map: PeerMap): void => {
    all.delete(map)
    for (const [key, known] of latest) if (known === map) latest.delete(key)
    addon.closeMemory(map.memory.memory, undefined)
  }

  /** What was missing of the file once reads as zeros for as long as the mapping lives. */
  const isCut = ({ memory }: PeerMap): boolean => {
    const cut = addon.isMemoryCut(memory.memory)
    return cut.code === "Ok" && cut.value
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
      const known = latest.get(key)
      if (known !== undefined && byteEnd <= known.memory.byteLength && !isCut(known)) {
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
      latest.set(key, map)
      all.add(map)
      return Result.succeed(map)
    },
    release: (map: PeerMap): void => {
      map.users -= 1
    },
    /** Called after each preparation. */
    retire: (): void => {
      const idle = new Set([...all].filter(({ users }) => users === 0))
      for (const map of idle) {
        if (!idleBefore.has(map)) continue
        close(map)
        idle.delete(map)
      }
      idleBefore = idle
    },
    closeAll: (): void => {
      for (const map of [...all]) close(map)
    }
  }
}

export type PeerMaps = ReturnType<typeof makePeerMaps>
