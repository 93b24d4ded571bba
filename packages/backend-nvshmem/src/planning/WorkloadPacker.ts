// SPDX-License-Identifier: Apache-2.0
/**
 * Packs what one PE sends to another into batches, each of which fills a slot and travels as one message.
 *
 * Invariants: every item is in exactly one batch; no batch is longer than the limit, unless it is one item that is; a pure
 * function of sizes, so both ends pack alike.
 */

export interface Sized {
  readonly byteLength: number
}

export interface PackLimits {
  /** Bytes of one batch. */
  readonly batchBytes: number
  /** Items of one batch. */
  readonly batchItems: number
  /** Items start at multiples of this. */
  readonly alignment: number
}

/** An item and where it begins in its batch. */
export interface Packed<Item> {
  readonly item: Item
  readonly offset: number
}

export interface Batch<Item> {
  readonly items: ReadonlyArray<Packed<Item>>
  /** With what alignment adds between items. */
  readonly byteLength: number
}

const alignUp = (value: number, alignment: number): number => Math.ceil(value / alignment) * alignment

/** Longest items first, equal ones in their order; a batch ends where the next item does not fit. */
export const packWorkload = <Item extends Sized>(
  items: ReadonlyArray<Item>,
  { batchBytes, batchItems, alignment }: PackLimits
): ReadonlyArray<Batch<Item>> => {
  const batches: Array<Batch<Item>> = []
  let open: Array<Packed<Item>> = []
  let filled = 0
  const finish = () => {
    if (open.length > 0) batches.push({ items: open, byteLength: filled })
    open = []
    filled = 0
  }
  for (const item of [...items].sort((a, b) => b.byteLength - a.byteLength)) {
    if (alignUp(filled, alignment) + item.byteLength > batchBytes || open.length >= batchItems) finish()
    const offset = alignUp(filled, alignment)
    open.push({ item, offset })
    filled = offset + item.byteLength
  }
  finish()
  return batches
}
