// SPDX-License-Identifier: Apache-2.0
/**
 * The header of a safetensors file: 8 bytes of length, then JSON that gives each tensor's type, shape and byte range.
 *
 * Invariant: a header that parses describes its file completely. Every range has exactly the bytes of its shape, the
 * ranges cover the data section without gap or overlap, and no number in it exceeds 2^53 or the size of the file. So no
 * later code needs to check an offset. Nothing is allocated by what a header claims, only by what the file has.
 */

import {
  bitsOf,
  byteLengthOf,
  type DType,
  dtypes,
  fromSafetensorsName,
  safetensorsNameOf
} from "@tensorferry/core/base/DType"
import { dimensionLimit, elementCount, formatShape, isRepresentable, type Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type CheckpointError, checkpointError } from "./CheckpointError.ts"
import { decodeUtf8, isJsonArray, isJsonObject, type Json, naturalOf, parseJson } from "./StrictJson.ts"

/** Bytes of the length field. */
export const lengthFieldBytes = 8

/** Longest JSON text that the format allows. */
export const headerByteLimit = 100_000_000

const metadataKey = "__metadata__"
const space = 0x20
const openBrace = 0x7b

export interface TensorDescription {
  readonly name: string
  readonly dtype: DType
  readonly shape: Shape
}

export interface TensorInfo extends TensorDescription {
  /** First byte, counted from the start of the file. */
  readonly byteOffset: number
  readonly byteLength: number
}

export interface SafetensorsHeader {
  /** In the order of their data. */
  readonly tensors: ReadonlyMap<string, TensorInfo>
  readonly metadata: ReadonlyMap<string, string>
  /** Where the data section begins. Files of others may begin it at any byte. */
  readonly dataOffset: number
}

const remedies = {
  InvalidHeader: "The file is damaged or not a safetensors file; fetch or write it again.",
  TensorInvalid: "The header is damaged or hostile; fetch or write the file again.",
  Truncated: "Fetch or write the file again."
}

const fail = (
  tag: keyof typeof remedies,
  file: string,
  detail: string,
  paramName?: string
): Result.Result<never, CheckpointError> =>
  Result.fail(
    checkpointError(tag, {
      detail,
      remedy: remedies[tag],
      file,
      ...(paramName === undefined ? {} : { paramName })
    })
  )

/** Length of the JSON text, from the first 8 bytes of a file of `fileSize` bytes. */
export const parseHeaderLength = (
  prefix: Uint8Array,
  fileSize: number,
  file: string
): Result.Result<number, CheckpointError> => {
  if (prefix.length < lengthFieldBytes || fileSize < lengthFieldBytes) {
    return fail(
      "Truncated",
      file,
      `The file has ${Math.min(prefix.length, fileSize)} bytes, the length field alone needs 8.`
    )
  }
  const length = new DataView(prefix.buffer, prefix.byteOffset, lengthFieldBytes).getBigUint64(0, true)
  if (length > BigInt(headerByteLimit)) {
    return fail("InvalidHeader", file, `The header claims ${length} bytes, the format allows ${headerByteLimit}.`)
  }
  if (length > BigInt(fileSize - lengthFieldBytes)) {
    return fail(
      "Truncated",
      file,
      `The header claims ${length} bytes, the file has ${fileSize - lengthFieldBytes} after the length field.`
    )
  }
  return Result.succeed(Number(length))
}

