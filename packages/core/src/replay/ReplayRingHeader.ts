// SPDX-License-Identifier: Apache-2.0
/**
 * The first bytes of a ring's memory: what it is, how rows lie in it, who writes it, and how far the writer is.
 *
 * ```
 * byte    0  magic, version, data offset, capacity, row bytes, length of the column text, all bytes   (never change)
 *        64  owner     the writer's process, 0 where there is none                                    (one per cache line)
 *       128  reserved  rows that the writer has begun, counted from the ring's birth
 *       192  written   rows that are complete
 *       256  the columns as JSON
 *   dataOffset  row r lies at slot r modulo capacity
 * ```
 * Invariant: nothing here is believed because it stands there. Each field is checked against the memory's real length and
 * against what the columns imply; the positions are checked at each use.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Storage } from "../tensor/Storage.ts"
import { type ReplayRingError, replayRingError } from "./ReplayRingError.ts"
import { makeRowLayout, RowColumns, type RowLayout } from "./ReplayRowLayout.ts"

/** "tferring" in ASCII. */
const magic = 0x7466_6572_7269_6e67n
const version = 1n
const textOffset = 256
const pageBytes = 4096
/** Longest column text. */
const mostTextBytes = 2 ** 20
/** Most rows of a ring. */
export const mostRows = 2 ** 31

/** Words of 8 bytes. */
const fixed = { magic: 0, version: 1, dataOffset: 2, capacity: 3, rowBytes: 4, textBytes: 5, allBytes: 6 }
/** Where the header names its owner. */
export const ownerWord = 8
/** Where the header counts reserved rows. */
export const reservedWord = 16
/** Where the header counts written rows. */
export const writtenWord = 24

/** A ring as this process sees it. */
export interface ReplayRing {
  readonly storage: Storage
  readonly layout: RowLayout
  /** Rows that the ring holds. */
  readonly capacity: number
  /** The header's words. */
  readonly words: BigInt64Array
  /** The rows, slot after slot. */
  readonly data: Uint8Array
  /** The furthest that this process has seen the writer. */
  readonly seen: { written: bigint }
}

const textOf = (layout: RowLayout): Uint8Array =>
  new TextEncoder().encode(JSON.stringify(layout.columns.map(({ name, dtype, shape }) => ({ name, dtype, shape }))))

const dataOffsetOf = (textBytes: number): number => Math.ceil((textOffset + textBytes) / pageBytes) * pageBytes

/** Bytes of memory that a ring needs. */
export const replayRingBytes = (layout: RowLayout, capacity: number): number =>
  dataOffsetOf(textOf(layout).byteLength) + capacity * layout.rowBytes

const invalidLayout = (detail: string) =>
  Result.fail(
    replayRingError("InvalidLayout", {
      detail,
      remedy: `Give a capacity from 1 to ${mostRows} rows and memory of replayRingBytes that the host can touch.`
    })
  )

const invalidRing = (detail: string) =>
  Result.fail(
    replayRingError("InvalidRing", {
      detail,
      remedy: "Open the memory that a ring was made in, with the same version of tensorferry on both sides."
    })
  )

const ringIn = (storage: Storage, bytes: Uint8Array, layout: RowLayout, capacity: number, at: number): ReplayRing => ({
  storage,
  layout,
  capacity,
  words: new BigInt64Array(bytes.buffer, bytes.byteOffset, textOffset / 8),
  data: bytes.subarray(at, at + capacity * layout.rowBytes),
  seen: { written: 0n }
})

/** The memory's bytes, where they can hold 64-bit words. */
const bytesOf = (storage: Storage): Uint8Array | undefined =>
  storage.bytes === undefined || storage.isFreed() || storage.bytes.byteOffset % 8 !== 0 ? undefined : storage.bytes

