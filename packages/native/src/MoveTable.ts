// SPDX-License-Identifier: Apache-2.0
/**
 * The binary form in which work crosses into the addon: 64-bit words, one table per call.
 *
 * Invariant: only checked views are encoded. Words are written as two 32-bit halves, because a bigint per word would cost
 * more than a small copy itself; every value is an integer below 2^53.
 */
import { type DType, dtypes } from "@tensorferry/core/base/DType"
import type { ReduceOp } from "@tensorferry/core/service/TensorEngine"
import { isContiguous, type Move, type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"

const numberOf: ReadonlyMap<DType, number> = new Map(dtypes.map((dtype, index) => [dtype, index]))

/** First half of the word that begins a copy of bytes in one dimension. */
const byteRun = (numberOf.get("uint8")! << 8) | (numberOf.get("uint8")! << 16) | (1 << 24)

const reduceNumbers: Record<ReduceOp, number> = { sum: 0, avg: 1, max: 2, min: 3, product: 4 }

/** One copy or cast between tensors of equal shape. */
export interface TableMove {
  readonly dst: Tensor
  readonly src: Tensor
  /** Process that holds the source; 0 for this one. */
  readonly pid?: number
}

/** Bytes in a row on both sides. */
export interface ByteRun {
  readonly destination: number
  readonly source: number
  readonly byteLength: number
}

/** Host addresses are below 2^53, so numbers hold them exactly. */
export const addressOf = (tensor: Tensor): number => Number(tensor.storage.address) + tensor.byteOffset

/** Words that grow. Every number is an integer from 0 to below 2^53. */
export class TableWriter {
  #table: BigUint64Array<ArrayBuffer>
  #halves: Uint32Array
  #at = 0

  constructor(words: number) {
    this.#table = new BigUint64Array(words)
    this.#halves = new Uint32Array(this.#table.buffer)
  }

  /** Makes room for this many words more. */
  reserve(words: number): void {
    const needed = this.#at / 2 + words
    if (needed <= this.#table.length) return
    const larger = new BigUint64Array(2 * needed)
    larger.set(this.#table)
    this.#table = larger
    this.#halves = new Uint32Array(larger.buffer)
  }

  /** What was written so far. */
  get table(): BigUint64Array {
    return this.#table.subarray(0, this.#at / 2)
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

  /** A table within a table. */
  putWords(words: BigUint64Array): void {
    this.reserve(words.length)
    this.#table.set(words, this.#at / 2)
    this.#at += 2 * words.length
  }
}

/** Words of a move of one dimension, which most are once dense dimensions are one. */
const usualWords = 6

/** Copies and casts. Sub-byte types must have become bytes before. */
export class MoveTable {
  readonly #writer: TableWriter

  constructor(moves: number) {
    this.#writer = new TableWriter(usualWords * moves)
  }

  get table(): BigUint64Array {
    return this.#writer.table
  }

  /** Both sides dense and of one type: so many bytes in a row. */
  addRun(destination: number, source: number, byteLength: number): void {
    const writer = this.#writer
    writer.reserve(usualWords)
    writer.write(byteRun, 0)
    writer.put(destination)
    writer.put(source)
    writer.put(byteLength)
    writer.write(1, 0)
    writer.write(1, 0)
  }

  /** A checked move within one type, as a run where both sides are dense; runs from `runBytes` on are returned instead. */
  addUnlessRun({ dst, src }: Move, runBytes = Number.POSITIVE_INFINITY): ByteRun | undefined {
    const [destination, source, byteLength] = [addressOf(dst), addressOf(src), tensorByteLength(dst)]
    if (!isContiguous(dst) || !isContiguous(src)) this.add(dst, src, destination, source)
    else if (byteLength < runBytes) this.addRun(destination, source, byteLength)
    else return { destination, source, byteLength }
    return undefined
  }

  /** `pid` is the process that holds the source; 0 for this one. */
  add(dst: Tensor, src: Tensor, destination: number, source: number, pid = 0): void {
    const writer = this.#writer
    writer.reserve(3 + 3 * dst.shape.length)
    writer.write((numberOf.get(dst.dtype)! << 8) | (numberOf.get(src.dtype)! << 16) | (dst.shape.length << 24), pid)
    writer.put(destination)
    writer.put(source)
    writer.putAll(dst.shape)
    writer.putAll(dst.strides)
    writer.putAll(src.strides)
  }
}

/** Per move: one word with types, number of dimensions and process; both addresses; shape; both strides in elements. */
export const encodeMoves = (moves: ReadonlyArray<TableMove>): BigUint64Array => {
  const table = new MoveTable(moves.length)
  for (const { dst, src, pid } of moves) table.add(dst, src, addressOf(dst), addressOf(src), pid)
  return table.table
}

/** A move of kind 1 (the lowest 8 bits of its first word), with the byte in place of the source's address. */
export const encodeFill = (tensor: Tensor, byte: number): BigUint64Array => {
  const writer = new TableWriter(3 + 3 * tensor.shape.length)
  const type = numberOf.get(tensor.dtype)!
  writer.write(1 | (type << 8) | (type << 16) | (tensor.shape.length << 24), 0)
  writer.put(addressOf(tensor))
  writer.put(byte)
  writer.putAll(tensor.shape)
  writer.putAll(tensor.strides)
  writer.putAll(tensor.strides)
  return writer.table
}

/**
 * Words: operation, type, dimensions, operands; address of the destination, then of each operand; shape; strides in
 * elements, of the destination and then of each operand.
 */
export const encodeReduce = (dst: Tensor, sources: ReadonlyArray<Tensor>, op: ReduceOp): BigUint64Array => {
  const dimensions = dst.shape.length
  const writer = new TableWriter(5 + sources.length + dimensions * (2 + sources.length))
  writer.putAll([reduceNumbers[op], numberOf.get(dst.dtype)!, dimensions, sources.length])
  writer.put(addressOf(dst))
  writer.putAll(sources.map(addressOf))
  writer.putAll(dst.shape)
  writer.putAll(dst.strides)
  for (const source of sources) writer.putAll(source.strides)
  return writer.table
}
