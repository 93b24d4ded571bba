// SPDX-License-Identifier: Apache-2.0
/**
 * The steps of a PE's plan: batches are packed, travel and are unpacked on streams of their own, which wait for each other
 * and for other PEs on the device alone.
 *
 * Invariants: a slot is written only with its owner's leave, which is given when it is unpacked; a slot for packing is
 * packed again when its put has read it. What waits for an iteration waits only for earlier ones.
 */
import type { Span } from "@tensorferry/gpu/RunTimes"
import { eventLimit, type StreamNumber } from "@tensorferry/gpu/StepTable"
import { TimedSteps } from "@tensorferry/gpu/TimedSteps"
import { callKinds } from "./Addon.ts"
import type { SlotMoves } from "./batches.ts"
import { arrivedWord, type BlockLayout, leaveWord, receiveSlotAddress, sendSlotAddress } from "./layout.ts"
import type { Leave } from "./planning/ExecutionPlan.ts"

const packing: StreamNumber = 0
const wire: StreamNumber = 1
const unpacking: StreamNumber = 2
/** Taken in turn, so that one batch begins while another's signal is under way. */
const direct: ReadonlyArray<StreamNumber> = [3, 4]

export interface SendStep {
  readonly peer: number
  readonly iteration: number
  readonly byteLength: number
  readonly sendSlot: number
  readonly receiveSlot: number
  /** Into the slot for packing, or straight into the peer's slot. */
  readonly moves: SlotMoves
  readonly isDirect: boolean
}

export interface ReceiveStep {
  readonly peer: number
  readonly iteration: number
  readonly byteLength: number
  readonly receiveSlot: number
  readonly moves: SlotMoves
  /** Given when the slot is unpacked. */
  readonly next: Leave | undefined
}

export interface ExchangeSteps {
  readonly steps: BigUint64Array
  readonly moves: ReadonlyArray<BigUint64Array>
  readonly spans: ReadonlyArray<Span>
}

/** Puts that a program has events for. */
export const putLimit = Math.floor(eventLimit / 2)

export const exchangeSteps = (
  pe: number,
  layout: BlockLayout,
  sends: ReadonlyArray<SendStep>,
  receives: ReadonlyArray<ReceiveStep>,
  leaves: ReadonlyArray<Leave>
): ExchangeSteps => {
  const steps = new TimedSteps()

  const move = (stream: StreamNumber, { table, runs }: SlotMoves): void => {
    if (table.length > 0) steps.kernel(stream, table)
    for (const { destination, source, byteLength } of runs) steps.copy(stream, destination, source, byteLength)
  }
  const give = ({ peer, receiveSlot, iteration }: Leave): void =>
    steps.call(unpacking, callKinds.signal, leaveWord(layout, pe, receiveSlot), iteration, peer)
  const waitForLeave = (stream: StreamNumber, { peer, receiveSlot, iteration }: SendStep): void =>
    steps.call(stream, callKinds.wait, leaveWord(layout, peer, receiveSlot), iteration)

  /** By slot, the event after which its put has read it. */
  const read: Array<number | undefined> = []

  const put = (send: SendStep): void => {
    const { peer, iteration, byteLength, sendSlot, receiveSlot, moves } = send
    const before = read[sendSlot]
    if (before !== undefined) steps.wait(packing, before)
    steps.timed(packing, { peer, phase: "pack" }, () => move(packing, moves))
    steps.wait(wire, steps.recordNext(packing))
    waitForLeave(wire, send)
    steps.timed(wire, { peer, phase: "wire" }, () => {
      steps.call(
        wire,
        callKinds.put,
        receiveSlotAddress(layout, receiveSlot),
        sendSlotAddress(layout, sendSlot),
        byteLength,
        arrivedWord(layout, pe, receiveSlot),
        iteration,
        peer
      )
    })
    read[sendSlot] = steps.recordNext(wire)
    steps.progress(wire, byteLength)
  }

  const write = (send: SendStep, stream: StreamNumber): void => {
    const { peer, iteration, byteLength, receiveSlot, moves } = send
    waitForLeave(stream, send)
    steps.timed(stream, { peer, phase: moves.runs.length === 0 ? "kernel" : "copy" }, () => move(stream, moves))
    steps.call(stream, callKinds.signal, arrivedWord(layout, pe, receiveSlot), iteration, peer)
    steps.progress(stream, byteLength)
  }

  const receive = ({ peer, iteration, byteLength, receiveSlot, moves, next }: ReceiveStep): void => {
    steps.call(unpacking, callKinds.wait, arrivedWord(layout, peer, receiveSlot), iteration)
    steps.timed(unpacking, { peer, phase: "unpack" }, () => move(unpacking, moves))
    if (next !== undefined) give(next)
    steps.progress(unpacking, byteLength)
  }

  for (const leave of leaves) give(leave)
  // By iteration, so that no stream's queue holds up the issue of what another one waits for.
  let [sent, received, written] = [0, 0, 0]
  while (sent < sends.length || received < receives.length) {
    const [send, arriving] = [sends[sent], receives[received]]
    if (send !== undefined && (arriving === undefined || send.iteration <= arriving.iteration)) {
      if (send.isDirect) write(send, direct[written++ % direct.length]!)
      else put(send)
      sent += 1
    } else {
      receive(arriving!)
      received += 1
    }
  }
  return { steps: steps.table, moves: steps.moveTables, spans: steps.spans }
}
