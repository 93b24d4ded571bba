// SPDX-License-Identifier: Apache-2.0
/**
 * A delta as a safetensors file: what turns one version of a model into the next, and the digests of both.
 *
 * Each tensor that changed is a `U8` tensor of its own name, whose bytes are the payload (DeltaPayload.ts). The
 * metadata of the file says `tensorferry.delta` for `format`, `1` for `version`, digests of all tensors before and after for
 * `base` and `result`, and for `tensors` a JSON list of every tensor of the model: name, type as the format spells it, shape,
 * digest before, and, where it changed, digest after. The digest of a tensor is SHA-256 over `dtype[shape]` and its dense bytes; that
 * of a model is SHA-256 over the JSON object of these by name, keys sorted.
 *
 * Invariant: an open delta says one thing: its list agrees with its digests, and its payloads are those of the tensors that
 * changed. Payloads are not read before they are asked for.
 */
import { type Digest, digestOf } from "@tensorferry/core/base/Digest"
import { bitsOf, type DType, fromSafetensorsName, isSubByte, safetensorsNameOf } from "@tensorferry/core/base/DType"
import { elementCount, isRepresentable, Shape } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import { openSafetensors } from "../checkpoint/Safetensors.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import {
  type DecodedDelta,
  type DeltaFault,
  type DeltaShape,
  decodeDelta,
  decodeHead,
  type PayloadHead,
  payloadHeadBytes
} from "./DeltaPayload.ts"

/** What the file's metadata says it is. */
export const deltaFormat = "tensorferry.delta"
/** The version of that which is written; others are refused. */
export const deltaVersion = "1"

/** A tensor of the model, with its digests before and after. */
export interface DeltaTensor {
  readonly name: string
  readonly dtype: DType
  readonly shape: Shape
  readonly base: Digest
  /** The same as before where the tensor did not change. */
  readonly result: Digest
}

/** An open delta. */
export interface DeltaFile {
  /** Of the file. */
  readonly path: string
  /** Digests of the whole model. */
  readonly base: Digest
  /** Of the version that the delta leads to. */
  readonly result: Digest
  /** Every tensor of the model, by name. */
  readonly tensors: ReadonlyMap<string, DeltaTensor>
  /** Bytes of payloads, by the names of the tensors that changed. */
  readonly payloadBytes: ReadonlyMap<string, number>
  /** What the payload of a tensor that changed says before its body. */
  readonly readHead: (name: string) => Effect.Effect<PayloadHead, CheckpointError | ModelError>
  /** All of it. */
  readonly readChanges: (name: string) => Effect.Effect<DecodedDelta, CheckpointError | ModelError>
}

const DigestText = Schema.String.check(Schema.isPattern(/^[0-9a-f]{64}$/))

const Listed = Schema.Union([
  Schema.Tuple([Schema.String, Schema.String, Shape, DigestText]),
  Schema.Tuple([Schema.String, Schema.String, Shape, DigestText, DigestText])
])
const listCodec = Schema.fromJsonString(Schema.Array(Listed))

/** Elements of a tensor and their bytes. */
export const deltaShapeOf = ({ dtype, shape }: Pick<DeltaTensor, "dtype" | "shape">): DeltaShape => ({
  elements: elementCount(shape),
  elementBytes: bitsOf(dtype) / 8
})

/** The digest of a whole model out of those of its tensors. */
export const modelDigest = (tensors: Iterable<DeltaTensor>, side: "base" | "result"): Digest =>
  digestOf(Object.fromEntries([...tensors].map((tensor) => [tensor.name, tensor[side]])))

/** The metadata of a delta between these tensors. */
export const deltaMetadata = (tensors: ReadonlyArray<DeltaTensor>): ReadonlyMap<string, string> =>
  new Map([
    ["format", deltaFormat],
    ["version", deltaVersion],
    ["base", modelDigest(tensors, "base")],
    ["result", modelDigest(tensors, "result")],
    [
      "tensors",
      JSON.stringify(
        tensors.map(({ name, dtype, shape, base, result }) => [
          ...[name, safetensorsNameOf(dtype), shape, base],
          ...(base === result ? [] : [result])
        ])
      )
    ]
  ])

