// SPDX-License-Identifier: Apache-2.0
/**
 * The steps of a replay ring as launches of one kernel and copies (see ring_steps.h): pure, and the same for every device.
 *
 * Invariant: only checked tensors are lowered. Steps of a stream keep their order, and events their places.
 */
import {
  candidateLimit,
  type RingAnswer,
  type RingGeometry,
  type RingSample,
  type RingStep
} from "@tensorferry/core/service/ReplayRingKernels"
import { type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import { addressOf } from "./MoveTable.ts"

/** Steps of the kernel, in the order in which it numbers them. */
const launches = [
  "none",
  "reserve",
  "leaves",
  "sums",
  "publish",
  "snapshot",
  "count",
  "pick",
  "gather",
  "forget",
  "raise",
  "resum"
] as const

type Launch = (typeof launches)[number]

/** Words of a parameter. */
export const ringParameterWords = 25
const fanOut = 16
const wordBytes = 64
const mostSegments = 4096
const leastSegment = 16
const matrixBytes = 128 * 16
const matrices = 32
/** Bytes of the words of a request. */
export const requestBytes = wordBytes + 4 * mostSegments + 16 * mostSegments
/** Bytes of a request that the host reads. */
export const answerBytes = 48

const episodes = ["cross", "whole", "cut"] as const

/** Addresses of what a ring has on its device. */
export interface RingPlaces {
  readonly geometry: RingGeometry
  readonly state: number
  readonly rows: number
  readonly table: number
  /** Of each stream. */
  readonly requests: readonly [number, number]
  /** Where the host reads answers, `answerBytes` for each. */
  readonly answers: number
  /** Draws go on one after the other, as on a processor, instead of in segments. */
  readonly isSequential: boolean
}

/** What a device does for a step. */
export type LoweredStep = { readonly stream: 0 | 1 } & (
  | { readonly kind: "copy"; readonly destination: number; readonly source: number; readonly byteLength: number }
  | { readonly kind: "launch"; readonly words: ReadonlyArray<number> }
  | { readonly kind: "record" | "wait"; readonly event: number }
)

/** Levels of sums above the weights. */
const levelsOf = (capacity: number): number => {
  let levels = 0
  for (let length = capacity; levels === 0 || length > 1; levels++) length = Math.ceil(length / fanOut)
  return levels
}

/** Bytes of a ring's words, with its weights and their sums. */
export const stateBytes = (capacity: number): number => {
  let bytes = wordBytes + Math.ceil((4 * capacity) / 8) * 8
  for (let level = 1, length = capacity; level <= levelsOf(capacity); level++) {
    length = Math.ceil(length / fanOut)
    bytes += 8 * length
  }
  return bytes
}

type State = readonly [number, number, number, number]

/** One number further, as the generator goes on. */
const advance = ([a, b, c, d]: State): State => {
  const shifted = b << 9
  const [third, fourth] = [c ^ a, d ^ b]
  return [a ^ fourth, b ^ third, third ^ shifted, (fourth << 11) | (fourth >>> 21)]
}

/** Applies a matrix, whose column `bit` says what that bit of the state becomes. */
const apply = (matrix: Uint32Array, words: ArrayLike<number>, at: number, into: Uint32Array, to: number): void => {
  for (let bit = 0; bit < 128; bit++) {
    if (((words[at + (bit >> 5)]! >>> (bit & 31)) & 1) === 0) continue
    for (let word = 0; word < 4; word++) into[to + word] = into[to + word]! ^ matrix[4 * bit + word]!
  }
}

let knownMatrices: Uint32Array | undefined

/** Matrices that lead the random state 1, 2, 4 and so on numbers further: it is linear in its bits. */
const jumpMatrices = (): Uint32Array => {
  if (knownMatrices !== undefined) return knownMatrices
  const all = new Uint32Array((matrices * matrixBytes) / 4)
  for (let bit = 0; bit < 128; bit++) {
    const one: [number, number, number, number] = [0, 0, 0, 0]
    one[bit >> 5] = 1 << (bit & 31)
    all.set(
      advance(one).map((word) => word >>> 0),
      4 * bit
    )
  }
  for (let power = 1; power < matrices; power++) {
    const before = all.subarray((power - 1) * 512, power * 512)
    for (let bit = 0; bit < 128; bit++) apply(before, before, 4 * bit, all, power * 512 + 4 * bit)
  }
  knownMatrices = all
  return all
}

/** The constant table of a ring. */
export const ringTable = ({ columns }: RingGeometry): Uint8Array => {
  const matrix = jumpMatrices()
  const table = new Uint8Array(matrix.byteLength + 16 * columns.length)
  table.set(new Uint8Array(matrix.buffer))
  const words = new BigUint64Array(table.buffer, matrix.byteLength)
  for (const [at, { byteLength, byteOffset }] of columns.entries()) {
    words[2 * at] = BigInt(byteOffset)
    words[2 * at + 1] = BigInt(byteLength)
  }
  return table
}

/** Candidates of each of how many segments, so that nearly always all draws are among them. */
const segmentsOf = ({ count, draws, episodes: ends, window }: RingSample) => {
  const isPlain = draws === "uniform" && (window === 1 || ends !== "whole")
  const expected = Math.min(candidateLimit(count), (isPlain ? 2 : 3) * count + 256)
  let length = leastSegment
  while (Math.ceil(expected / length) > mostSegments) length *= 2
  return { segments: Math.min(mostSegments, Math.floor(expected / length)), segmentLength: length }
}

/** Lowers the steps of one run. */
export const lowerRing = (places: RingPlaces, steps: ReadonlyArray<RingStep>): ReadonlyArray<LoweredStep> => {
  const { geometry } = places
  const { capacity, columns, rowBytes } = geometry
  const levels = Array.from({ length: levelsOf(capacity) }, (_, at) => at + 1)
  const lowered: Array<LoweredStep> = []
  let answers = 0

  const launch = (stream: 0 | 1, step: Launch, given: Partial<Record<"first" | "rows" | "weight" | "level", number>>) =>
    add(stream, step, given, undefined)

  const add = (
    stream: 0 | 1,
    step: Launch,
    given: Partial<Record<"first" | "rows" | "weight" | "level", number>>,
    sample: RingSample | undefined,
    weighed?: { readonly positions: Tensor; readonly weights: Tensor }
  ): void => {
    const { segmentLength, segments } =
      sample === undefined || places.isSequential ? { segmentLength: 0, segments: 0 } : segmentsOf(sample)
    const positions = sample?.positions ?? weighed?.positions
    const words = [
      launches.indexOf(step),
      places.state,
      places.rows,
      places.table,
      places.requests[stream],
      sample === undefined ? 0 : addressOf(sample.into),
      positions === undefined ? 0 : addressOf(positions),
      sample === undefined ? 0 : addressOf(sample.lengths),
      weighed === undefined ? 0 : addressOf(weighed.weights),
      capacity,
      rowBytes,
      sample?.packing === "columns" ? columns.length : 0,
      sample?.seed ?? 0,
      sample?.tick ?? 0,
      sample?.count ?? 0,
      sample?.window ?? 0,
      sample?.draws === "weighted" ? 1 : 0,
      sample === undefined || sample.window === 1 ? 0 : episodes.indexOf(sample.episodes),
      geometry.episodeEnd ?? 0,
      given.first ?? 0,
      given.rows ?? 0,
      given.weight ?? 0,
      given.level ?? 0,
      segments,
      segmentLength
    ]
    lowered.push({ kind: "launch", stream, words })
  }

  /** Weights of rows, and all sums over them. */
  const weigh = (stream: 0 | 1, first: number, rows: number, weight: number): void => {
    launch(stream, "leaves", { first, rows, weight })
    for (const level of levels) launch(stream, "sums", { first, rows, level })
  }

  for (const step of steps) {
    const { stream } = step
    switch (step._tag) {
      case "Reserve":
        launch(stream, "reserve", { first: step.at, rows: step.rows })
        weigh(stream, step.at, step.rows, 0)
        break
      case "Place":
        lowered.push({
          kind: "copy",
          stream,
          destination: places.rows + (step.at % capacity) * rowBytes,
          source: addressOf(step.source),
          byteLength: tensorByteLength(step.source)
        })
        break
      case "Commit":
        weigh(stream, step.at, step.rows, step.weight)
        launch(stream, "publish", { first: step.at, rows: step.rows })
        break
      case "Sample": {
        add(stream, "snapshot", {}, step)
        if (!places.isSequential) add(stream, "count", {}, step)
        add(stream, "pick", {}, step)
        const destination = places.answers + answerBytes * answers++
        lowered.push({ kind: "copy", stream, destination, source: places.requests[stream], byteLength: answerBytes })
        add(stream, "gather", {}, step)
        break
      }
      case "Weigh": {
        const rows = step.positions.shape[0]!
        add(stream, "forget", { rows }, undefined, step)
        add(stream, "raise", { rows }, undefined, step)
        for (const level of levels) add(stream, "resum", { rows, level }, undefined, step)
        break
      }
      default:
        lowered.push({ kind: step._tag === "Record" ? "record" : "wait", stream, event: step.event })
    }
  }
  return lowered
}

/** The answer that the host reads from the words of a request. */
export const answerOf = (words: BigUint64Array): RingAnswer => ({
  first: Number(words[0]),
  end: Number(words[1]),
  drawn: Number(words[2]),
  total: words[3]!,
  isTorn: words[4] !== 0n
})
