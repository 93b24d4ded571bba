// SPDX-License-Identifier: Apache-2.0
/**
 * The paths that a program reports: one entry for each peer.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import type { PeerPath } from "@tensorferry/core/service/CopyDriver"

/** One path, and why, to all peers of some messages. */
export const onePath = (messages: ReadonlyArray<Message>, path: string, reason: string): ReadonlyArray<PeerPath> =>
  [...new Set(messages.map(({ peer }) => peer))].map((peer) => ({ peer, path, reason }))

/** What goes to a peer and comes from it by different paths is one entry, by number of the peer. */
export const mergePaths = (paths: ReadonlyArray<PeerPath>): ReadonlyArray<PeerPath> => {
  const merged = new Map<number, PeerPath>()
  for (const { peer, path, reason } of paths) {
    const known = merged.get(peer)
    if (known === undefined) merged.set(peer, { peer, path, reason })
    else if (known.path !== path) {
      merged.set(peer, { peer, path: `${known.path}+${path}`, reason: `${known.reason}; ${reason}` })
    }
  }
  return [...merged.values()].sort((a, b) => a.peer - b.peer)
}