/** A tensor's entry, with its range still relative to the data section. */
const parseEntry = (name: string, entry: Json, file: string): Result.Result<TensorInfo, CheckpointError> => {
  const invalid = (detail: string) => fail("TensorInvalid", file, detail, name)
  if (!isJsonObject(entry)) return invalid("The entry is not an object.")
  for (const field of entry.keys()) {
    if (field !== "dtype" && field !== "shape" && field !== "data_offsets") {
      return invalid(`The entry has an unknown field ${JSON.stringify(field)}.`)
    }
  }
  const dtypeName = entry.get("dtype")
  const dtype = typeof dtypeName === "string" ? fromSafetensorsName(dtypeName) : undefined
  if (dtype === undefined) {
    const found = typeof dtypeName === "string" ? JSON.stringify(dtypeName) : "not a string"
    return invalid(`The dtype is ${found}; known are ${dtypes.map(safetensorsNameOf).join(", ")}.`)
  }
  const naturals = (field: string): ReadonlyArray<number> | undefined => {
    const list = entry.get(field)
    if (!isJsonArray(list)) return undefined
    const numbers = list.map(naturalOf)
    return numbers.every((number) => number !== undefined) ? numbers : undefined
  }
  const shape = naturals("shape")
  if (shape === undefined) return invalid("The shape is not a list of natural numbers up to 2^53 - 1.")
  const range = naturals("data_offsets")
  if (range === undefined || range.length !== 2) {
    return invalid("The data_offsets are not two natural numbers up to 2^53 - 1.")
  }
  const [begin, end] = range as [number, number]
  if (begin > end) return invalid(`The data_offsets [${begin},${end}] run backwards.`)
  const bits = bitsOf(dtype)
  if (!isRepresentable(shape, bits)) return invalid(`The shape ${formatShape(shape)} of ${dtype} exceeds 2^53 bits.`)
  const elements = elementCount(shape)
  if ((elements * bits) % 8 !== 0) {
    return invalid(`The shape ${formatShape(shape)} of ${dtype} has ${elements * bits} bits, not whole bytes.`)
  }
  const byteLength = byteLengthOf(dtype, elements)
  if (byteLength !== end - begin) {
    return invalid(
      `The shape ${formatShape(shape)} of ${dtype} needs ${byteLength} bytes, data_offsets [${begin},${end}] give ${end - begin}.`
    )
  }
  return Result.succeed({ name, dtype, shape, byteOffset: begin, byteLength })
}

const parseMetadata = (value: Json | undefined, file: string): Result.Result<Map<string, string>, CheckpointError> => {
  const metadata = new Map<string, string>()
  if (value === undefined) return Result.succeed(metadata)
  if (!isJsonObject(value)) return fail("InvalidHeader", file, `${metadataKey} is not an object.`)
  for (const [key, text] of value) {
    if (typeof text !== "string") {
      return fail("InvalidHeader", file, `${metadataKey} has ${JSON.stringify(key)}, which is not a string.`)
    }
    metadata.set(key, text)
  }
  return Result.succeed(metadata)
}

/** Sorts by range and proves that the ranges tile the data section. An empty tensor may lie at any seam. */
const tileDataSection = (
  tensors: ReadonlyArray<TensorInfo>,
  dataOffset: number,
  fileSize: number,
  file: string
): Result.Result<ReadonlyMap<string, TensorInfo>, CheckpointError> => {
  const sorted = [...tensors].sort((a, b) => a.byteOffset - b.byteOffset || a.byteLength - b.byteLength)
  const tiled = new Map<string, TensorInfo>()
  let cursor = 0
  for (const tensor of sorted) {
    if (tensor.byteOffset !== cursor) {
      const how = tensor.byteOffset < cursor ? "overlaps the tensor before it" : "leaves a gap"
      return fail(
        "TensorInvalid",
        file,
        `The data begins at ${tensor.byteOffset} and ${how}, which ends at ${cursor}.`,
        tensor.name
      )
    }
    cursor += tensor.byteLength
    tiled.set(tensor.name, { ...tensor, byteOffset: tensor.byteOffset + dataOffset })
  }
  const available = fileSize - dataOffset
  if (cursor > available)
    return fail("Truncated", file, `The tensors need ${cursor} bytes of data, the file has ${available}.`)
  if (cursor < available) {
    return fail("InvalidHeader", file, `${available - cursor} bytes follow the data of the last tensor.`)
  }
  return Result.succeed(tiled)
}

/**
 * Parses and checks a header. `bytes` are the first bytes of the file, at least up to the end of the header, `fileSize`
 * the size of the whole file, `file` its name for errors.
 */
export const parseHeader = (
  bytes: Uint8Array,
  fileSize: number,
  file = "<bytes>"
): Result.Result<SafetensorsHeader, CheckpointError> => {
  const length = parseHeaderLength(bytes, fileSize, file)
  if (Result.isFailure(length)) return Result.fail(length.failure)
  const dataOffset = lengthFieldBytes + length.success
  if (bytes.length < dataOffset)
    return fail("Truncated", file, `The header needs ${dataOffset} bytes, ${bytes.length} are here.`)
  const json = bytes.subarray(lengthFieldBytes, dataOffset)
  if (json[0] !== openBrace) return fail("InvalidHeader", file, 'The header does not begin with "{".')
  const text = decodeUtf8(json)
  if (text === undefined) return fail("InvalidHeader", file, "The header is not valid UTF-8.")
  const parsed = parseJson(text, dimensionLimit)
  if (Result.isFailure(parsed)) {
    const { detail, path } = parsed.failure
    const name = path[0]
    return name === undefined || name === metadataKey
      ? fail("InvalidHeader", file, `The header is not valid JSON: ${detail}.`)
      : fail("TensorInvalid", file, `The header is not valid JSON: ${detail}.`, name)
  }
  for (let at = parsed.success.end; at < text.length; at++) {
    const code = text.charCodeAt(at)
    if (code === space) continue
    const shown = `0x${code.toString(16).padStart(2, "0")}`
    return fail("InvalidHeader", file, `The header is padded with ${shown}; only spaces (0x20) may follow the JSON.`)
  }
  const root = parsed.success.value
  if (!isJsonObject(root)) return fail("InvalidHeader", file, "The header is not an object.")
  const metadata = parseMetadata(root.get(metadataKey), file)
  if (Result.isFailure(metadata)) return Result.fail(metadata.failure)
  const tensors: Array<TensorInfo> = []
  for (const [name, entry] of root) {
    if (name === metadataKey) continue
    const tensor = parseEntry(name, entry, file)
    if (Result.isFailure(tensor)) return Result.fail(tensor.failure)
    tensors.push(tensor.success)
  }
  return Result.map(tileDataSection(tensors, dataOffset, fileSize, file), (tiled) => ({
    tensors: tiled,
    metadata: metadata.success,
    dataOffset
  }))
}

