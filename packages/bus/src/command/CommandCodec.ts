// SPDX-License-Identifier: Apache-2.0
/**
 * Commands as bytes. Owns the names and the order of fields on the wire.
 *
 * Invariant: what is written is what other clients write, byte for byte; what is read is exactly what they accept. The tag
 * may stand anywhere, unknown fields are ignored, of a repeated field the last counts, a float may come as a whole
 * number; anything else is an error that names the field.
 */
import * as Result from "effect/Result"
import { type Kind, Reader, Writer } from "../wire/MessagePack.ts"
import {
  CleanupBatch,
  InitPair,
  LeavePair,
  LoadTensors,
  type Message,
  QueryStatus,
  RegisterModel,
  RegisterTensors,
  Transfer
} from "./Command.ts"
import { type CommandError, commandError } from "./CommandError.ts"

type FieldType = "str" | "bool" | "int" | "natural" | "float" | "bytes" | "tensors" | "transferType"

interface Field {
  readonly wire: string
  readonly name: string
  readonly type: FieldType
  readonly isOptional: boolean
  /** Not written where it is absent: other clients know no such field. */
  readonly isOwn: boolean
}

const field = (wire: string, type: FieldType, isOptional = false, isOwn = false): Field => ({
  wire,
  name: wire.replaceAll(/_(.)/g, (_, letter: string) => letter.toUpperCase()),
  type,
  isOptional,
  isOwn
})
const optional = (wire: string, type: FieldType): Field => field(wire, type, true)

/** Of a command that only this project knows: not written where it is absent. */
const own = (wire: string, type: FieldType): Field => field(wire, type, true, true)

/** How long a command that needs other ranks may wait for them. */
const waiting = field("timeout", "float", true, true)

/** Bytes for copies of a batch whose transfers move what changed. */
const changes = field("changes_bytes", "natural", true, true)

const shared = [optional("timestamp", "float"), optional("semaphore_name", "str")]

interface CommandForm {
  readonly make: (fields: never) => Message
  /** In the order of the wire. */
  readonly fields: ReadonlyArray<Field>
  readonly byWire: ReadonlyMap<string, Field>
}

const form = (make: (fields: never) => Message, ...own: ReadonlyArray<Field>): CommandForm => {
  const fields = [...own, ...shared]
  return { make, fields, byWire: new Map(fields.map((each) => [each.wire, each])) }
}

/** What is read has been checked field by field, so that the classes need not do it again. */
const checked = { disableChecks: true } as const

const forms: ReadonlyMap<string, CommandForm> = new Map([
  [
    "InitPair",
    form(
      (fields) => new InitPair(fields, checked),
      field("pair_name", "str"),
      field("local_name", "str"),
      field("expected_world_size", "int"),
      field("remote_name", "str"),
      optional("mesh_shape_payload", "bytes"),
      optional("placements_payload", "bytes"),
      waiting
    )
  ],
  [
    "RegisterTensors",
    form(
      (fields) => new RegisterTensors(fields, checked),
      field("batch_id", "str"),
      field("tensors", "tensors"),
      optional("bucket_size", "int"),
      changes,
      own("form", "str"),
      waiting
    )
  ],
  [
    "RegisterModel",
    form(
      (fields) => new RegisterModel(fields, checked),
      field("batch_id", "str"),
      field("pair_name", "str"),
      field("model", "str"),
      field("names", "str"),
      optional("rules", "str"),
      optional("placement", "str"),
      optional("preset", "str"),
      field("tensors", "tensors"),
      optional("bucket_size", "int"),
      changes,
      own("form", "str"),
      waiting
    )
  ],
  [
    "LoadTensors",
    form(
      (fields) => new LoadTensors(fields, checked),
      field("path", "str"),
      field("tensors", "tensors"),
      own("aliases", "str"),
      own("side_rank", "natural"),
      own("mesh_shape_payload", "bytes"),
      own("names", "str"),
      own("stored_names", "str"),
      own("model", "str"),
      own("rules", "str"),
      own("placement", "str"),
      own("preset", "str"),
      own("allows_cast", "bool"),
      own("allows_missing", "bool"),
      own("allows_unexpected", "bool"),
      waiting
    )
  ],
  [
    "Transfer",
    form(
      (fields) => new Transfer(fields, checked),
      field("batch_id", "str"),
      field("transfer_type", "transferType"),
      field("version", "natural", true, true)
    )
  ],
  [
    "QueryStatus",
    form((fields) => new QueryStatus(fields, checked), field("batch_id", "str"), field("state_name", "str"))
  ],
  ["CleanupBatch", form((fields) => new CleanupBatch(fields, checked), field("batch_id", "str"))],
  ["LeavePair", form((fields) => new LeavePair(fields, checked), field("pair_name", "str"))]
])

const writeField = (writer: Writer, type: FieldType, value: unknown) => {
  if (value === null) return writer.nil()
  switch (type) {
    case "str":
    case "transferType":
      return writer.string(value as string)
    case "bool":
      return writer.bool(value as boolean)
    case "int":
    case "natural":
      return writer.int(value as number | bigint)
    case "float":
      return writer.float(value as number)
    case "bytes":
      return writer.bytes(value as Uint8Array)
    case "tensors": {
      const tensors = value as RegisterTensors["tensors"]
      writer.arrayLength(tensors.length)
      for (const [pair, payload] of tensors) {
        writer.arrayLength(2)
        writer.string(pair)
        writer.bytes(payload)
      }
    }
  }
}

