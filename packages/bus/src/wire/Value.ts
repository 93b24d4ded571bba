// SPDX-License-Identifier: Apache-2.0
/**
 * Plain values as MessagePack: what replies, states and payloads of this bus are made of. Schemas say what a value means;
 * here it is only carried.
 *
 * Invariant: what is decoded has no prototype to meddle with, is no deeper than 32 levels and no larger than its bytes.
 */
import * as Result from "effect/Result"
import { type Fault, Reader, Writer } from "./MessagePack.ts"

export type Value =
  | null
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | ReadonlyArray<Value>
  | { readonly [key: string]: Value }

const deepest = 32

const write = (writer: Writer, value: Value): void => {
  if (value === null) writer.nil()
  else if (typeof value === "boolean") writer.bool(value)
  else if (typeof value === "string") writer.string(value)
  else if (typeof value === "bigint") writer.int(value)
  else if (typeof value === "number") {
    if (Number.isSafeInteger(value) && !Object.is(value, -0)) writer.int(value)
    else writer.float(value)
  } else if (value instanceof Uint8Array) writer.bytes(value)
  else if (Array.isArray(value)) {
    writer.arrayLength(value.length)
    for (const element of value) write(writer, element)
  } else {
    const entries = Object.entries(value).filter(([, element]) => element !== undefined)
    writer.objectLength(entries.length)
    for (const [key, element] of entries) {
      writer.string(key)
      write(writer, element)
    }
  }
}

/** A whole number is written as one, also where it is a float by type. */
export const encodeValue = (value: Value): Uint8Array => {
  const writer = new Writer()
  write(writer, value)
  return writer.finish()
}

const read = (reader: Reader, depth: number): Value => {
  const kind = reader.peek()
  if (kind === undefined) return null
  if (depth > deepest) {
    reader.malformed("Values are nested too deeply.")
    return null
  }
  switch (kind) {
    case "nil":
      return reader.nil()
    case "bool":
      return reader.bool()
    case "int":
      return reader.int()
    case "float":
      return reader.float()
    case "str":
      return reader.string()
    case "bytes":
      return reader.bytes().slice()
    case "ext":
      reader.invalid("Extension types are not used here.")
      return null
    case "array": {
      const list: Array<Value> = []
      for (let left = reader.arrayLength(); left > 0 && reader.fault === undefined; left--) {
        list.push(read(reader, depth + 1))
      }
      return list
    }
    case "object": {
      const object: { [key: string]: Value } = Object.create(null)
      for (let left = reader.objectLength(); left > 0 && reader.fault === undefined; left--) {
        if (reader.peek() !== "str") {
          reader.invalid("A key is not a string.")
          break
        }
        const key = reader.string()
        object[key] = read(reader, depth + 1)
      }
      return object
    }
  }
}

export const decodeValue = (bytes: Uint8Array): Result.Result<Value, Fault> => {
  const reader = new Reader(bytes)
  const value = read(reader, 0)
  if (reader.fault === undefined) reader.end()
  return reader.fault === undefined ? Result.succeed(value) : Result.fail(reader.fault)
}
