/**
 * The binary form in which work crosses into the addon: 64-bit words, one table per call.
 *
 * Invariant: only checked views are encoded. Words are written as two 32-bit halves, because a bigint per word would cost
 * more than a small copy itself; every value is an integer below 2^53.
 */
import { type DType, dtypes } from "@tensorferry/core/base/DType"
import type { ReduceOp } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"

const numberOf: ReadonlyMap<DType, number> = new Map(dtypes.map((dtype, index) => [dtype, index]))

const reduceNumbers: Record<ReduceOp, number> = { sum: 0, avg: 1, max: 2, min: 3, product: 4 }

export interface TableMove {
  readonly dst: Tensor
  readonly src: Tensor
  /** Process that holds the source; 0 for this one. */
  readonly pid?: number
}

/** Host addresses are below 2^53, so numbers hold them exactly. */
export const addressOf = (tensor: Tensor): number => Number(tensor.storage.address) + tensor.byteOffset

class Writer {
  readonly table: BigUint64Array
  readonly #halves: Uint32Array
  #at = 0

  constructor(words: number) {
    this.table = new BigUint64Array(words)
    this.#halves = new Uint32Array(this.table.buffer)
  }

  write(low: number, high: number): void {
    this.#halves[this.#at] = low
    this.#halves[this.#at + 1] = high
    this.#at += 2
  }

  put(value: number): void {
    this.write(value >>> 0, Math.floor(value / 2 ** 32))
  }

  putAll(values: ReadonlyArray<number>): void {
    for (let i = 0; i < values.length; i++) this.put(values[i]!)
  }
}

/** First bytes of one side of all moves. */
export const addressesOf = (moves: ReadonlyArray<TableMove>, side: "dst" | "src"): Float64Array =>
  Float64Array.from(moves, (move) => addressOf(move[side]))

/** Copies and casts. Sub-byte types must have become bytes before. Addresses are those of `addressesOf`. */
export const encodeMoves = (
  moves: ReadonlyArray<TableMove>,
  destinations: Float64Array,
  sources: Float64Array
): BigUint64Array => {
  let words = 0
  for (const move of moves) words += 3 + 3 * move.dst.shape.length
  const writer = new Writer(words)
  for (let i = 0; i < moves.length; i++) {
    const { dst, src, pid } = moves[i]!
    const types = (numberOf.get(dst.dtype)! << 8) | (numberOf.get(src.dtype)! << 16)
    writer.write(types | (dst.shape.length << 24), pid ?? 0)
    writer.put(destinations[i]!)
    writer.put(sources[i]!)
    writer.putAll(dst.shape)
    writer.putAll(dst.strides)
    writer.putAll(src.strides)
  }
  return writer.table
}

export const encodeFill = (tensor: Tensor, byte: number): BigUint64Array => {
  const writer = new Writer(3 + 3 * tensor.shape.length)
  const type = numberOf.get(tensor.dtype)!
  writer.write(1 | (type << 8) | (type << 16) | (tensor.shape.length << 24), 0)
  writer.put(addressOf(tensor))
  writer.put(byte)
  writer.putAll(tensor.shape)
  writer.putAll(tensor.strides)
  writer.putAll(tensor.strides)
  return writer.table
}

export const encodeReduce = (dst: Tensor, sources: ReadonlyArray<Tensor>, op: ReduceOp): BigUint64Array => {
  const dimensions = dst.shape.length
  const writer = new Writer(5 + sources.length + dimensions * (2 + sources.length))
  writer.putAll([reduceNumbers[op], numberOf.get(dst.dtype)!, dimensions, sources.length])
  writer.put(addressOf(dst))
  writer.putAll(sources.map(addressOf))
  writer.putAll(dst.shape)
  writer.putAll(dst.strides)
  for (const source of sources) writer.putAll(source.strides)
  return writer.table
}