/** The command as one MessagePack map: `type` first, then all fields in the order of the wire, nil where absent. */
export const encodeCommand = (message: Message): Uint8Array => {
  const values = message as unknown as { readonly [field: string]: unknown }
  const fields = forms.get(message._tag)!.fields.filter(({ name, isOwn }) => !(isOwn && values[name] === null))
  const writer = new Writer()
  writer.objectLength(fields.length + 1)
  writer.string("type")
  writer.string(message._tag)
  for (const { wire, name, type } of fields) {
    writer.string(wire)
    writeField(writer, type, values[name])
  }
  return writer.finish()
}

/** The next value must be of this kind. */
const expect = (reader: Reader, kind: Kind, path: string): boolean => {
  const found = reader.peek()
  if (found === kind) return true
  // What should not be there must still be whole.
  if (found === "str" || found === "bytes" || found === "ext") reader.skip()
  if (found !== undefined) reader.invalid(`${path} should be ${kind} and is ${found}.`)
  return false
}

const readTensors = (reader: Reader): RegisterTensors["tensors"] => {
  const tensors: Array<readonly [string, Uint8Array]> = []
  if (!expect(reader, "array", "tensors")) return tensors
  const length = reader.arrayLength()
  for (let at = 0; at < length && reader.fault === undefined; at++) {
    const path = `tensors[${at}]`
    if (!expect(reader, "array", path)) break
    const parts = reader.arrayLength()
    if (reader.fault === undefined && parts !== 2) reader.invalid(`${path} should have 2 elements and has ${parts}.`)
    if (!expect(reader, "str", `${path}[0]`)) break
    const pair = reader.string()
    if (!expect(reader, "bytes", `${path}[1]`)) break
    tensors.push([pair, reader.bytes().slice()])
  }
  return tensors
}

const readField = (reader: Reader, { wire, type, isOptional }: Field): unknown => {
  if (isOptional && reader.peek() === "nil") return reader.nil()
  switch (type) {
    case "str":
      return expect(reader, "str", wire) ? reader.string() : ""
    case "bool":
      return expect(reader, "bool", wire) ? reader.bool() : false
    case "int":
      return expect(reader, "int", wire) ? reader.int() : 0
    case "natural": {
      const number = expect(reader, "int", wire) ? reader.int() : 0
      if (typeof number === "bigint" || number < 0) reader.invalid(`${wire} is ${number}, not a natural number.`)
      return number
    }
    case "float":
      if (reader.peek() === "int") return Number(reader.int())
      return expect(reader, "float", wire) ? reader.float() : 0
    case "bytes":
      return expect(reader, "bytes", wire) ? reader.bytes().slice() : null
    case "tensors":
      return readTensors(reader)
    case "transferType": {
      const text = expect(reader, "str", wire) ? reader.string() : ""
      if (reader.fault === undefined && text !== "send" && text !== "recv") {
        reader.invalid(`${wire} is ${JSON.stringify(text.slice(0, 40))}, neither "send" nor "recv".`)
      }
      return text
    }
  }
}

/** A key. One that is not UTF-8 is no field's. */
const readKey = (reader: Reader): string => {
  if (!expect(reader, "str", "A key")) return ""
  return reader.text() ?? ""
}

/** The value of the tag, wherever it stands; the reader is where it was. */
const findForm = (reader: Reader, length: number): CommandForm | undefined => {
  const start = reader.position
  for (let left = length; left > 0 && reader.fault === undefined; left--) {
    if (readKey(reader) !== "type") {
      if (reader.fault === undefined) reader.skip()
      continue
    }
    const tag = expect(reader, "str", "type") ? reader.string() : ""
    if (reader.fault !== undefined) return undefined
    const found = forms.get(tag)
    if (found === undefined) reader.invalid(`There is no command ${JSON.stringify(tag.slice(0, 40))}.`)
    reader.rewind(start)
    return found
  }
  reader.invalid('The field "type" is missing.')
  return undefined
}

const read = (reader: Reader): Message | undefined => {
  if (!expect(reader, "object", "A command")) return undefined
  const length = reader.objectLength()
  const found = findForm(reader, length)
  if (found === undefined) return undefined
  const values: { [name: string]: unknown } = {}
  for (let left = length; left > 0 && reader.fault === undefined; left--) {
    const known = found.byWire.get(readKey(reader))
    if (reader.fault !== undefined) break
    if (known === undefined) reader.skip()
    else values[known.name] = readField(reader, known)
  }
  for (const { name, wire, isOptional } of found.fields) {
    if (name in values) continue
    if (!isOptional) reader.invalid(`The field "${wire}" is missing.`)
    values[name] = null
  }
  if (reader.fault === undefined) reader.end()
  return reader.fault === undefined ? found.make(values as never) : undefined
}

/**
 * Reads one command. Fails with Malformed for bytes that are no MessagePack, and with Invalid for a field that is
 * missing or wrong.
 */
export const decodeCommand = (bytes: Uint8Array): Result.Result<Message, CommandError> => {
  const reader = new Reader(bytes)
  const message = read(reader)
  if (message !== undefined) return Result.succeed(message)
  const { kind, detail } = reader.fault ?? { kind: "malformed", detail: "No message." }
  return Result.fail(
    commandError(kind === "malformed" ? "Malformed" : "Invalid", {
      op: "decode command",
      detail,
      remedy: "Send one of the commands of the tensor bus, as one MessagePack map."
    })
  )
}
