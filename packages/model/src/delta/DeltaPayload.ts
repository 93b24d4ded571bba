// SPDX-License-Identifier: Apache-2.0
/**
 * The changes of one tensor as bytes, in the form that takes the fewest. Version 1:
 *
 * | bytes | what |
 * | --- | --- |
 * | 0 | version: 1 |
 * | 1 | form: 1 positions, 2 xor, 3 full |
 * | 2 | compression of the body: 0 none, 1 zstd |
 * | 3 | bytes of an element: 1, 2, 4 or 8 |
 * | 4 to 7 | zero |
 * | 8 to 15 | elements of the tensor |
 * | 16 to 23 | elements that changed |
 * | 24 to 31 | bytes of the body before its compression |
 * | from 32 | the body |
 *
 * The body of `positions` is their code (PositionCode.ts) and the new elements one after the other; of `xor` the bits that
 * differ between base and result, of all elements; of `full` all elements of the result. Numbers are little-endian.
 *
 * Invariant: any bytes are read or refused, in memory for at most twice what the expected tensor has. Bytes that were
 * damaged may still be read: whoever writes a result compares its digest. Pure.
 */
import * as zlib from "node:zlib"
import * as Result from "effect/Result"
import { blockElements, blockHeadBytes, decodePositions, encodePositions, positionCodeBytes } from "./PositionCode.ts"

/** The version that is written; others are refused. */
export const payloadVersion = 1

/** Bytes before the body. */
export const payloadHeadBytes = 32

const forms = ["positions", "xor", "full"] as const
/** How a payload states changes. */
export type DeltaForm = (typeof forms)[number]

const compressions = ["none", "zstd"] as const
/** How a body is compressed. */
export type DeltaCompression = (typeof compressions)[number]

/** From this share of the full tensor's bytes on, bits that differ are tried beside positions, where they are compressed. */
const xorFrom = 1 / 4

/** What both ends know of a tensor besides its payload. */
export interface DeltaShape {
  readonly elements: number
  readonly elementBytes: number
}

/** Changes of a tensor, with its bytes before and after them; all dense. */
export interface TensorDelta extends DeltaShape {
  readonly base: Uint8Array
  readonly result: Uint8Array
  /** Elements that changed. */
  readonly changed: number
  /** Where they are, and their new bytes, one after the other; not asked for where the form `positions` is not allowed. */
  readonly positions: Uint32Array
  readonly values: Uint8Array
}

/** How bodies may be made. */
export interface DeltaOptions {
  /** `zstd` tries it, and keeps it where it takes fewer bytes; `none` by default. */
  readonly compression?: DeltaCompression
  /** Forms to choose from; all by default. */
  readonly forms?: ReadonlyArray<DeltaForm>
}

/** A payload, and what was chosen for it. */
export interface EncodedDelta {
  readonly bytes: Uint8Array
  readonly form: DeltaForm
  readonly compression: DeltaCompression
}

/** Why bytes are no payload of a tensor, as a sentence. */
export interface DeltaFault {
  readonly _tag: "DeltaFault"
  readonly detail: string
}

/** A payload that was read. */
export type DecodedDelta =
  | { readonly form: "positions"; readonly positions: Uint32Array; readonly values: Uint8Array }
  | { readonly form: "xor"; readonly bits: Uint8Array }
  | { readonly form: "full"; readonly result: Uint8Array }

const positionsBody = ({ elements, positions, values }: TensorDelta): Uint8Array => {
  const codeBytes = positionCodeBytes(positions, elements)
  const body = new Uint8Array(codeBytes + values.length)
  encodePositions(positions, elements, body)
  body.set(values, codeBytes)
  return body
}

