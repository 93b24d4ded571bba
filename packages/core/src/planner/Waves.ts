// SPDX-License-Identifier: Apache-2.0
/**
 * What of a plan travels when. Pure; both ends of a transfer find the same, because all of it follows from what the plan
 * states at both.
 *
 * Contributions to reductions come first. Then everything travels at once but for what waits in buffers, as it is cast at
 * either end: of that, one rank's traffic to another has at most `waveBytes` in a wave, and what is longer is cut.
 */
import { byteLengthOf, type DType } from "../base/DType.ts"
import { elementCount, formatRegion, type Region, regionShape, type Shape } from "../base/Region.ts"
import type { Reduction, ReshardPlan } from "../ir/ReshardPlan.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { splitPart } from "./Bucketing.ts"

/** A transfer or a piece of it. */
export interface Leg {
  readonly op: TransferOp
  /** Which piece; transforms number their own parts. */
  readonly part: number
  /** In indices of what travels; undefined for all of it. */
  readonly within: Region | undefined
}

/** What one rank sends and receives at once. */
export interface Wave {
  readonly sends: ReadonlyArray<Leg>
  readonly recvs: ReadonlyArray<Leg>
}

/** A rank's waves. Ranks with fewer than others take part in the rest with nothing to move. */
export interface Waves {
  /** Waves of contributions, the same on all ranks. */
  readonly reductions: number
  /** All of this rank's waves, at least one more than those of contributions. */
  readonly waves: ReadonlyArray<Wave>
}

/** Bytes that wait in buffers between two ranks, unless a plan or a caller says otherwise. */
export const defaultWaveBytes = 2 ** 30

/** The shape that travels: that of the destination's region. */
export const travelShape = ({ mySlice, peerSlice, isSend, axes }: TransferOp): Shape =>
  regionShape(isSend && axes !== undefined ? peerSlice : mySlice)

/** A piece of what travels; all of it where the part is not cut. */
export const legShape = ({ op, within }: Leg): Shape => (within === undefined ? travelShape(op) : regionShape(within))

/** Bytes of a leg as it travels. */
export const legBytes = (leg: Leg): number => byteLengthOf(leg.op.wireDtype, elementCount(legShape(leg)))

/** An operation that brings a contribution to the rank that reduces, seen from either end. */
export const isContribution = ({ rank, reductions }: ReshardPlan, op: TransferOp): boolean =>
  op.reduction !== undefined && (!op.isSend || reductions?.[op.reduction]?.root !== rank)

/** What is held on this side in another type than travels, from or to another rank: it waits in a buffer. */
const waitsHere = ({ rank }: ReshardPlan, op: TransferOp, held: DType | undefined): boolean =>
  op.peerRank !== rank && held !== op.wireDtype

const typesByTensors = new WeakMap<ReshardPlan["sourceTensors"], ReadonlyMap<string, DType>>()

/** Types in which tensors are held, by name: looked up once for all that ask of one list. */
const heldTypes = (tensors: ReshardPlan["sourceTensors"]): ((paramName: string) => DType | undefined) => {
  let types: ReadonlyMap<string, DType> | undefined
  return (paramName) => {
    types ??= typesByTensors.get(tensors)
    if (types === undefined) {
      const made = new Map<string, DType>()
      for (const { name, dtype } of tensors) made.set(name, dtype)
      typesByTensors.set(tensors, made)
      types = made
    }
    return types.get(paramName)
  }
}

const piecesOf = (op: TransferOp, limit: number): ReadonlyArray<Leg> => {
  const pieces = splitPart({ dtype: op.wireDtype, shape: travelShape(op) }, limit)
  return pieces.length === 1
    ? [{ op, part: 0, within: undefined }]
    : pieces.map((within, part) => ({ op, part, within }))
}

