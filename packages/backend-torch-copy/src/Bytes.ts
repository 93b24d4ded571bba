// SPDX-License-Identifier: Apache-2.0
/**
 * Natural numbers as bytes, seven bits each, the lowest first: most numbers that ranks exchange are small.
 *
 * Invariant: a reader never looks beyond its bytes. After a fault it answers zeros and `isSound` stays false, so that a
 * decoder checks once at its end; counts are to be checked by `hasRoomFor` before anything is allocated for them.
 */

const textEncoder = new TextEncoder()
const textDecoder = new TextDecoder()

export class ByteWriter {
  #bytes = new Uint8Array(1024)
  #length = 0

  #reserve(length: number): void {
    if (this.#length + length <= this.#bytes.length) return
    const larger = new Uint8Array(2 * (this.#length + length))
    larger.set(this.#bytes)
    this.#bytes = larger
  }

  /** A whole number below 2^53. */
  put(value: number): void {
    this.#reserve(8)
    let rest = value
    while (rest >= 128) {
      this.#bytes[this.#length++] = (rest % 128) | 128
      rest = Math.floor(rest / 128)
    }
    this.#bytes[this.#length++] = rest
  }

  putAll(values: ReadonlyArray<number>): void {
    for (let i = 0; i < values.length; i++) this.put(values[i]!)
  }

  /** Bytes with their number before them. */
  putBytes(bytes: Uint8Array): void {
    this.put(bytes.length)
    this.#reserve(bytes.length)
    this.#bytes.set(bytes, this.#length)
    this.#length += bytes.length
  }

  putText(text: string): void {
    this.putBytes(textEncoder.encode(text))
  }

  get bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.#length)
  }
}

export class ByteReader {
  readonly #bytes: Uint8Array
  #at = 0
  #isSound = true

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes
  }

  /** False after a fault. */
  get isSound(): boolean {
    return this.#isSound
  }

  /** True where everything was read without a fault. */
  get isAtEnd(): boolean {
    return this.#isSound && this.#at === this.#bytes.length
  }

  fail(): void {
    this.#isSound = false
    this.#at = this.#bytes.length
  }

  take(): number {
    let value = 0
    let scale = 1
    while (this.#at < this.#bytes.length && scale <= 2 ** 49) {
      const byte = this.#bytes[this.#at++]!
      value += (byte % 128) * scale
      if (byte < 128) {
        if (value <= Number.MAX_SAFE_INTEGER) return value
        break
      }
      scale *= 128
    }
    this.fail()
    return 0
  }

  /** False, and a fault, where so many things of at least one byte each cannot follow. */
  hasRoomFor(count: number): boolean {
    if (this.#isSound && count <= this.#bytes.length - this.#at) return true
    this.fail()
    return false
  }

  /** A count of things that follow, each at least one byte long. */
  takeCount(): number {
    const count = this.take()
    return this.hasRoomFor(count) ? count : 0
  }

  takeAll(count: number): Array<number> {
    return Array.from({ length: this.hasRoomFor(count) ? count : 0 }, () => this.take())
  }

  takeBytes(): Uint8Array {
    const length = this.takeCount()
    const bytes = this.#bytes.subarray(this.#at, this.#at + length)
    this.#at += length
    return bytes
  }

  takeText(): string {
    return textDecoder.decode(this.takeBytes())
  }
}
