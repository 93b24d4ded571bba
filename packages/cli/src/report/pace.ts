// SPDX-License-Identifier: Apache-2.0
/**
 * Who was slow in a run: pairs of ranks whose bytes took far longer than others', and the rank for which others waited. Pure.
 *
 * A pair's seconds are those of its wire where the driver knows them, else the transfer of the rank that received.
 */
import type { RecordedRank, RecordedTraffic, RunRecord } from "./RunRecord.ts"

export interface Pace extends RecordedTraffic {
  /** Seconds in which the bytes travelled; 0 where that was not measured, as for copies within a rank. */
  readonly seconds: number
  readonly isSlow: boolean
}

/** A rate below this part of the median is slow. */
const slowPart = 0.5
/** Less time than this says nothing about a link. */
const leastSeconds = 1e-3
/** With fewer pairs there is no usual rate. */
const leastPairs = 3

const medianOf = (values: ReadonlyArray<number>): number => {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? 0
}

const secondsOf = ({ from, to }: RecordedTraffic, rank: RecordedRank | undefined): number => {
  if (from === to || rank === undefined) return from === to ? (rank?.copy.phases.local ?? 0) : 0
  const wire = rank.copy.peers.find(({ peer }) => peer === from)?.seconds?.wire
  return wire ?? rank.copy.phases.transfer
}

/** Every pair with its time, in the order of the record. */
export const pacesOf = ({ ranks, traffic }: RunRecord): ReadonlyArray<Pace> => {
  const byRank = new Map(ranks.map((rank) => [rank.rank, rank]))
  const timed = traffic.map((pair) => ({ ...pair, seconds: secondsOf(pair, byRank.get(pair.to)) }))
  const travelled = timed.filter(({ from, to, seconds }) => from !== to && seconds >= leastSeconds)
  const usual = medianOf(travelled.map(({ bytes, seconds }) => bytes / seconds))
  return timed.map((pair) => ({
    ...pair,
    isSlow:
      travelled.length >= leastPairs &&
      pair.from !== pair.to &&
      pair.seconds >= leastSeconds &&
      pair.bytes / pair.seconds < slowPart * usual
  }))
}

/** How much longer than it waited itself another rank must have waited, as a part of the job. */
const latePart = 0.1

/** The rank for which others waited longest; undefined where nobody waited long. */
export const lateRankOf = ({ ranks }: RunRecord): number | undefined => {
  if (ranks.length < 2) return undefined
  const waits = ranks.map(({ rank, seconds }) => ({ rank, seconds: seconds.wait ?? 0 }))
  const [least] = [...waits].sort((a, b) => a.seconds - b.seconds)
  const most = Math.max(...waits.map(({ seconds }) => seconds))
  const whole = Math.max(
    ...ranks.map(({ seconds: { ranks: _, ...steps } }) => Object.values(steps).reduce((sum, one) => sum + one, 0))
  )
  return most - least!.seconds > latePart * whole ? least!.rank : undefined
}