const invalid = (file: string, detail: string, paramName?: string): ModelError =>
  modelError("InvalidDelta", {
    file,
    detail,
    remedy: "Fetch the delta again, or take the full model.",
    ...(paramName === undefined ? {} : { paramName })
  })

/** The list of tensors, or why it is none. */
const listOf = (path: string, text: string): Result.Result<ReadonlyArray<DeltaTensor>, ModelError> => {
  const read = Schema.decodeResult(listCodec)(text)
  if (Result.isFailure(read)) return Result.fail(invalid(path, "The list of tensors cannot be read."))
  const tensors: Array<DeltaTensor> = []
  for (const [name, type, shape, base, result = base] of read.success) {
    const dtype = fromSafetensorsName(type)
    if (dtype === undefined || isSubByte(dtype) || !isRepresentable(shape, bitsOf(dtype))) {
      return Result.fail(invalid(path, `Its type ${type} or its shape is none that changes are stated for.`, name))
    }
    tensors.push({ name, dtype, shape, base, result })
  }
  return Result.succeed(tensors)
}

/**
 * Opens a delta and holds everything it says against itself, except its payloads; closed by the scope. Fails with
 * InvalidDelta, or as `openSafetensors` does.
 */
export const openDelta = Effect.fn("openDelta")(function* (
  path: string
): Effect.fn.Return<DeltaFile, CheckpointError | ModelError, Scope.Scope> {
  const file = yield* openSafetensors(path)
  const stated = (key: string): string => file.metadata.get(key) ?? ""
  if (stated("format") !== deltaFormat) return yield* invalid(path, "The file is no delta.")
  if (stated("version") !== deltaVersion) {
    return yield* invalid(path, `Version ${stated("version")} of deltas is unknown; ${deltaVersion} is read.`)
  }
  const list = yield* Effect.fromResult(listOf(path, stated("tensors")))
  const tensors = new Map(list.map((tensor) => [tensor.name, tensor]))
  if (tensors.size !== list.length) return yield* invalid(path, "Two tensors have one name.")
  for (const side of ["base", "result"] as const) {
    if (modelDigest(list, side) !== stated(side)) {
      return yield* invalid(path, `Its tensors do not have the digest that it states of the ${side}.`)
    }
  }
  for (const { name, base, result } of list) {
    if ((base !== result) === file.tensors.has(name)) continue
    return yield* invalid(
      path,
      base === result ? "It did not change and has changes." : "Its changes are missing.",
      name
    )
  }
  for (const { name, dtype, shape } of file.tensors.values()) {
    if (!tensors.has(name)) return yield* invalid(path, "The model has no such tensor.", name)
    if (dtype !== "uint8" || shape.length !== 1) return yield* invalid(path, "Its changes are no list of bytes.", name)
  }
  /** The first bytes of a payload, all of them by default, as `decode` reads them. */
  const readWith = Effect.fnUntraced(function* <A>(
    name: string,
    decode: (bytes: Uint8Array, shape: DeltaShape) => Result.Result<A, DeltaFault>,
    most = Number.POSITIVE_INFINITY
  ) {
    const payload = file.tensors.get(name)
    if (payload === undefined) return yield* invalid(path, "It has no changes here.", name)
    const bytes = new Uint8Array(Math.min(most, payload.byteLength))
    yield* file.readRegion(name, [[0, bytes.length]], bytes)
    const decoded = decode(bytes, deltaShapeOf(tensors.get(name)!))
    return Result.isSuccess(decoded) ? decoded.success : yield* invalid(path, decoded.failure.detail, name)
  })
  return {
    path,
    base: stated("base"),
    result: stated("result"),
    tensors,
    payloadBytes: new Map([...file.tensors.values()].map(({ name, byteLength }) => [name, byteLength])),
    readHead: (name) => readWith(name, decodeHead, payloadHeadBytes),
    readChanges: (name) => readWith(name, decodeDelta)
  }
})
