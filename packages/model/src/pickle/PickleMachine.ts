// SPDX-License-Identifier: Apache-2.0
/**
 * What reading a pickle works on: the bytes, a stack of values, marks in it, and remembered values.
 *
 * Invariant: nothing is imported, looked up or called; a call becomes a value that says what would be called with what.
 * Nothing reaches below the last mark, values are shared and never copied, and the first fault stays. No more values are
 * made than the rules allow.
 */
import { decodeUtf8 } from "../checkpoint/StrictJson.ts"
import { type PickleFault, PickleInput } from "./PickleInput.ts"

export type { PickleFault }

/** A pickle as data. `name` is on the list of names; `call` and `object` say what Python would call or build. */
export type PickleValue<Name extends string = string> =
  | { readonly type: "none" }
  | { readonly type: "bool"; readonly value: boolean }
  | { readonly type: "int"; readonly value: number }
  | { readonly type: "float"; readonly value: number }
  | { readonly type: "text"; readonly value: string }
  | { readonly type: "bytes"; readonly value: Uint8Array }
  | { readonly type: "tuple"; readonly items: ReadonlyArray<PickleValue<Name>> }
  | { readonly type: "list"; readonly items: Array<PickleValue<Name>> }
  | { readonly type: "dict"; readonly entries: Array<readonly [PickleValue<Name>, PickleValue<Name>]> }
  | { readonly type: "name"; readonly name: Name }
  | { readonly type: "call"; readonly name: Name; readonly args: ReadonlyArray<PickleValue<Name>> }
  | { readonly type: "object"; readonly name: Name; state: PickleValue<Name> | undefined }
  | { readonly type: "reference"; readonly id: PickleValue<Name> }

/** What pickles of one format may contain. */
export interface PickleRules<Name extends string> {
  /** The only protocols that are read. */
  readonly protocols: ReadonlyArray<number>
  /** A longer pickle is refused. */
  readonly mostBytes: number
  /** Values that one pickle may make; the memory of a reading follows from it. */
  readonly mostValues: number
  /** The mark that a name is read as; undefined for names that have no business in this format. */
  readonly nameOf: (module: string, name: string) => Name | PickleFault | undefined
  /** Who pickles so, in a message: "payloads". */
  readonly users: string
  /** Names that build a dict when they are called without arguments. */
  readonly dicts: ReadonlySet<Name>
  /** References to storages beside the pickle. */
  readonly allowsReferences: boolean
}

const none = { type: "none" } as const

/** The deepest nesting of marks; what is known to be pickled nests a few levels. */
const mostMarks = 1024

/** The stack, the marks and the memo of one reading. After the first fault every operation is harmless and `error` stays. */
export class PickleMachine<Name extends string> extends PickleInput {
  readonly #rules: PickleRules<Name>
  readonly #stack: Array<PickleValue<Name>> = []
  readonly #marks: Array<number> = []
  readonly #memo = new Map<number, PickleValue<Name>>()
  #made = 0

  constructor(bytes: Uint8Array, rules: PickleRules<Name>) {
    super(bytes)
    this.#rules = rules
  }

  push(value: PickleValue<Name>): void {
    this.#made += 1
    if (this.#made > this.#rules.mostValues) {
      this.fail("Malformed", `The pickle makes more than ${this.#rules.mostValues} values.`)
    }
    this.#stack.push(value)
  }

  /** Never reaches below the last mark. */
  pop(): PickleValue<Name> {
    if (this.#stack.length > (this.#marks.at(-1) ?? 0)) return this.#stack.pop()!
    this.fail("Malformed", "An operation takes more values than there are.")
    return none
  }

  popMany(count: number): Array<PickleValue<Name>> {
    return Array.from({ length: count }, () => this.pop()).reverse()
  }

  toMark(): Array<PickleValue<Name>> {
    const mark = this.#marks.pop()
    if (mark === undefined) this.fail("Malformed", "A mark is missing.")
    return mark === undefined ? [] : this.#stack.splice(mark)
  }

  text(length: number): void {
    const value = decodeUtf8(this.take(length))
    if (value === undefined) this.fail("Malformed", "A text is not UTF-8.")
    this.push({ type: "text", value: value ?? "" })
  }

  /** A whole number of up to 8 bytes, two's complement, the lowest byte first. */
  long() {
    const bytes = this.take(this.number(1))
    if (bytes.length > 8) return this.fail("Malformed", "A number is longer than 64 bits.")
    let value = 0n
    for (const [at, byte] of bytes.entries()) value |= BigInt(byte) << BigInt(8 * at)
    const narrow = Number(BigInt.asIntN(8 * bytes.length, value))
    if (!Number.isSafeInteger(narrow)) return this.fail("Malformed", "A number exceeds 2^53.")
    this.push({ type: "int", value: narrow })
  }

  #name(module: string, name: string) {
    const found = this.#rules.nameOf(module, name)
    if (typeof found === "object") {
      this.error ??= found
      return
    }
    if (found !== undefined) return this.push({ type: "name", name: found })
    const shown = `${module}.${name}`.slice(0, 120)
    this.fail("Forbidden", `The pickle names ${JSON.stringify(shown)}, which ${this.#rules.users} do not use.`)
  }

