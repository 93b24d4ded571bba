// SPDX-License-Identifier: Apache-2.0
/**
 * What reading a pickle works on: the bytes, a stack of values, marks in it, and remembered values.
 *
 * Invariant: nothing is imported, looked up or called; a call becomes a value that says what would be called with what.
 * Nothing reaches below the last mark, and the first fault stays.
 */
import { decodeText } from "../wire/MessagePack.ts"
import { type PayloadError, payloadError } from "./PayloadError.ts"
import { type PickleName, pickleName } from "./PickleNames.ts"

/** A pickle as data. `name` is on the allow-list; `call` and `object` say what Python would call or build. */
export type PickleValue =
  | { readonly type: "none" }
  | { readonly type: "bool"; readonly value: boolean }
  | { readonly type: "int"; readonly value: number }
  | { readonly type: "float"; readonly value: number }
  | { readonly type: "text"; readonly value: string }
  | { readonly type: "bytes"; readonly value: Uint8Array }
  | { readonly type: "tuple"; readonly items: ReadonlyArray<PickleValue> }
  | { readonly type: "list"; readonly items: Array<PickleValue> }
  | { readonly type: "dict"; readonly entries: Array<readonly [PickleValue, PickleValue]> }
  | { readonly type: "name"; readonly name: PickleName }
  | { readonly type: "call"; readonly name: PickleName; readonly args: ReadonlyArray<PickleValue> }
  | { readonly type: "object"; readonly name: PickleName; state: PickleValue | undefined }

const remedy = "Send a tuple of whole numbers, a tuple of placements, or a tensor shared by PyTorch, as protocol 4."

/** The bytes are no such pickle. */
export const malformed = (detail: string) => payloadError("Malformed", { op: "read pickle", detail, remedy })
/** A pickle, but none of a payload. */
export const forbidden = (detail: string) => payloadError("Forbidden", { op: "read pickle", detail, remedy })

/** Told at once: what else such a pickle names is on no list. */
const descriptorSharing = payloadError("Unsupported", {
  op: "read pickle",
  detail: "The tensor is shared by a file descriptor, which another program cannot take over.",
  remedy: 'Call torch.multiprocessing.set_sharing_strategy("file_system") before the first tensor is shared.'
})

const none: PickleValue = { type: "none" }

/**
 * The stack, the marks and the memo of one reading. After the first fault every operation is harmless and `error` stays.
 */
