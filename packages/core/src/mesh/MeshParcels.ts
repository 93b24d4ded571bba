// SPDX-License-Identifier: Apache-2.0
/**
 * What of a mesh plan travels when. Pure; both ends of a pair of ranks cut and number alike, because everything follows
 * from the buckets that they share.
 *
 * A parcel is a bucket, or a piece of one whose only chunk is longer than a buffer may be. The parcels of an ordered pair
 * of ranks (a channel) travel in waves of at most `maxInFlight`; contributions to reductions have waves of their own, before
 * all others. A parcel for several ranks may be in different waves on its way to each.
 */
import type { Rank, TaskId } from "../base/Ids.ts"
import { formatRegion, fullRegion, type Region, regionShape, type Shape } from "../base/Region.ts"
import type { Bucket } from "../ir/Bucket.ts"
import type { Chunk } from "../ir/Chunk.ts"
import type { MeshPlan } from "../ir/MeshPlan.ts"
import { partByteLength, splitPart } from "../planner/Bucketing.ts"

/** Buckets of a channel under way at once, unless the settings say otherwise. */
export const defaultInFlight = 2

/** Most bytes of a piece, unless the settings say otherwise: a bucket, but not less than 64 KiB. */
export const defaultPieceBytes = ({ bucketBytes }: MeshPlan): number => Math.max(bucketBytes, 64 * 1024)

/** A part of a chunk, at its place in the parcel's buffer. */
export interface Piece {
  readonly chunk: Chunk
  /** In indices of the chunk's box. */
  readonly within: Region
  readonly shape: Shape
  /** In bytes from the start of the buffer; aligned for every element type. */
  readonly offset: number
  readonly nbytes: number
}

/** What travels in one buffer: a bucket, or one piece of it. */
export interface Parcel {
  /** That of the bucket, followed by the region where the parcel is a piece. */
  readonly key: string
  /** Where this rank makes the buffer. */
  readonly device: string
  /** At least one. */
  readonly pieces: ReadonlyArray<Piece>
  readonly totalBytes: number
  /** Brings contributions to the rank that reduces them. */
  readonly isReduction: boolean
  readonly from: Rank
  readonly to: ReadonlyArray<Rank>
}

/** A parcel on its way to some of its destinations; the task id is its number in the channel. */
export interface Outbound {
  readonly parcel: Parcel
  readonly to: ReadonlyArray<{ readonly rank: Rank; readonly taskId: TaskId }>
}

/** A parcel on its way to this rank; the task id is its number in the channel. */
export interface Inbound {
  readonly parcel: Parcel
  readonly taskId: TaskId
}

/** The parcels of one rank in one run of the copy service. */
export interface Wave {
  readonly sends: ReadonlyArray<Outbound>
  readonly recvs: ReadonlyArray<Inbound>
}

/** One rank's waves. Ranks with fewer of them than others take part in the rest with nothing to move. */
export interface Schedule {
  readonly reductions: ReadonlyArray<Wave>
  readonly transfers: ReadonlyArray<Wave>
}

const parcelsOfBucket = (bucket: Bucket, pieceBytes: number): ReadonlyArray<Parcel> => {
  const { chunk } = bucket.entries[0]!
  const common = {
    device: bucket.device,
    isReduction: chunk.kind === "none",
    from: chunk.srcIdx.rank,
    to: chunk.dstIdx.map(({ rank }) => rank)
  }
  if (bucket.entries.length > 1 || bucket.totalBytes <= pieceBytes) {
    const pieces = bucket.entries.map((entry) => ({
      chunk: entry.chunk,
      within: fullRegion(entry.chunk.chunkShape),
      shape: entry.chunk.chunkShape,
      offset: entry.offset,
      nbytes: entry.nbytes
    }))
    return [{ ...common, key: bucket.key, pieces, totalBytes: bucket.totalBytes }]
  }
  return splitPart({ dtype: chunk.transferDtype, shape: chunk.chunkShape }, pieceBytes).map((within) => {
    const shape = regionShape(within)
    const nbytes = partByteLength({ dtype: chunk.transferDtype, shape })
    return {
      ...common,
      key: `${bucket.key} ${formatRegion(within)}`,
      pieces: [{ chunk, within, shape, offset: 0, nbytes }],
      totalBytes: nbytes
    }
  })
}

/** A rank's parcels in the order that all ranks share. */
export const parcelsOf = (plan: MeshPlan, pieceBytes: number): ReadonlyArray<Parcel> =>
  plan.buckets.flatMap((bucket) => parcelsOfBucket(bucket, pieceBytes))

