// SPDX-License-Identifier: Apache-2.0
/**
 * MessagePack, the part that the bus speaks, byte for byte as its other clients write it: shortest headers, maps and
 * arrays in the given order, floats always of 64 bits.
 *
 * Invariant: a reader never looks beyond its bytes, allocates no more than they hold and nests no deeper than its limit.
 * The first fault is kept and everything read after it is empty, so that a decoder checks once at its end.
 */
import * as Result from "effect/Result"

export type Kind = "nil" | "bool" | "int" | "float" | "str" | "bytes" | "array" | "object" | "ext"

export interface Fault {
  /** `malformed`: no such bytes can be; `invalid`: sound bytes that do not say what was asked for. */
  readonly kind: "malformed" | "invalid"
  readonly detail: string
}

/** Deepest nesting of arrays and maps, also in fields that are skipped. */
const deepest = 512

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true })
const textEncoder = new TextEncoder()

/** Longest text for which a loop is quicker than a decoder. */
const longestAscii = 64

/** Most texts are names: of one byte per character. Undefined for others. */
const decodeAscii = (bytes: Uint8Array, from: number, to: number): string | undefined => {
  let text = ""
  for (let at = from; at < to; at++) {
    const byte = bytes[at]!
    if (byte >= 0x80) return undefined
    text += String.fromCharCode(byte)
  }
  return text
}

/** Strict UTF-8, or undefined. */
export const decodeText = (bytes: Uint8Array): string | undefined =>
  (bytes.length < longestAscii ? decodeAscii(bytes, 0, bytes.length) : undefined) ??
  Result.getOrUndefined(Result.try(() => utf8.decode(bytes)))

const kindOfByte = (byte: number): Kind | undefined => {
  if (byte < 0x80 || byte >= 0xe0) return "int"
  if (byte < 0x90) return "object"
  if (byte < 0xa0) return "array"
  if (byte < 0xc0) return "str"
  if (byte === 0xc0) return "nil"
  if (byte === 0xc1) return undefined
  if (byte <= 0xc3) return "bool"
  if (byte <= 0xc6) return "bytes"
  if (byte <= 0xc9) return "ext"
  if (byte <= 0xcb) return "float"
  if (byte <= 0xd3) return "int"
  if (byte <= 0xd8) return "ext"
  if (byte <= 0xdb) return "str"
  return byte <= 0xdd ? "array" : "object"
}