export class PickleMachine {
  readonly #bytes: Uint8Array
  readonly #view: DataView
  readonly #stack: Array<PickleValue> = []
  readonly #marks: Array<number> = []
  readonly #memo: Array<PickleValue> = []
  #at = 0
  error: PayloadError | undefined

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  }

  fail(error: PayloadError): void {
    this.error ??= error
  }

  take(length: number): Uint8Array {
    if (length > this.#bytes.length - this.#at) {
      this.fail(malformed("The pickle ends early."))
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

  push(value: PickleValue): void {
    this.#stack.push(value)
  }

  /** Never reaches below the last mark. */
  pop(): PickleValue {
    if (this.#stack.length > (this.#marks.at(-1) ?? 0)) return this.#stack.pop()!
    this.fail(malformed("An operation takes more values than there are."))
    return none
  }

  popMany(count: number): Array<PickleValue> {
    return Array.from({ length: count }, () => this.pop()).reverse()
  }

  toMark(): Array<PickleValue> {
    const mark = this.#marks.pop()
    if (mark === undefined) this.fail(malformed("A mark is missing."))
    return mark === undefined ? [] : this.#stack.splice(mark)
  }

  text(length: number): void {
    const value = decodeText(this.take(length))
    if (value === undefined) this.fail(malformed("A text is not UTF-8."))
    this.push({ type: "text", value: value ?? "" })
  }

  /** A whole number of up to 8 bytes, two's complement, the lowest byte first. */
  long() {
    const bytes = this.take(this.number(1))
    if (bytes.length > 8) return this.fail(malformed("A number is longer than 64 bits."))
    let value = 0n
    for (const [at, byte] of bytes.entries()) value |= BigInt(byte) << BigInt(8 * at)
    const narrow = Number(BigInt.asIntN(8 * bytes.length, value))
    if (!Number.isSafeInteger(narrow)) return this.fail(malformed("A number exceeds 2^53."))
    this.push({ type: "int", value: narrow })
  }

  global() {
    const [module, name] = this.popMany(2)
    if (module?.type !== "text" || name?.type !== "text") {
      return this.fail(malformed("A name is not made of texts."))
    }
    const found = pickleName(module.value, name.value)
    if (found === "rebuild_storage_fd") return this.fail(descriptorSharing)
    if (found !== undefined) return this.push({ type: "name", name: found })
    const shown = `${module.value}.${name.value}`.slice(0, 120)
    this.fail(forbidden(`The pickle names ${JSON.stringify(shown)}, which payloads do not use.`))
  }

  call(isObject: boolean) {
    const [callee, args] = this.popMany(2)
    if (callee?.type !== "name" || args?.type !== "tuple") {
      return this.fail(malformed("The pickle calls something that is not a name."))
    }
    if (!isObject) return this.push({ type: "call", name: callee.name, args: args.items })
    if (args.items.length > 0) return this.fail(forbidden(`${callee.name} is made with arguments.`))
    this.push({ type: "object", name: callee.name, state: undefined })
  }

  build() {
    const [object, state] = this.popMany(2)
    if (object?.type !== "object" || state?.type !== "dict") {
      return this.fail(malformed("A state is given to something that takes none."))
    }
    object.state = state
    this.push(object)
  }

  top<T extends PickleValue["type"]>(type: T): Extract<PickleValue, { readonly type: T }> | undefined {
    const value = this.#stack.at(-1)
    if (value?.type === type) return value as Extract<PickleValue, { readonly type: T }>
    this.fail(malformed(`There is no ${type} to fill.`))
    return undefined
  }

  setItems(items: ReadonlyArray<PickleValue>) {
    if (items.length % 2 !== 0) return this.fail(malformed("A key has no value."))
    const dict = this.top("dict")
    if (dict === undefined) return
    for (let at = 0; at < items.length; at += 2) dict.entries.push([items[at]!, items[at + 1]!])
  }

  remember(): void {
    const value = this.#stack.at(-1)
    if (value === undefined) this.fail(malformed("There is nothing to remember."))
    else this.#memo.push(value)
  }

  recall(index: number): void {
    const value = this.#memo[index]
    if (value === undefined) this.fail(malformed(`Value ${index} was never remembered.`))
    else this.push(value)
  }

  tuple(items: ReadonlyArray<PickleValue>): void {
    this.push({ type: "tuple", items })
  }

  mark(): void {
    this.#marks.push(this.#stack.length)
  }

  float(): void {
    if (this.take(8).length > 0) this.push({ type: "float", value: this.#view.getFloat64(this.#at - 8) })
  }

  /** The version, which stands first. */
  protocol(): void {
    if (this.#at !== 1 || this.number(1) !== 4) this.fail(malformed("The pickle is not of protocol 4."))
  }

  /** A length that must be there, and changes nothing. */
  frame(): void {
    if (this.take(8).length === 0) return
    const length = this.#view.getBigUint64(this.#at - 8, true)
    if (length > BigInt(this.#bytes.length - this.#at)) this.fail(malformed("A frame is longer than the pickle."))
  }

  append(items: ReadonlyArray<PickleValue>): void {
    const list = this.top("list")
    for (const item of items) list?.items.push(item)
  }

  /** The byte of the next operation. */
  operation(): number {
    return this.number(1)
  }

  forbidOperation(op: number): void {
    this.fail(forbidden(`Operation 0x${op.toString(16).padStart(2, "0")} at byte ${this.#at - 1} is not allowed.`))
  }

  /** Nothing but a pickle begins like this. */
  begin(): void {
    if (this.#bytes[0] !== 0x80) this.fail(malformed("The bytes are not a pickle of protocol 4."))
  }

  /** The one value that is left. */
  end(): PickleValue {
    const value = this.pop()
    if (this.#stack.length > 0 || this.#marks.length > 0) this.fail(malformed("The pickle leaves more than one value."))
    if (this.#at < this.#bytes.length) this.fail(malformed("Bytes follow the pickle."))
    return value
  }
}