/** Makes an empty ring in the memory; what was there is lost. */
export const createReplayRing = (
  storage: Storage,
  layout: RowLayout,
  capacity: number
): Result.Result<ReplayRing, ReplayRingError> => {
  if (!Number.isInteger(capacity) || capacity < 1 || capacity > mostRows) {
    return invalidLayout(`${capacity} is not a valid number of rows.`)
  }
  const text = textOf(layout)
  const allBytes = replayRingBytes(layout, capacity)
  const bytes = bytesOf(storage)
  if (text.byteLength > mostTextBytes) return invalidLayout(`The columns take ${text.byteLength} bytes of text.`)
  if (bytes === undefined) return invalidLayout("The host cannot touch the memory as 64-bit words.")
  if (bytes.byteLength < allBytes) return invalidLayout(`The ring needs ${allBytes} bytes, not ${bytes.byteLength}.`)
  const dataOffset = dataOffsetOf(text.byteLength)
  const ring = ringIn(storage, bytes, layout, capacity, dataOffset)
  ring.words.fill(0n)
  bytes.set(text, textOffset)
  ring.words[fixed.version] = version
  ring.words[fixed.dataOffset] = BigInt(dataOffset)
  ring.words[fixed.capacity] = BigInt(capacity)
  ring.words[fixed.rowBytes] = BigInt(layout.rowBytes)
  ring.words[fixed.textBytes] = BigInt(text.byteLength)
  ring.words[fixed.allBytes] = BigInt(allBytes)
  // Last, so that whoever sees it sees a whole header.
  Atomics.store(ring.words, fixed.magic, magic)
  return Result.succeed(ring)
}

/** The ring in memory that another process, or this one, made it in. */
export const openReplayRing = (storage: Storage): Result.Result<ReplayRing, ReplayRingError> => {
  const bytes = bytesOf(storage)
  if (bytes === undefined) return invalidRing("The host cannot touch the memory as 64-bit words.")
  if (bytes.byteLength < textOffset) return invalidRing(`${bytes.byteLength} bytes are too few for a header.`)
  const words = new BigInt64Array(bytes.buffer, bytes.byteOffset, textOffset / 8)
  if (Atomics.load(words, fixed.magic) !== magic) return invalidRing("The memory does not begin as a ring does.")
  if (words[fixed.version] !== version) {
    return invalidRing(`The ring has version ${words[fixed.version]}, this program knows ${version}.`)
  }
  const field = (name: keyof typeof fixed, most: number): Result.Result<number, ReplayRingError> => {
    const value = words[fixed[name]]!
    return value >= 1n && value <= BigInt(most)
      ? Result.succeed(Number(value))
      : invalidRing(`Its ${name} is ${value}, not 1 to ${most}.`)
  }
  const textBytes = field("textBytes", Math.min(mostTextBytes, bytes.byteLength - textOffset))
  if (Result.isFailure(textBytes)) return Result.fail(textBytes.failure)
  const capacity = field("capacity", mostRows)
  if (Result.isFailure(capacity)) return Result.fail(capacity.failure)
  const text = Result.try(() =>
    new TextDecoder("utf-8", { fatal: true }).decode(bytes.slice(textOffset, textOffset + textBytes.success))
  )
  const columns = Schema.decodeResult(Schema.fromJsonString(RowColumns))(Result.getOrElse(text, () => ""))
  if (Result.isFailure(columns)) return invalidRing("Its columns cannot be read.")
  const layout = makeRowLayout(columns.success)
  if (Result.isFailure(layout)) return invalidRing(layout.failure.reason.detail)
  const implied = {
    rowBytes: layout.success.rowBytes,
    dataOffset: dataOffsetOf(textBytes.success),
    allBytes: dataOffsetOf(textBytes.success) + capacity.success * layout.success.rowBytes
  }
  for (const name of ["rowBytes", "dataOffset", "allBytes"] as const) {
    if (words[fixed[name]] !== BigInt(implied[name])) {
      return invalidRing(`Its ${name} is ${words[fixed[name]]}, its columns imply ${implied[name]}.`)
    }
  }
  return bytes.byteLength < implied.allBytes
    ? invalidRing(`It claims ${implied.allBytes} bytes, the memory has ${bytes.byteLength}.`)
    : Result.succeed(ringIn(storage, bytes, layout.success, capacity.success, implied.dataOffset))
}
