// SPDX-License-Identifier: Apache-2.0
/**
 * Where things lie in the symmetric block of a driver: words first, as exchange.h says, then slots for what arrives, then
 * slots in which is packed. The same on all PEs.
 */

export interface BlockLayout {
  readonly address: number
  readonly peCount: number
  readonly slots: number
  readonly sendSlots: number
  readonly slotBytes: number
}

/** Slots begin at multiples of this. */
const slotAlignment = 512

const alignUp = (value: number, alignment: number): number => Math.ceil(value / alignment) * alignment

const wordBytes = 8

/** Words of all PEs: for arrivals, for leaves, and one for giving up. */
const wordsEnd = ({ peCount, slots }: Pick<BlockLayout, "peCount" | "slots">): number =>
  alignUp(wordBytes * peCount * (2 * slots + 1), slotAlignment)

/** A slot's length that keeps the next one aligned. */
export const wholeSlot = (bytes: number): number => Math.max(4096, Math.floor(bytes / slotAlignment) * slotAlignment)

export const blockBytes = (layout: Omit<BlockLayout, "address">): number =>
  wordsEnd(layout) + (layout.slots + layout.sendSlots) * layout.slotBytes

/** Set by `pe` when a batch of its is in the slot. */
export const arrivedWord = ({ address, slots }: BlockLayout, pe: number, slot: number): number =>
  address + wordBytes * (pe * slots + slot)

/** Set by `pe` when it lets others write into its slot. */
export const leaveWord = ({ address, peCount, slots }: BlockLayout, pe: number, slot: number): number =>
  address + wordBytes * ((peCount + pe) * slots + slot)

export const receiveSlotAddress = (layout: BlockLayout, slot: number): number =>
  layout.address + wordsEnd(layout) + slot * layout.slotBytes

export const sendSlotAddress = (layout: BlockLayout, slot: number): number =>
  receiveSlotAddress(layout, layout.slots + slot)