export class Reader {
  readonly #bytes: Uint8Array
  readonly #view: DataView
  #at = 0
  #fault: Fault | undefined

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  }

  get fault(): Fault | undefined {
    return this.#fault
  }

  get position(): number {
    return this.#at
  }

  rewind(position: number): void {
    this.#at = position
  }

  malformed(detail: string): void {
    this.#fault ??= { kind: "malformed", detail }
  }

  invalid(detail: string): void {
    this.#fault ??= { kind: "invalid", detail }
  }

  /** Whether `length` more bytes are there; a fault where they are not. */
  #has(length: number): boolean {
    if (this.#fault !== undefined) return false
    if (length <= this.#bytes.length - this.#at) return true
    this.malformed("The input ends early.")
    return false
  }

  /** Kind of the next value, which stays unread. */
  peek(): Kind | undefined {
    if (!this.#has(1)) return undefined
    const byte = this.#bytes[this.#at]!
    const kind = kindOfByte(byte)
    if (kind === undefined) this.malformed(`Byte ${this.#at} is 0xc1, which no value begins with.`)
    return kind
  }

  #big(bytes: number): number {
    if (!this.#has(bytes)) return 0
    const at = this.#at
    this.#at += bytes
    return bytes === 1 ? this.#view.getUint8(at) : bytes === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at)
  }

  #take(length: number): Uint8Array {
    if (!this.#has(length)) return new Uint8Array(0)
    const from = this.#at
    this.#at += length
    return this.#bytes.subarray(from, this.#at)
  }

  nil(): null {
    this.#at += 1
    return null
  }

  bool(): boolean {
    return this.#big(1) === 0xc3
  }

  /** A number where it is exact, else a bigint. */
  int(): number | bigint {
    const byte = this.#big(1)
    if (byte < 0x80) return byte
    if (byte >= 0xe0) return byte - 256
    const length = 2 ** (byte & 3)
    if (!this.#has(length)) return 0
    const at = this.#at
    this.#at += length
    switch (byte) {
      case 0xcc:
        return this.#view.getUint8(at)
      case 0xcd:
        return this.#view.getUint16(at)
      case 0xce:
        return this.#view.getUint32(at)
      case 0xd0:
        return this.#view.getInt8(at)
      case 0xd1:
        return this.#view.getInt16(at)
      case 0xd2:
        return this.#view.getInt32(at)
      default: {
        const wide = byte === 0xcf ? this.#view.getBigUint64(at) : this.#view.getBigInt64(at)
        const narrow = Number(wide)
        return Number.isSafeInteger(narrow) ? narrow : wide
      }
    }
  }

  float(): number {
    const isDouble = this.#big(1) === 0xcb
    if (!this.#has(isDouble ? 8 : 4)) return 0
    const at = this.#at
    this.#at += isDouble ? 8 : 4
    return isDouble ? this.#view.getFloat64(at) : this.#view.getFloat32(at)
  }

  #stringLength(): number {
    const byte = this.#big(1)
    return byte < 0xc0 ? byte & 31 : this.#big(2 ** (byte - 0xd9))
  }

  /** A string, or undefined where it is not UTF-8. */
  text(): string | undefined {
    const length = this.#stringLength()
    if (length < longestAscii && this.#has(length)) {
      const text = decodeAscii(this.#bytes, this.#at, this.#at + length)
      if (text !== undefined) {
        this.#at += length
        return text
      }
    }
    return decodeText(this.#take(length))
  }

  string(): string {
    const text = this.text()
    if (text === undefined) this.malformed("A string is not UTF-8.")
    return text ?? ""
  }

  bytes(): Uint8Array {
    return this.#take(this.#big(2 ** (this.#big(1) - 0xc4)))
  }

  arrayLength(): number {
    const byte = this.#big(1)
    const length = byte < 0xa0 ? byte & 15 : this.#big(byte === 0xdc ? 2 : 4)
    return this.#has(length) ? length : 0
  }

  /** Entries of a map. */
  objectLength(): number {
    const byte = this.#big(1)
    const length = byte < 0x90 ? byte & 15 : this.#big(byte === 0xde ? 2 : 4)
    return this.#has(2 * length) ? length : 0
  }

  /** Passes one value by, whatever it is. */
  skip(depth = 0): void {
    const kind = this.peek()
    if (kind === undefined) return
    if (depth > deepest) {
      this.malformed("Values are nested too deeply.")
      return
    }
    switch (kind) {
      case "nil":
      case "bool":
        this.#at += 1
        return
      case "int":
        this.int()
        return
      case "float":
        this.float()
        return
      case "str":
        this.#take(this.#stringLength())
        return
      case "bytes":
        this.bytes()
        return
      case "ext": {
        const byte = this.#big(1)
        this.#take(1 + (byte >= 0xd4 ? 2 ** (byte - 0xd4) : this.#big(2 ** (byte - 0xc7))))
        return
      }
      case "array":
        for (let left = this.arrayLength(); left > 0 && this.#fault === undefined; left--) this.skip(depth + 1)
        return
      case "object":
        for (let left = 2 * this.objectLength(); left > 0 && this.#fault === undefined; left--) this.skip(depth + 1)
    }
  }

  /** Refuses bytes behind the value. */
  end(): void {
    if (this.#at < this.#bytes.length) this.malformed(`${this.#bytes.length - this.#at} bytes follow the value.`)
  }
}

const longestNative = 2n ** 64n

/** What messages are written into, one behind the other: memory of its own for each small message costs more than writing it. */
interface Block {
  readonly bytes: Uint8Array<ArrayBuffer>
  readonly view: DataView
  used: number
}

const blockBytes = 16 * 1024
const smallestRest = 256

const makeBlock = (length: number): Block => {
  const bytes = new Uint8Array(length)
  return { bytes, view: new DataView(bytes.buffer), used: 0 }
}

/** The block that the next writer goes on with; a writer has it for itself until it is finished. */
let spare: Block | undefined

export class Writer {
  #block: Block
  #bytes: Uint8Array<ArrayBuffer>
  #view: DataView
  #start: number
  #length: number

  constructor() {
    this.#block = spare ?? makeBlock(blockBytes)
    spare = undefined
    this.#bytes = this.#block.bytes
    this.#view = this.#block.view
    this.#start = this.#block.used
    this.#length = this.#start
  }

  #reserve(length: number): number {
    if (this.#length + length > this.#bytes.length) this.#grow(length)
    const at = this.#length
    this.#length += length
    return at
  }

  #grow(length: number): void {
    const written = this.#bytes.subarray(this.#start, this.#length)
    this.#block = makeBlock(Math.max(blockBytes, 2 * (written.length + length)))
    this.#bytes = this.#block.bytes
    this.#view = this.#block.view
    this.#bytes.set(written)
    this.#start = 0
    this.#length = written.length
  }

  #byte(value: number): void {
    const at = this.#reserve(1)
    this.#bytes[at] = value
  }

  #put(bytes: Uint8Array): void {
    const at = this.#reserve(bytes.length)
    this.#bytes.set(bytes, at)
  }

  /** A byte and a number of 1, 2 or 4 bytes behind it. */
  #header(byte: number, value: number, bytes: 1 | 2 | 4): void {
    const at = this.#reserve(1 + bytes)
    this.#bytes[at] = byte
    if (bytes === 1) this.#view.setUint8(at + 1, value)
    else if (bytes === 2) this.#view.setUint16(at + 1, value)
    else this.#view.setUint32(at + 1, value)
  }

  #ascii(value: string): boolean {
    const { length } = value
    const at = this.#reserve(1 + length)
    this.#bytes[at] = 0xa0 | length
    for (let index = 0; index < length; index++) {
      const code = value.charCodeAt(index)
      if (code >= 0x80) {
        this.#length = at
        return false
      }
      this.#bytes[at + 1 + index] = code
    }
    return true
  }

  nil(): void {
    this.#byte(0xc0)
  }

  bool(value: boolean): void {
    this.#byte(value ? 0xc3 : 0xc2)
  }

  /** Whole numbers from -2^63 to 2^64 - 1. */
  int(value: number | bigint): void {
    if (typeof value === "bigint" || value > 0xffffffff || value < -0x80000000) {
      const wide = BigInt(value)
      if (wide >= BigInt(-0x80000000) && wide <= 0xffffffffn) {
        this.int(Number(wide))
        return
      }
      const at = this.#reserve(9)
      this.#bytes[at] = wide >= 0n ? 0xcf : 0xd3
      this.#view.setBigUint64(at + 1, wide >= 0n ? wide : wide + longestNative)
      return
    }
    if (value >= 0) {
      if (value < 0x80) this.#byte(value)
      else if (value < 0x100) this.#header(0xcc, value, 1)
      else if (value < 0x10000) this.#header(0xcd, value, 2)
      else this.#header(0xce, value, 4)
    } else if (value >= -32) this.#byte(value + 256)
    else if (value >= -0x80) this.#header(0xd0, value & 0xff, 1)
    else if (value >= -0x8000) this.#header(0xd1, value & 0xffff, 2)
    else this.#header(0xd2, value >>> 0, 4)
  }

  float(value: number): void {
    const at = this.#reserve(9)
    this.#bytes[at] = 0xcb
    this.#view.setFloat64(at + 1, value)
  }

  string(value: string): void {
    // Most texts are names: short, and of one byte per character.
    if (value.length < 32 && this.#ascii(value)) return
    const bytes = textEncoder.encode(value)
    if (bytes.length < 32) this.#byte(0xa0 | bytes.length)
    else this.#lengthHeader(0xd9, bytes.length)
    this.#put(bytes)
  }

  bytes(value: Uint8Array): void {
    this.#lengthHeader(0xc4, value.length)
    this.#put(value)
  }

  #lengthHeader(first: number, length: number): void {
    if (length < 0x100) this.#header(first, length, 1)
    else if (length < 0x10000) this.#header(first + 1, length, 2)
    else this.#header(first + 2, length, 4)
  }

  arrayLength(length: number): void {
    if (length < 16) this.#byte(0x90 | length)
    else if (length < 0x10000) this.#header(0xdc, length, 2)
    else this.#header(0xdd, length, 4)
  }

  objectLength(length: number): void {
    if (length < 16) this.#byte(0x80 | length)
    else if (length < 0x10000) this.#header(0xde, length, 2)
    else this.#header(0xdf, length, 4)
  }

  /** What was written; nothing more can be. */
  finish(): Uint8Array {
    const written = this.#bytes.subarray(this.#start, this.#length)
    this.#block.used = this.#length
    if (this.#bytes.length === blockBytes && blockBytes - this.#length >= smallestRest) spare = this.#block
    return written
  }
}
