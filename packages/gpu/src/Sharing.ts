/**
 * Which blocks the ranks of a job may have mapped, and how they come to let go of them.
 *
 * Invariant: a block that was published to peers stays until every rank has said that it has carried out a publication in which
 * the block was revoked. Revocations are repeated until then, since a rank may have been interrupted while it read one.
 */
import type { Block } from "./Block.ts"

export interface Sharing {
  /** The block is about to be published to peers. */
  readonly share: (block: Block) => void
  /** Numbers of the blocks that peers must let go of, for this publication. */
  readonly revoked: (publication: number) => ReadonlyArray<number>
  /** All ranks have carried out what publications up to this one said. */
  readonly settle: (publication: number) => void
  /**
   * A driver begins: publications are counted from the start, and what was published must be published again. The function that it gives back
   * is for when all ranks have closed their mappings: unless another driver has begun, nobody knows any block any more.
   */
  readonly restart: () => () => void
  readonly isEmpty: () => boolean
}

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