/** Deals a rank's parcels into waves. */
export const scheduleOf = (rank: Rank, parcels: ReadonlyArray<Parcel>, maxInFlight: number): Schedule => {
  const made = {
    reductions: [] as Array<{ sends: Array<Outbound>; recvs: Array<Inbound> }>,
    transfers: [] as Array<{ sends: Array<Outbound>; recvs: Array<Inbound> }>
  }
  /** Per channel: parcels so far, and those of the same kind. */
  const counts = new Map<string, { all: number; reductions: number }>()
  const place = (parcel: Parcel, peer: Rank, direction: "to" | "from") => {
    const channel = `${direction} ${peer}`
    const count = counts.get(channel) ?? { all: 0, reductions: 0 }
    counts.set(channel, count)
    const taskId = count.all++
    if (parcel.isReduction) count.reductions++
    const waves = parcel.isReduction ? made.reductions : made.transfers
    const at = Math.floor((parcel.isReduction ? taskId : taskId - count.reductions) / maxInFlight)
    while (waves.length <= at) waves.push({ sends: [], recvs: [] })
    return { taskId, at, wave: waves[at]! }
  }
  for (const parcel of parcels) {
    if (parcel.from !== rank) {
      const { taskId, wave } = place(parcel, parcel.from, "from")
      wave.recvs.push({ parcel, taskId })
      continue
    }
    const byWave = new Map<number, Array<Outbound["to"][number]>>()
    for (const peer of parcel.to) {
      const { taskId, at, wave } = place(parcel, peer, "to")
      const known = byWave.get(at)
      if (known !== undefined) known.push({ rank: peer, taskId })
      else {
        const to = [{ rank: peer, taskId }]
        byWave.set(at, to)
        wave.sends.push({ parcel, to })
      }
    }
  }
  return made
}

/** How parcels become operations of the copy service. */
export interface StagingRule {
  readonly tensors: MeshPlan["tensors"]
  /** The driver takes dense memory only: parcels of several pieces travel as one buffer. */
  readonly isPacked: boolean
}

/** Travels as one buffer of bytes; else each piece is an operation of its own. Equal on both ends. */
export const isWhole = (rule: StagingRule, parcel: Parcel): boolean => rule.isPacked && parcel.pieces.length > 1

const castsAtSource = ({ tensors }: StagingRule, { chunk }: Piece): boolean =>
  tensors[chunk.tensor]!.sourceDtype !== chunk.transferDtype

const castsAtTarget = ({ tensors }: StagingRule, { chunk }: Piece): boolean =>
  tensors[chunk.tensor]!.targetDtype !== chunk.transferDtype

/** A piece that is put into the parcel's buffer before it leaves; others leave from where they are. */
export const stagesSend = (rule: StagingRule, parcel: Parcel, piece: Piece): boolean =>
  isWhole(rule, parcel) || castsAtSource(rule, piece)

/** A piece that arrives in the parcel's buffer; others arrive in their destination. */
export const stagesRecv = (rule: StagingRule, parcel: Parcel, piece: Piece): boolean =>
  isWhole(rule, parcel) || parcel.isReduction || castsAtTarget(rule, piece)

/** Bytes of the sender's buffer; 0 where every piece leaves from where it is. */
export const sendBufferBytes = (rule: StagingRule, parcel: Parcel): number =>
  parcel.pieces.some((piece) => stagesSend(rule, parcel, piece)) ? parcel.totalBytes : 0

/** Bytes of the receiver's buffer; 0 where every piece arrives in its destination. */
export const recvBufferBytes = (rule: StagingRule, parcel: Parcel): number =>
  parcel.pieces.some((piece) => stagesRecv(rule, parcel, piece)) ? parcel.totalBytes : 0

/** Names what is reduced together: the same on every member. */
export const reductionKey = (chunk: Chunk): string => `${chunk.tensor} ${formatRegion(chunk.srcSliceTuples)}`

const pieceKey = ({ chunk, within }: Piece): string => `${reductionKey(chunk)} ${formatRegion(within)}`

/**
 * Most bytes of buffers at once. While a wave is under way there are its buffers, those being filled for the next one, those
 * being emptied of the one before, and contributions whose partners are still to come.
 */
export const bufferLimit = (rule: StagingRule, schedule: Schedule, reductionWaves: number): number => {
  const waves = [
    ...Array.from({ length: reductionWaves }, (_, at): Wave => schedule.reductions[at] ?? { sends: [], recvs: [] }),
    ...schedule.transfers
  ]
  /** Wave in which the last contribution to a piece arrives. */
  const lastPart = new Map<string, number>()
  for (const [at, { recvs }] of waves.entries()) {
    for (const { parcel } of recvs) {
      if (parcel.isReduction) for (const piece of parcel.pieces) lastPart.set(pieceKey(piece), at)
    }
  }
  const bytes = new Array<number>(waves.length + 2).fill(0)
  const hold = (from: number, to: number, held: number): void => {
    for (let at = Math.max(0, from); at <= to; at++) bytes[at]! += held
  }
  for (const [at, { sends, recvs }] of waves.entries()) {
    for (const { parcel } of sends) hold(at - 1, at, sendBufferBytes(rule, parcel))
    for (const { parcel } of recvs) {
      const last = parcel.isReduction
        ? parcel.pieces.reduce((latest, piece) => Math.max(latest, lastPart.get(pieceKey(piece))!), at)
        : at
      hold(at, last + 1, recvBufferBytes(rule, parcel))
    }
  }
  return bytes.reduce((most, held) => Math.max(most, held), 0)
}
