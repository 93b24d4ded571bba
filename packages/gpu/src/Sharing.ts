// SPDX-License-Identifier: Apache-2.0
/**
 * Which blocks the ranks of a job may have mapped, and how they come to let go of them.
 *
 * Invariant: a block that was published to peers stays until every rank has said that it has carried out a publication in which
 * the block was revoked. Revocations are repeated until then, since a rank may have been interrupted while it read one.
 */
import type { Block, Sharing } from "./Block.ts"

/** An empty record. `DeviceMemory.sharingWith` keeps one for each group and driver. */
export const makeSharing = (): Sharing => {
  /** Publication that first revoked each block: undefined while it is in use, infinity where none has done so yet. */
  const blocks = new Map<Block, number | undefined>()
  let beginnings = 0

  const letGo = (block: Block): void => {
    blocks.delete(block)
    block.sharings.delete(sharing)
    block.reclaim()
  }

  const sharing: Sharing = {
    share: (block) => {
      if (blocks.has(block)) return
      blocks.set(block, undefined)
      block.sharings.add(sharing)
    },
    revoked: (publication) => {
      const numbers: Array<number> = []
      for (const [block, revokedIn] of blocks) {
        if (revokedIn === undefined && (!block.isEmpty() || block.isSpare())) continue
        block.retire()
        blocks.set(block, Math.min(revokedIn ?? publication, publication))
        numbers.push(block.number)
      }
      return numbers
    },
    settle: (publication) => {
      for (const [block, revokedIn] of blocks) {
        if (revokedIn !== undefined && revokedIn <= publication) letGo(block)
      }
    },
    restart: () => {
      for (const [block, revokedIn] of blocks) if (revokedIn !== undefined) blocks.set(block, Number.POSITIVE_INFINITY)
      const beginning = ++beginnings
      return () => {
        if (beginning === beginnings) for (const block of [...blocks.keys()]) letGo(block)
      }
    },
    isEmpty: () => blocks.size === 0
  }
  return sharing
}
