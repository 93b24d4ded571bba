// SPDX-License-Identifier: Apache-2.0
/**
 * The bytes of a pickle, read from front to back.
 *
 * Invariant: nothing is read beyond the end, and the first fault stays. After it every reading is harmless.
 */
import { decodeUtf8 } from "../checkpoint/StrictJson.ts"

/** Why a pickle is not read. */
export interface PickleFault {
  /** The bytes are no pickle of a known protocol; or a pickle of none of these contents; or of contents that are known and of no use here. */
  readonly kind: "Malformed" | "Forbidden" | "Unsupported"
  readonly detail: string
  /** What the reader can do, where the fault says it better than the format. */
  readonly remedy?: string
}

const longestLine = 256

/** Bytes and a place among them. */
export class PickleInput {
  readonly #bytes: Uint8Array
  readonly #view: DataView
  #at = 0
  error: PickleFault | undefined

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  }

  /** Bytes that were read. */
  get at(): number {
    return this.#at
  }

  /** Bytes that were not. */
  get left(): number {
    return this.#bytes.length - this.#at
  }

  get first(): number | undefined {
    return this.#bytes[0]
  }

  fail(kind: PickleFault["kind"], detail: string): void {
    this.error ??= { kind, detail }
  }

  take(length: number): Uint8Array {
    if (length > this.#bytes.length - this.#at) {
      this.fail("Malformed", "The pickle ends early.")
      return new Uint8Array(0)
    }
    const from = this.#at
    this.#at += length
    return this.#bytes.subarray(from, this.#at)
  }

  number(bytes: 1 | 2 | 4): number {
    const at = this.#at
    if (this.take(bytes).length === 0) return 0
    if (bytes === 1) return this.#view.getUint8(at)
    return bytes === 2 ? this.#view.getUint16(at, true) : this.#view.getUint32(at, true)
  }

  /** The highest byte first. */
  double(): number {
    return this.take(8).length > 0 ? this.#view.getFloat64(this.#at - 8) : 0
  }

  /** A text up to the end of its line. */
  line(): string {
    const end = this.#bytes.indexOf(0x0a, this.#at)
    if (end < 0 || end - this.#at > longestLine) {
      this.fail("Malformed", "A line has no end.")
      return ""
    }
    const text = decodeUtf8(this.take(end - this.#at))
    this.#at += 1
    return text ?? ""
  }

  /** A length that must be there, and changes nothing. */
  frame(): void {
    if (this.take(8).length === 0) return
    const length = this.#view.getBigUint64(this.#at - 8, true)
    if (length > BigInt(this.#bytes.length - this.#at)) this.fail("Malformed", "A frame is longer than the pickle.")
  }

  /** The byte of the next operation. */
  operation(): number {
    return this.number(1)
  }

  forbidOperation(op: number): void {
    this.fail("Forbidden", `Operation 0x${op.toString(16).padStart(2, "0")} at byte ${this.#at - 1} is not allowed.`)
  }
}
