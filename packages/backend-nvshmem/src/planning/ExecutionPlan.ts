// SPDX-License-Identifier: Apache-2.0
/**
 * What one PE does in a run: which batch leaves when through which slot, which arrives when in which, and to whom leave to
 * write into a slot is given.
 *
 * A PE has as many slots for arriving batches as `slots` says, shared by all peers and used in turn. A sender writes into a
 * slot only with leave for that very batch: the receiver gives it when the run begins, for the first batch of every slot,
 * and when a slot is unpacked, for the batch that uses it next, whoever sends that. So nobody waits for all, and what waits
 * in an iteration waits only for earlier ones: there is no deadlock, however late a PE is.
 *
 * Invariant: a function of the schedule; what two PEs do with each other fits, because both derive it from the same one.
 */
import type { Schedule, ScheduledBatch } from "./CommunicationScheduler.ts"

/** A batch that this PE sends. */
export interface PlannedSend {
  /** Place in the list of batches. */
  readonly batch: number
  readonly peer: number
  readonly iteration: number
  /** Slot of this PE in which it is packed, where it is. */
  readonly sendSlot: number
  /** Slot of the peer in which it arrives. */
  readonly receiveSlot: number
}

/** A batch that this PE receives. */
export interface PlannedReceive {
  readonly batch: number
  readonly peer: number
  readonly iteration: number
  readonly receiveSlot: number
}

/** Leave for a peer to write a batch into a slot of this PE. */
export interface Leave {
  readonly peer: number
  readonly iteration: number
  readonly receiveSlot: number
}

/** What one rank does in a start: puts, waits for signals, and copies out of the symmetric heap. */
export interface ExecutionPlan {
  readonly sends: ReadonlyArray<PlannedSend>
  readonly receives: ReadonlyArray<PlannedReceive>
  /** Given when the run begins. */
  readonly leaves: ReadonlyArray<Leave>
  /** Given when the receive of the same place is unpacked. */
  readonly nextLeaves: ReadonlyArray<Leave | undefined>
}

/** Slots of each PE: those in which it packs batches, and those in which batches arrive. At least one of each. */
export interface SlotCounts {
  readonly send: number
  readonly receive: number
}

/** The plan of one rank, from its requests and those of its peers. */
export const executionPlan = (
  pe: number,
  batches: ReadonlyArray<ScheduledBatch>,
  { iterationOf }: Schedule,
  slots: SlotCounts
): ExecutionPlan => {
  const inOrder = Array.from(batches, (_, place) => place).sort((a, b) => iterationOf[a]! - iterationOf[b]!)
  const received = new Map<number, number>()
  const sends: Array<PlannedSend> = []
  const receives: Array<PlannedReceive> = []
  for (const batch of inOrder) {
    const { source, destination } = batches[batch]!
    const before = received.get(destination) ?? 0
    received.set(destination, before + 1)
    const receiveSlot = before % slots.receive
    const iteration = iterationOf[batch]!
    if (source === pe) {
      sends.push({ batch, peer: destination, iteration, sendSlot: sends.length % slots.send, receiveSlot })
    }
    if (destination === pe) receives.push({ batch, peer: source, iteration, receiveSlot })
  }
  const leaves = receives.map(({ peer, iteration, receiveSlot }): Leave => ({ peer, iteration, receiveSlot }))
  return {
    sends,
    receives,
    leaves: leaves.slice(0, slots.receive),
    nextLeaves: leaves.map((_, at) => leaves[at + slots.receive])
  }
}