/** By box, the wave of each of its pieces: all members of a group list the boxes that they reduce alike. */
const boxWaves = (
  { reductions = [], sourceTensors }: ReshardPlan,
  waveBytes: number,
  count: number
): ReadonlyMap<Reduction, ReadonlyArray<number>> => {
  if (reductions.length === 0) return new Map()
  const place = new Map(sourceTensors.map(({ name }, at) => [name, at]))
  const dtypes = new Map(sourceTensors.map(({ name, dtype }) => [name, dtype]))
  const keyOf = ({ region, root }: Reduction) => `${formatRegion(region)} ${root}`
  const sorted = [...reductions].sort((a, b) => {
    const byTensor = place.get(a.paramName)! - place.get(b.paramName)!
    return byTensor || (keyOf(a) < keyOf(b) ? -1 : 1)
  })
  const bytes = new Map<string, number>()
  const waves = new Map<Reduction, ReadonlyArray<number>>()
  for (const box of sorted) {
    const group = box.ranks.join()
    const dtype = dtypes.get(box.paramName)!
    const pieces = splitPart({ dtype, shape: regionShape(box.region) }, waveBytes).map((within) => {
      const before = bytes.get(group) ?? 0
      bytes.set(group, before + byteLengthOf(dtype, elementCount(regionShape(within))))
      return Math.min(Math.floor(before / waveBytes), count - 1)
    })
    waves.set(box, pieces)
  }
  return waves
}

/** Deals a rank's operations into waves. `isTransformed` tells what a transform carries, which is never cut. */
export const wavesOf = (
  plan: ReshardPlan,
  waveBytes: number,
  isTransformed: (paramName: string) => boolean = () => false
): Waves => {
  const reductions = Math.ceil((plan.reductionBytes ?? 0) / waveBytes)
  const boxes = boxWaves(plan, waveBytes, reductions)
  const waves = Array.from({ length: reductions + 1 }, () => ({ sends: [] as Array<Leg>, recvs: [] as Array<Leg> }))
  const place = (at: number, leg: Leg): void => {
    while (waves.length <= at) waves.push({ sends: [], recvs: [] })
    if (leg.op.isSend) waves[at]!.sends.push(leg)
    else waves[at]!.recvs.push(leg)
  }
  for (const [ops, tensors] of [
    [plan.sendOps, plan.sourceTensors],
    [plan.recvOps, plan.destinationTensors]
  ] as const) {
    const held = heldTypes(tensors)
    /** Bytes in buffers so far, by peer. */
    const bytes = new Map<number, number>()
    for (let at = 0; at < ops.length; at++) {
      const op = ops[at]!
      if (isContribution(plan, op)) {
        const places = boxes.get(plan.reductions![op.reduction!]!)!
        for (const leg of piecesOf(op, waveBytes)) place(places[leg.part]!, leg)
        continue
      }
      const waits =
        plan.version > 1 &&
        op.peerRank !== plan.rank &&
        !isTransformed(op.paramName) &&
        (op.peerDtype !== undefined || waitsHere(plan, op, held(op.paramName)))
      if (!waits) {
        place(reductions, { op, part: 0, within: undefined })
        continue
      }
      for (const leg of piecesOf(op, waveBytes)) {
        const before = bytes.get(op.peerRank) ?? 0
        bytes.set(op.peerRank, before + legBytes(leg))
        place(reductions + Math.floor(before / waveBytes), leg)
      }
    }
  }
  return { reductions, waves }
}

/** Names what several ranks get from one buffer. */
export const sourceKey = ({ op, within }: Leg): string =>
  `${op.paramName} ${op.reduction ?? ""} ${formatRegion(op.mySlice)} ${op.axes?.join() ?? ""} ${formatRegion(within ?? [])}`

/** Most bytes of buffers that one rank's waves have at once, by what the plan shows: two waves in each direction. */
export const bufferBytesOf = (plan: ReshardPlan, { waves }: Waves): number => {
  const [sources, destinations] = [heldTypes(plan.sourceTensors), heldTypes(plan.destinationTensors)]
  const largest = [0, 0, 0, 0]
  for (const [at, { sends, recvs }] of waves.entries()) {
    const distinct = new Map<string, number>()
    for (const leg of sends) {
      if (waitsHere(plan, leg.op, sources(leg.op.paramName))) distinct.set(sourceKey(leg), legBytes(leg))
    }
    const sent = [...distinct.values()].reduce((sum, bytes) => sum + bytes, 0)
    const received = recvs.reduce((sum, leg) => {
      const waits = isContribution(plan, leg.op) || waitsHere(plan, leg.op, destinations(leg.op.paramName))
      return waits ? sum + legBytes(leg) : sum
    }, 0)
    largest[at % 2] = Math.max(largest[at % 2]!, sent)
    largest[2 + (at % 2)] = Math.max(largest[2 + (at % 2)]!, received)
  }
  return largest.reduce((sum, bytes) => sum + bytes, 0)
}
