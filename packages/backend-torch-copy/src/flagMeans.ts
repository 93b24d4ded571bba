// SPDX-License-Identifier: Apache-2.0
/**
 * What this backend lends for flags between ranks: memory files and doorbells of its addon.
 *
 * Invariant: files of other processes are mapped copy-on-write, so nothing done here reaches them.
 */
import type { FlagMeans } from "@tensorferry/native/driver/PeerFlags"
import { type NativePool, runJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Addon, NativeMemory } from "./Addon.ts"

const closing = (addon: Addon, { memory, buffer }: NativeMemory) => ({
  buffer: buffer!,
  close: () => void addon.closeMemory(memory, buffer)
})

/** Flags over the memory files of an addon; the pool's threads make them. */
export const flagMeans = (addon: Addon, pool: NativePool): FlagMeans => ({
  bells: addon,
  create: (byteLength) =>
    Effect.map(
      runJob<NativeMemory>(
        addon,
        (done) => addon.startCreateMemory(pool, byteLength, done),
        () => {}
      ),
      (made) => ({ ...closing(addon, made), descriptor: made.descriptor, inode: made.inode })
    ),
  open: ({ pid, processStart }, descriptor, inode, byteLength) => {
    const opened = addon.openMemory(pid, BigInt(processStart), descriptor, inode, byteLength, true, false)
    return opened.code === "Ok" ? Result.succeed(closing(addon, opened.value)) : Result.fail(opened)
  }
})