/** Sets every byte to its xor with the other's. */
const xorInto = (bytes: Uint8Array, other: Uint8Array): void => {
  const isAligned = (bytes.byteOffset | other.byteOffset) % 4 === 0
  const words = isAligned ? Math.floor(bytes.length / 4) : 0
  const [to, from] = [
    new Int32Array(bytes.buffer, isAligned ? bytes.byteOffset : 0, words),
    new Int32Array(other.buffer, isAligned ? other.byteOffset : 0, words)
  ]
  for (let at = 0; at < words; at++) to[at]! ^= from[at]!
  for (let at = 4 * words; at < bytes.length; at++) bytes[at]! ^= other[at]!
}

const xorBody = ({ base, result }: TensorDelta): Uint8Array => {
  const bits = result.slice()
  xorInto(bits, base)
  return bits
}

/** Level 1: of those that others use for weights, and the only one that keeps up with a network. */
const compress = (body: Uint8Array): Uint8Array =>
  zlib.zstdCompressSync(body, { params: { [zlib.constants.ZSTD_c_compressionLevel]: 1 } })

const assemble = (
  delta: TensorDelta,
  form: DeltaForm,
  body: Uint8Array,
  packed: Uint8Array | undefined
): EncodedDelta => {
  const kept = packed === undefined || packed.length >= body.length ? body : packed
  const bytes = new Uint8Array(payloadHeadBytes + kept.length)
  const compression: DeltaCompression = kept === body ? "none" : "zstd"
  bytes.set([payloadVersion, 1 + forms.indexOf(form), compressions.indexOf(compression), delta.elementBytes])
  const view = new DataView(bytes.buffer)
  view.setBigUint64(8, BigInt(delta.elements), true)
  view.setBigUint64(16, BigInt(delta.changed), true)
  view.setBigUint64(24, BigInt(body.length), true)
  bytes.set(kept, payloadHeadBytes)
  return { bytes, form, compression }
}

/**
 * The payload of changes, in the allowed form that takes the fewest bytes. Bits that differ are tried only where they may
 * win: compressed, and where positions take a quarter of the full tensor's bytes.
 */
export const encodeDelta = (delta: TensorDelta, options: DeltaOptions = {}): EncodedDelta => {
  const allowed = options.forms ?? forms
  const packs = options.compression === "zstd"
  const fullBytes = delta.elements * delta.elementBytes
  const isListed = allowed.includes("positions")
  const listed = isListed ? positionCodeBytes(delta.positions, delta.elements) + delta.values.length : fullBytes
  const candidates: Array<EncodedDelta> = []
  const add = (form: DeltaForm, body: Uint8Array, isPacked: boolean) =>
    candidates.push(assemble(delta, form, body, isPacked ? compress(body) : undefined))
  const isOnly = allowed.length === 1
  if (isListed && (isOnly || packs || listed < fullBytes)) {
    add("positions", positionsBody(delta), packs)
  }
  if (allowed.includes("xor") && (isOnly || (packs && listed >= xorFrom * fullBytes))) add("xor", xorBody(delta), packs)
  const best = () => candidates.reduce((least, one) => (one.bytes.length < least.bytes.length ? one : least))
  const isBeaten = candidates.length > 0 && best().bytes.length <= payloadHeadBytes + fullBytes
  if (allowed.includes("full") && !isBeaten) add("full", delta.result, false)
  if (candidates.length === 0) add("positions", positionsBody(delta), packs)
  return best()
}

const fail = (detail: string): Result.Result<never, DeltaFault> => Result.fail({ _tag: "DeltaFault", detail })

/** What a payload says before its body. */
export interface PayloadHead {
  readonly form: DeltaForm
  readonly compression: DeltaCompression
  /** Elements that changed. */
  readonly changed: number
  /** Bytes of the body before its compression. */
  readonly bodyBytes: number
}

