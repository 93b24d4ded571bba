// SPDX-License-Identifier: Apache-2.0
/**
 * How long the parts of a run took on the device, by peer: sums of the spans between events.
 */
import type { PeerTimes } from "@tensorferry/core/service/CopyDriver"
import type { SpanTimes } from "./Addon.ts"

/** What a span measures. A kernel and copies reach the peer's memory; the other phases pass through staging. */
export type Phase = "kernel" | "copy" | "pack" | "wire" | "unpack"

/** What one span of a program stands for; its number is its place in the program's list. */
export interface Span {
  /** Undefined where several peers share the time. */
  readonly peer: number | undefined
  readonly phase: Phase
}

/** Microseconds by phase; 0 where nothing was measured. */
export type PhaseTimes = { readonly [P in Phase]: number }

/** Seconds of the parts of one run, by the device's clock. */
export interface RunTimes {
  /** Microseconds; phases of one peer overlap. */
  readonly peers: ReadonlyArray<{ readonly peer: number } & PhaseTimes>
  /** Microseconds that several peers share. */
  readonly shared: PhaseTimes
}

const nothing: PhaseTimes = { kernel: 0, copy: 0, pack: 0, wire: 0, unpack: 0 }

/** The times of a run from the spans that were measured in it. */
export const runTimes = (spans: ReadonlyArray<Span>, times: SpanTimes): RunTimes => {
  const byPeer = new Map<number | undefined, PhaseTimes>()
  for (const [number, { peer, phase }] of spans.entries()) {
    const sums = byPeer.get(peer) ?? nothing
    byPeer.set(peer, { ...sums, [phase]: sums[phase] + (times[number] ?? 0) })
  }
  const shared = byPeer.get(undefined) ?? nothing
  const peers = [...byPeer].flatMap(([peer, sums]) => (peer === undefined ? [] : [{ peer, ...sums }]))
  return { peers: peers.sort((a, b) => a.peer - b.peer), shared }
}

/** The same as a copy service reports it: seconds, and whatever reaches the peer's memory counts as the wire. */
export const peerTimesOf = ({ peers }: RunTimes): ReadonlyArray<PeerTimes> =>
  peers.map(({ peer, kernel, copy, pack, wire, unpack }) => ({
    peer,
    pack: pack / 1e6,
    wire: (kernel + copy + wire) / 1e6,
    unpack: unpack / 1e6
  }))
