// SPDX-License-Identifier: Apache-2.0
/**
 * The binary form of a program: what a device does in one run, as steps on a few streams, in 64-bit words.
 *
 * Invariants: steps of one stream happen in order; between streams only `wait` after `record` orders. A table is data: the
 * addon checks every number in it, and addresses come only from memory that TypeScript has proven to be there.
 *
 * Per step, word 0: kind (bits 0-7), stream (8-15), then as the functions below say:
 *   1 copy      destination, source, bytes                 by the copy engine; its host memory is the device's or pinned
 *   2 moves     number of the table of moves               one kernel for all of them
 *   3 reduce    words of a reduction follow, counted first (see MoveTable.encodeReduce)
 *   4 record    event
 *   5 wait      event; recorded earlier in the table
 *   6 begin     group of sends and receives, on the stream
 *   7 send      address, bytes, peer
 *   8 receive   address, bytes, peer
 *   9 end       of the group
 *  10 span      span number, 0 for its beginning or 1 for its end; times of spans come back from a run
 *  11 progress  bytes that are done when the stream gets here
 *  12 spin      nanoseconds in which the stream is busy, for tests of overlap
 *  13 call      words of a call to another addon follow, counted first
 *  14 quantize  words of a block scaling follow, counted first (see QuantizeTable.encodeQuantize)
 *  15 changes  address of 8 bytes of the host for the result, 0 where nobody reads it; words of a search for changes or their writing follow, counted
 *              first (see ChangeTable.ts)
 *  16 product  words of the addition of a product follow, counted first (see ProductTable.ts)
 *  17 digest   address of the host for two words for each part; words of parts follow, counted first (see DigestTable.ts)
 *  18 ring     words of one launch of the kernel of replay rings (see RingProgram.ts)
 *  19 host     destination, source, bytes                 by the copy engine, to or from any memory of the host
 */
import { TableWriter } from "@tensorferry/native/MoveTable"

/** Streams of a device. Kernels, copy engine and collectives overlap; which stream does what is the program's business. */
export const streamCount = 8

/** Events and spans of one program. */
export const eventLimit = 65_536

/** A stream of the device, from 0 to `streamCount - 1`. */
export type StreamNumber = 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7

/** The steps of a program as the addon reads them, added one by one. */
export class StepTable {
  readonly #writer = new TableWriter(256)

  get table(): BigUint64Array {
    return this.#writer.table
  }

  #put(kind: number, stream: StreamNumber, ...words: ReadonlyArray<number>): void {
    this.#writer.reserve(1 + words.length)
    this.#writer.write(kind | (stream << 8), 0)
    this.#writer.putAll(words)
  }

  copy(stream: StreamNumber, destination: number, source: number, byteLength: number): void {
    this.#put(1, stream, destination, source, byteLength)
  }
  copyHost(stream: StreamNumber, destination: number, source: number, byteLength: number): void {
    this.#put(19, stream, destination, source, byteLength)
  }
  moves(stream: StreamNumber, table: number): void {
    this.#put(2, stream, table)
  }
  reduce(stream: StreamNumber, reduction: BigUint64Array): void {
    this.#put(3, stream, reduction.length)
    this.#writer.putWords(reduction)
  }
  record(stream: StreamNumber, event: number): void {
    this.#put(4, stream, event)
  }
  wait(stream: StreamNumber, event: number): void {
    this.#put(5, stream, event)
  }
  begin(stream: StreamNumber): void {
    this.#put(6, stream)
  }
  send(stream: StreamNumber, address: number, byteLength: number, peer: number): void {
    this.#put(7, stream, address, byteLength, peer)
  }
  receive(stream: StreamNumber, address: number, byteLength: number, peer: number): void {
    this.#put(8, stream, address, byteLength, peer)
  }
  end(stream: StreamNumber): void {
    this.#put(9, stream)
  }
  spanBegins(stream: StreamNumber, span: number): void {
    this.#put(10, stream, span, 0)
  }
  spanEnds(stream: StreamNumber, span: number): void {
    this.#put(10, stream, span, 1)
  }
  progress(stream: StreamNumber, byteLength: number): void {
    this.#put(11, stream, byteLength)
  }
  spin(stream: StreamNumber, nanoseconds: number): void {
    this.#put(12, stream, nanoseconds)
  }
  call(stream: StreamNumber, ...words: ReadonlyArray<number>): void {
    this.#put(13, stream, words.length, ...words)
  }
  quantize(stream: StreamNumber, conversion: BigUint64Array): void {
    this.#put(14, stream, conversion.length)
    this.#writer.putWords(conversion)
  }
  changes(stream: StreamNumber, result: number, work: BigUint64Array): void {
    this.#put(15, stream, result, work.length)
    this.#writer.putWords(work)
  }
  product(stream: StreamNumber, addition: BigUint64Array): void {
    this.#put(16, stream, addition.length)
    this.#writer.putWords(addition)
  }
  digest(stream: StreamNumber, result: number, parts: BigUint64Array): void {
    this.#put(17, stream, result, parts.length)
    this.#writer.putWords(parts)
  }
  ring(stream: StreamNumber, launch: ReadonlyArray<number>): void {
    this.#put(18, stream, ...launch)
  }
}