/** Reads the first `payloadHeadBytes` of a payload, and holds them against the tensor that it is for. */
export const decodeHead = (
  bytes: Uint8Array,
  { elements, elementBytes }: DeltaShape
): Result.Result<PayloadHead, DeltaFault> => {
  if (bytes.length < payloadHeadBytes) return fail(`${bytes.length} bytes are too few for a payload.`)
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const [version, formNumber, compressionNumber, size] = bytes
  if (version !== payloadVersion) return fail(`Version ${version} is unknown; ${payloadVersion} is read.`)
  const form = forms[formNumber! - 1]
  const compression = compressions[compressionNumber!]
  if (form === undefined || compression === undefined || view.getUint32(4, true) !== 0) {
    return fail("Its form or compression is unknown.")
  }
  const numberAt = (at: number): number => Number(view.getBigUint64(at, true))
  const [ofElements, changed, bodyBytes] = [numberAt(8), numberAt(16), numberAt(24)]
  if (ofElements !== elements || size !== elementBytes) {
    return fail(`It is for ${ofElements} elements of ${size} bytes, not ${elements} of ${elementBytes}.`)
  }
  const fullBytes = elements * elementBytes
  // A change takes its bytes and at most two more; a block has a head.
  const listed = changed * (elementBytes + 2) + blockHeadBytes * Math.ceil(elements / blockElements)
  const fits = form === "positions" ? bodyBytes <= listed : bodyBytes === fullBytes
  return changed <= elements && fits
    ? Result.succeed({ form, compression, changed, bodyBytes })
    : fail(`${changed} changes and a body of ${bodyBytes} bytes do not fit ${elements} elements.`)
}

/** The body before its compression, which has exactly so many bytes. */
const bodyOf = (
  bytes: Uint8Array,
  compression: DeltaCompression,
  length: number
): Result.Result<Uint8Array, DeltaFault> => {
  const stored = bytes.subarray(payloadHeadBytes)
  if (compression === "none") {
    return stored.length === length
      ? Result.succeed(stored)
      : fail(`The body has ${stored.length} bytes, not ${length}.`)
  }
  const unpacked = Result.try(() => zlib.zstdDecompressSync(stored, { maxOutputLength: Math.max(1, length) }))
  if (Result.isFailure(unpacked)) return fail("The body is not compressed by zstd, or longer than stated.")
  return unpacked.success.length === length
    ? Result.succeed(new Uint8Array(unpacked.success.buffer, unpacked.success.byteOffset, length))
    : fail(`The body has ${unpacked.success.length} bytes, not ${length}.`)
}

/** Reads the payload of a tensor with this many elements. */
export const decodeDelta = (bytes: Uint8Array, shape: DeltaShape): Result.Result<DecodedDelta, DeltaFault> => {
  const head = decodeHead(bytes, shape)
  if (Result.isFailure(head)) return Result.fail(head.failure)
  const { bodyBytes, changed, compression, form } = head.success
  const body = bodyOf(bytes, compression, bodyBytes)
  if (Result.isFailure(body)) return Result.fail(body.failure)
  if (form === "full") return Result.succeed({ form, result: body.success })
  if (form === "xor") return Result.succeed({ form, bits: body.success })
  const read = decodePositions(body.success, shape.elements, changed)
  if (Result.isFailure(read)) return fail(read.failure)
  const values = body.success.subarray(read.success.byteLength)
  return values.length === changed * shape.elementBytes
    ? Result.succeed({ form, positions: read.success.positions, values })
    : fail(`${changed} changes have ${changed * shape.elementBytes} bytes, not ${values.length}.`)
}

/** Turns the bytes of the base, dense, into those of the result. */
export const applyDelta = (decoded: DecodedDelta, bytes: Uint8Array, elementBytes: number): void => {
  switch (decoded.form) {
    case "full":
      bytes.set(decoded.result)
      return
    case "xor":
      xorInto(bytes, decoded.bits)
      return
    case "positions": {
      const { positions, values } = decoded
      let from = 0
      for (let at = 0; at < positions.length; at++) {
        const to = positions[at]! * elementBytes
        for (let byte = 0; byte < elementBytes; byte++) bytes[to + byte] = values[from++]!
      }
    }
  }
}
