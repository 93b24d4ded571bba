// SPDX-License-Identifier: Apache-2.0
/**
 * The sender's half of a preparation: says for every peer where the parts lie that it will fetch.
 *
 * Invariant: every storage is listed once per peer, whole; parts refer to it by index.
 */

import type { Message } from "@tensorferry/core/ir/Message"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import type { Checked, DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import { checkMessages } from "@tensorferry/native/driver/MessageChecks"
import type { PublishedFlags } from "@tensorferry/native/driver/PeerFlags"
import { listByPeer } from "@tensorferry/native/driver/PeerListing"
import type { NativeIdentity } from "./Addon.ts"
import { HostRegion } from "./HostRegion.ts"
import type { PeerList, PublishedFile, PublishedMemory, PublishedProcess } from "./Publication.ts"

const fileOf = ({ sharing, file }: Storage): PublishedFile | undefined => {
  const place = (sharing instanceof HostRegion ? sharing.origin : undefined) ?? file
  const inode = Number(place?.inode)
  if (place === undefined || !Number.isSafeInteger(inode)) return undefined
  const owner = place === file ? { owner: { pid: file.pid, processStart: file.processStart } } : {}
  return { descriptor: place.descriptor, inode, byteOffset: place.byteOffset, ...owner }
}

/** Fails with InvalidProgram, naming the task, for memory that was freed or is not on the host. */
export const checkHostMessages = (
  errors: DriverErrors,
  worldSize: number,
  messages: ReadonlyArray<Message>
): Checked<void> =>
  checkMessages(messages, {
    errors,
    worldSize,
    partFault: ({ device }) => (device.family === "cpu" ? undefined : "A part does not lie in host memory."),
    remedy: "Keep the storage open until the transfer is done, on the host, and name ranks of the group."
  })

export const publishedProcess = (identity: NativeIdentity, flags?: PublishedFlags): PublishedProcess => ({
  pid: identity.pid,
  processStart: String(identity.processStart),
  space: identity.space,
  cookieAddress: String(identity.cookieAddress),
  cookie: Buffer.from(identity.cookie).toString("hex"),
  ...(flags === undefined ? {} : { flags })
})

/** What each peer needs to know, by rank: what it will fetch. */
export const publishedLists = (messages: ReadonlyArray<Message>): ReadonlyMap<number, PeerList> =>
  listByPeer(
    messages.filter(({ direction }) => direction === "send"),
    () => ({
      describe: (storage): PublishedMemory => ({
        address: Number(storage.address),
        byteLength: storage.byteLength,
        file: fileOf(storage)
      }),
      finish: (listed): PeerList => listed
    })
  )