  /** A name from two texts on the stack. */
  stackGlobal() {
    const [module, name] = this.popMany(2)
    if (module?.type !== "text" || name?.type !== "text") {
      return this.fail("Malformed", "A name is not made of texts.")
    }
    this.#name(module.value, name.value)
  }

  /** A name from two lines. */
  lineGlobal() {
    const module = this.line()
    const name = this.line()
    if (this.error === undefined) this.#name(module, name)
  }

  call(isObject: boolean) {
    const [callee, args] = this.popMany(2)
    if (callee?.type !== "name" || args?.type !== "tuple") {
      return this.fail("Malformed", "The pickle calls something that is not a name.")
    }
    if (!isObject && args.items.length === 0 && this.#rules.dicts.has(callee.name)) {
      return this.push({ type: "dict", entries: [] })
    }
    if (!isObject) return this.push({ type: "call", name: callee.name, args: args.items })
    if (args.items.length > 0) return this.fail("Forbidden", `${callee.name} is made with arguments.`)
    this.push({ type: "object", name: callee.name, state: undefined })
  }

  build() {
    const [object, state] = this.popMany(2)
    // Attributes of a dict are not its contents.
    if (object?.type === "dict" && this.#rules.dicts.size > 0) return this.push(object)
    if (object?.type !== "object" || (state?.type !== "dict" && state?.type !== "tuple")) {
      return this.fail("Malformed", "A state is given to something that takes none.")
    }
    object.state = state
    this.push(object)
  }

  refer() {
    const id = this.pop()
    if (!this.#rules.allowsReferences) return this.fail("Forbidden", "The pickle refers to something outside.")
    this.push({ type: "reference", id })
  }

  top<T extends PickleValue["type"]>(type: T): Extract<PickleValue<Name>, { readonly type: T }> | undefined {
    const value = this.#stack.length > (this.#marks.at(-1) ?? 0) ? this.#stack.at(-1) : undefined
    if (value?.type === type) return value as Extract<PickleValue<Name>, { readonly type: T }>
    this.fail("Malformed", `There is no ${type} to fill.`)
    return undefined
  }

  setItems(items: ReadonlyArray<PickleValue<Name>>) {
    if (items.length % 2 !== 0) return this.fail("Malformed", "A key has no value.")
    const dict = this.top("dict")
    if (dict === undefined) return
    for (let at = 0; at < items.length; at += 2) dict.entries.push([items[at]!, items[at + 1]!])
  }

  append(items: ReadonlyArray<PickleValue<Name>>): void {
    const list = this.top("list")
    for (const item of items) list?.items.push(item)
  }

  /** Under the next number, or under the one that the pickle gives. */
  remember(index = this.#memo.size): void {
    const value = this.#stack.at(-1)
    if (value === undefined) this.fail("Malformed", "There is nothing to remember.")
    else this.#memo.set(index, value)
  }

  recall(index: number): void {
    const value = this.#memo.get(index)
    if (value === undefined) this.fail("Malformed", `Value ${index} was never remembered.`)
    else this.push(value)
  }

  tuple(items: ReadonlyArray<PickleValue<Name>>): void {
    this.push({ type: "tuple", items })
  }

  mark() {
    if (this.#marks.length >= mostMarks) return this.fail("Malformed", "The pickle nests too deep.")
    this.#marks.push(this.#stack.length)
  }

  float(): void {
    this.push({ type: "float", value: this.double() })
  }

  /** The version, which stands first. */
  protocol() {
    const isFirst = this.at === 1
    const version = this.number(1)
    if (isFirst && this.#rules.protocols.includes(version)) return
    this.fail("Malformed", `The pickle is not of protocol ${this.#rules.protocols.join(" or ")}.`)
  }

  /** Nothing but a pickle begins like this. */
  begin(): void {
    if (this.first === 0x80) return
    this.fail("Malformed", `The bytes are not a pickle of protocol ${this.#rules.protocols.join(" or ")}.`)
  }

  /** The one value that is left. */
  end(): PickleValue<Name> {
    const value = this.pop()
    if (this.#stack.length > 0 || this.#marks.length > 0) {
      this.fail("Malformed", "The pickle leaves more than one value.")
    }
    if (this.left > 0) this.fail("Malformed", "Bytes follow the pickle.")
    return value
  }
}
