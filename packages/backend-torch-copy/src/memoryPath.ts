// SPDX-License-Identifier: Apache-2.0
/**
 * How this process gets at the memory of another: the ladder shared map, then process_vm_readv. Where neither leads there,
 * the peer is asked to send (see tcp/).
 *
 * Invariant: a step is taken only after it has been shown to lead to the process that published, and the step taken and
 * why the better ones were not is said in words.
 */
import { cpu } from "@tensorferry/core/tensor/Device"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import * as Result from "effect/Result"
import type { Addon, NativeIdentity } from "./Addon.ts"
import type { PeerMap, PeerMaps } from "./PeerMaps.ts"
import type { PublishedMemory, PublishedProcess } from "./Publication.ts"

export const pathNames = ["shared-map", "process-vm-readv", "tcp"] as const
export type PathName = (typeof pathNames)[number]

/** A way to one storage of a peer. */
export interface MemoryPath {
  readonly path: Exclude<PathName, "tcp">
  readonly reason: string
  /** The peer's storage, as far as this process can name its bytes. */
  readonly storage: Storage
  /** Process to read from; 0 where the memory is mapped. */
  readonly pid: number
  readonly map: PeerMap | undefined
}

/** The ways to the memory of one peer. */
export interface MemoryPaths {
  /** The peer's loopback is this process's, as far as can be seen from here. */
  readonly isSameHost: boolean
  /** The best way to the memory, or why there is none. */
  readonly pathTo: (published: PublishedMemory) => Result.Result<MemoryPath, string>
}

/** Asks whether `processStart` still names the process, so that a reused number is noticed. */
export const isAlive = (addon: Addon, peer: { readonly pid: number; readonly processStart: string }): boolean => {
  const start = addon.processStart(peer.pid)
  return start.code === "Ok" && String(start.value) === peer.processStart
}

/** The first word of a process space names the boot of the machine. */
const bootOf = (space: string): string | undefined => space.split(" ")[0]

const foreignStorage = (address: bigint, byteLength: number): Storage =>
  makeStorage({ device: cpu, address, byteLength, release: () => {} })

/** Looks for the ways to a peer's memory when they are asked for. */
export const makeMemoryPaths = (
  addon: Addon,
  maps: PeerMaps,
  self: NativeIdentity,
  forbid: ReadonlySet<PathName>,
  peer: PublishedProcess
): MemoryPaths => {
  const isNear = peer.space === self.space
  const elsewhere = "the peer runs on another host or in another container"

  const readable = (): string | undefined => {
    if (forbid.has("process-vm-readv")) return "the options forbid it"
    if (!isNear) return elsewhere
    const cookie = new Uint8Array(peer.cookie.length / 2)
    const read = addon.readProcess(peer.pid, BigInt(peer.cookieAddress), cookie)
    if (read.code !== "Ok") return read.detail
    return Buffer.from(cookie).toString("hex") === peer.cookie
      ? undefined
      : "the process number belongs to another process"
  }
  let unreadable: { readonly why: string | undefined } | undefined

  const map = ({ byteLength, file }: PublishedMemory): Result.Result<PeerMap, string> => {
    if (forbid.has("shared-map")) return Result.fail("the options forbid it")
    if (!isNear) return Result.fail(elsewhere)
    if (file === undefined) return Result.fail("the memory was not allocated to be shared")
    return Result.mapError(maps.acquire(file.owner ?? peer, file, byteLength), (failure) => failure.detail)
  }

  return {
    isSameHost: bootOf(peer.space) === bootOf(self.space),
    pathTo: (published) => {
      const mapped = map(published)
      if (Result.isSuccess(mapped) && published.file !== undefined) {
        const address = mapped.success.memory.address + BigInt(published.file.byteOffset)
        return Result.succeed({
          path: "shared-map",
          reason:
            published.file.owner === undefined
              ? "the peer's memory file is mapped"
              : "the memory file behind the peer's memory is mapped",
          storage: foreignStorage(address, published.byteLength),
          pid: 0,
          map: mapped.success
        })
      }
      const notMapped = `shared-map: ${Result.isFailure(mapped) ? mapped.failure : "no file"}`
      unreadable ??= { why: readable() }
      if (unreadable.why !== undefined) return Result.fail(`${notMapped}; process-vm-readv: ${unreadable.why}`)
      return Result.succeed({
        path: "process-vm-readv",
        reason: notMapped,
        storage: foreignStorage(BigInt(published.address), published.byteLength),
        pid: peer.pid,
        map: undefined
      })
    }
  }
}