export interface EncodedHeader<A extends TensorDescription> {
  /** Length field, JSON and padding; a multiple of 8 bytes. */
  readonly bytes: Uint8Array
  /** The tensors in the order of their data. */
  readonly tensors: ReadonlyArray<A>
  /** Size of the whole file. */
  readonly fileSize: number
}

const refuse = (file: string, detail: string, paramName?: string): Result.Result<never, CheckpointError> =>
  Result.fail(
    checkpointError(paramName === undefined ? "InvalidRequest" : "TensorInvalid", {
      detail,
      remedy: "Correct the list of tensors that is written.",
      file,
      ...(paramName === undefined ? {} : { paramName })
    })
  )

/**
 * Lays out a file: widest types first, then by name, so that every tensor lies at a multiple of its width, and padding
 * with spaces, so that the data begins at a multiple of 8.
 */
export const encodeHeader = <A extends TensorDescription>(
  tensors: ReadonlyArray<A>,
  metadata: ReadonlyMap<string, string>,
  file: string
): Result.Result<EncodedHeader<A>, CheckpointError> => {
  const sorted = [...tensors].sort(
    (a, b) => bitsOf(b.dtype) - bitsOf(a.dtype) || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0)
  )
  const fields: Array<string> = []
  if (metadata.size > 0) {
    for (const [key, text] of metadata) {
      if (!key.isWellFormed() || !text.isWellFormed()) {
        return refuse(file, `The metadata ${JSON.stringify(key)} is not valid Unicode.`)
      }
    }
    const entries = [...metadata].map(([key, text]) => `${JSON.stringify(key)}:${JSON.stringify(text)}`)
    fields.push(`"${metadataKey}":{${entries.join(",")}}`)
  }
  const names = new Set<string>()
  let cursor = 0
  for (const { name, dtype, shape } of sorted) {
    if (name === metadataKey || !name.isWellFormed())
      return refuse(file, "This name cannot be stored in the format.", name)
    if (names.has(name)) return refuse(file, "Two tensors have this name.", name)
    names.add(name)
    if (!isRepresentable(shape, bitsOf(dtype))) {
      return refuse(
        file,
        `The shape ${formatShape(shape)} of ${dtype} is not of natural numbers, or exceeds 2^53 bits.`,
        name
      )
    }
    const elements = elementCount(shape)
    if ((elements * bitsOf(dtype)) % 8 !== 0) {
      return refuse(file, `The shape ${formatShape(shape)} of ${dtype} does not fill whole bytes.`, name)
    }
    const end = cursor + byteLengthOf(dtype, elements)
    if (!Number.isSafeInteger(end)) return refuse(file, "The data exceeds 2^53 bytes.", name)
    fields.push(
      `${JSON.stringify(name)}:{"dtype":"${safetensorsNameOf(dtype)}","shape":${formatShape(shape)},"data_offsets":[${cursor},${end}]}`
    )
    cursor = end
  }
  const json = new TextEncoder().encode(`{${fields.join(",")}}`)
  const length = Math.ceil(json.length / 8) * 8
  if (length > headerByteLimit)
    return refuse(file, `The header needs ${length} bytes, the format allows ${headerByteLimit}.`)
  const bytes = new Uint8Array(lengthFieldBytes + length).fill(space)
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length), true)
  bytes.set(json, lengthFieldBytes)
  return Result.succeed({ bytes, tensors: sorted, fileSize: bytes.length + cursor })
}
