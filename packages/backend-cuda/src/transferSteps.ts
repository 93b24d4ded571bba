// SPDX-License-Identifier: Apache-2.0
/**
 * The steps of a transfer: what is moved directly beside what is packed, sent and unpacked, on streams of their own.
 *
 * Invariants: staging is written only after what used it before: a window is packed when the group two before it has sent
 * the slot, and a group receives into a slot when the window two before it is unpacked. Everything else overlaps.
 */

import type { Span } from "@tensorferry/gpu/RunTimes"
import { eventLimit, type StreamNumber } from "@tensorferry/gpu/StepTable"
import { TimedSteps } from "@tensorferry/gpu/TimedSteps"
import type { ByteRun } from "@tensorferry/native/MoveTable"
import type { DirectMoves } from "./directMoves.ts"
import type { GroupWindow, WindowShare } from "./packedMoves.ts"
import { spreadProgress } from "./planning/windows.ts"

const packing: StreamNumber = 0
const wire: StreamNumber = 1
const unpacking: StreamNumber = 2
const directKernels: ReadonlyArray<StreamNumber> = [3, 4]
const copyEngines: ReadonlyArray<StreamNumber> = [5, 6, 7]

/** Bytes of copies between two reports of progress. */
const reportedBytes = 256 * 2 ** 20

export interface TransferSteps {
  readonly steps: BigUint64Array
  readonly moves: ReadonlyArray<BigUint64Array>
  /** What each span measures, by its number. */
  readonly spans: ReadonlyArray<Span>
  readonly usesCommunicator: boolean
}

const sumBytes = (shares: ReadonlyArray<WindowShare>, isReceiving: boolean): number =>
  shares.reduce((sum, share) => sum + (share.isReceiving === isReceiving ? share.byteLength : 0), 0)

/** Windows that a program has events for. */
export const windowLimit = Math.floor(eventLimit / 3)

export const transferSteps = (
  direct: ReadonlyArray<DirectMoves>,
  windows: ReadonlyArray<GroupWindow>
): TransferSteps => {
  const steps = new TimedSteps()

  const moveDirectly = ({ peer, table, tableBytes, runs }: DirectMoves, at: number): void => {
    if (table.length > 0) {
      const stream = directKernels[at % directKernels.length]!
      steps.timed(stream, { peer, phase: "kernel" }, () => steps.kernel(stream, table))
      steps.progress(stream, tableBytes)
    }
    // Two streams, so that one copy starts while another ends; each takes the next run when it has the fewer bytes.
    const shares = [0, 1].map((turn) => ({
      stream: copyEngines[(2 * at + turn) % copyEngines.length]!,
      runs: [] as Array<ByteRun>,
      byteLength: 0
    }))
    for (const run of runs) {
      const [first, second] = [shares[0]!, shares[1]!]
      const share = second.byteLength < first.byteLength ? second : first
      share.runs.push(run)
      share.byteLength += run.byteLength
    }
    for (const share of shares) copyRuns(peer, share.stream, share.runs)
  }

  const copyRuns = (peer: number, stream: StreamNumber, runs: ReadonlyArray<ByteRun>): void => {
    if (runs.length === 0) return
    steps.timed(stream, { peer, phase: "copy" }, () => {
      let unreported = 0
      for (const [at, { destination, source, byteLength }] of runs.entries()) {
        steps.copy(stream, destination, source, byteLength)
        unreported += byteLength
        if (unreported < reportedBytes && at + 1 < runs.length) continue
        steps.progress(stream, unreported)
        unreported = 0
      }
    })
  }

  /** Moves between tensors and staging for the shares of one direction. */
  const stage = (stream: StreamNumber, shares: ReadonlyArray<WindowShare>, isReceiving: boolean): void => {
    for (const share of shares) {
      if (share.isReceiving !== isReceiving || share.table.length === 0) continue
      const phase = isReceiving ? "unpack" : "pack"
      steps.timed(stream, { peer: share.peer, phase }, () => steps.kernel(stream, share.table))
    }
  }

  const hasStaged = (shares: ReadonlyArray<WindowShare>, isReceiving: boolean): boolean =>
    shares.some((share) => share.isReceiving === isReceiving && share.table.length > 0)

  const receivedBytes = windows.reduce((sum, { shares }) => sum + sumBytes(shares, true), 0)
  const traffic = windows.map(({ shares }) => sumBytes(shares, true) + sumBytes(shares, false))
  const progress = spreadProgress(traffic, receivedBytes > 0 ? receivedBytes : traffic.reduce((a, b) => a + b, 0))
  const sent: Array<number> = []
  /** By slot, the event after which it was last unpacked: the stream is in order, so earlier windows are done too. */
  const unpacked: [number | undefined, number | undefined] = [undefined, undefined]

  const pass = ({ shares }: GroupWindow, k: number): void => {
    if (hasStaged(shares, false)) {
      // The slot is free when the group that sent it last is done.
      if (k >= 2) steps.wait(packing, sent[k - 2]!)
      stage(packing, shares, false)
      steps.wait(wire, steps.recordNext(packing))
    }
    const slot = (k % 2) as 0 | 1
    const isUnpacked = hasStaged(shares, true)
    const freed = unpacked[slot]
    if (freed !== undefined && isUnpacked) steps.wait(wire, freed)
    const peers = [...new Set(shares.map(({ peer }) => peer))]
    steps.timed(wire, { peer: peers.length === 1 ? peers[0] : undefined, phase: "wire" }, () => {
      steps.begin(wire)
      for (const { peer, isReceiving, operations } of shares) {
        for (const { address, byteLength } of operations) {
          if (isReceiving) steps.receive(wire, address, byteLength, peer)
          else steps.send(wire, address, byteLength, peer)
        }
      }
      steps.end(wire)
    })
    sent.push(steps.recordNext(wire))
    if (isUnpacked) {
      steps.wait(unpacking, sent[k]!)
      stage(unpacking, shares, true)
      unpacked[slot] = steps.recordNext(unpacking)
    }
    steps.progress(isUnpacked ? unpacking : wire, progress[k]!)
  }

  for (const [at, each] of direct.entries()) moveDirectly(each, at)
  for (const [k, window] of windows.entries()) pass(window, k)
  return { steps: steps.table, moves: steps.moveTables, spans: steps.spans, usesCommunicator: windows.length > 0 }
}
