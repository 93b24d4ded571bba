// SPDX-License-Identifier: Apache-2.0
/**
 * A model of real shapes and made-up data: every byte is a function of the tensor's name and the byte's place, so any
 * region can be made anywhere, again and again, without a file. Named `synthetic:SHAPES.json` or `synthetic:SHAPES.json.gz`.
 */
import { createHash } from "node:crypto"
import { promisify } from "node:util"
import { gunzip } from "node:zlib"
import { bitsOf, DType, fromSafetensorsName } from "@tensorferry/core/base/DType"
import { dimensionLimit, isInside, isRepresentable, type Shape } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { readSmallFile, textByteLimit } from "./checkpoint/FileAccess.ts"
import { regionRuns } from "./checkpoint/RegionRuns.ts"
import type { ModelTensor } from "./layout/ModelLayout.ts"
import type { Model } from "./Model.ts"
import { type ModelError, modelError } from "./ModelError.ts"
import { ModelConfig } from "./structure/ModelConfig.ts"

/** What the names of such models begin with; the path of a file of shapes follows. */
export const syntheticPrefix = "synthetic:"

const Shapes = Schema.Struct({
  /** Type of all tensors, as checkpoints name it. */
  dtype: Schema.String,
  /** Shapes by name. Models have so many that a schema of each costs as much as a plan: `isShape` looks at them. */
  tensors: Schema.declare(
    (value): value is Record<string, unknown> => typeof value === "object" && value !== null && !Array.isArray(value)
  ),
  /** Fields of config.json from which a preset is chosen. */
  config: Schema.optionalKey(ModelConfig)
})
const codec = Schema.fromJsonString(Shapes)

const isShape = (value: unknown): value is Shape =>
  Array.isArray(value) &&
  value.length <= dimensionLimit &&
  value.every((length) => Number.isSafeInteger(length) && length >= 0)

const inflate = promisify(gunzip)

/** A well-mixed 32-bit number of a tensor's seed and the number of a four-byte word in it. */
const wordAt = (seed: number, index: number): number => {
  let word = (Math.imul(index | 0, 0x9e3779b1) ^ Math.imul(Math.floor(index / 2 ** 32), 0x85ebca6b)) + seed
  word ^= word >>> 16
  word = Math.imul(word, 0x21f0aaad)
  word ^= word >>> 15
  word = Math.imul(word, 0x735a2d97)
  return word ^ (word >>> 15)
}

/** The bytes of a tensor from `offset` on. */
export const fillSynthetic = (seed: number, offset: number, into: Uint8Array): void => {
  let at = 0
  const byteAt = (place: number): number => wordAt(seed, Math.floor(place / 4)) >>> (8 * (place % 4))
  while (at < into.length && (offset + at) % 4 !== 0) into[at] = byteAt(offset + at++)
  const words = Math.floor((into.length - at) / 4)
  const first = (offset + at) / 4
  if ((into.byteOffset + at) % 4 === 0) {
    const view = new Int32Array(into.buffer, into.byteOffset + at, words)
    for (let word = 0; word < words; word++) view[word] = wordAt(seed, first + word)
  } else {
    const view = new DataView(into.buffer, into.byteOffset + at)
    for (let word = 0; word < words; word++) view.setInt32(4 * word, wordAt(seed, first + word), true)
  }
  for (at += 4 * words; at < into.length; at++) into[at] = byteAt(offset + at)
}

const seedOf = (name: string): number => createHash("sha256").update(name).digest().readInt32LE(0)

/** Reads the shapes; there is nothing to close. */
export const openSynthetic = Effect.fn("openSynthetic")(function* (
  target: string
): Effect.fn.Return<Model, ModelError> {
  const file = target.slice(syntheticPrefix.length)
  const invalid = (detail: string, paramName?: string) =>
    modelError("InvalidShapes", {
      file,
      ...(paramName === undefined ? {} : { paramName }),
      detail,
      remedy: 'Write shapes as JSON, gzipped or not: {"dtype": "BF16", "tensors": {"lm_head.weight": [128256, 2048]}}.'
    })
  const stored = yield* Effect.mapError(readSmallFile(file), (error) => invalid(error.reason.detail))
  const isZipped = stored[0] === 0x1f && stored[1] === 0x8b
  const text = isZipped
    ? yield* Effect.tryPromise({
        try: () => inflate(stored, { maxOutputLength: textByteLimit }),
        catch: (cause) => invalid(cause instanceof Error ? cause.message : String(cause))
      })
    : stored
  const decoded = Schema.decodeResult(codec)(new TextDecoder().decode(text))
  if (Result.isFailure(decoded)) return yield* invalid(decoded.failure.message)
  const { config, tensors: shapes } = decoded.success
  const dtype: DType | undefined = Schema.is(DType)(decoded.success.dtype)
    ? decoded.success.dtype
    : fromSafetensorsName(decoded.success.dtype)
  if (dtype === undefined) return yield* invalid(`There is no type "${decoded.success.dtype}".`)
  const tensors: Array<ModelTensor> = []
  for (const name of Object.keys(shapes)) {
    const shape = shapes[name]
    if (!isShape(shape)) return yield* invalid(`Its shape is not a list of at most ${dimensionLimit} lengths.`, name)
    tensors.push({ name, dtype, shape })
  }
  const tooLarge = tensors.find(({ shape }) => !isRepresentable(shape, bitsOf(dtype)))
  if (tooLarge !== undefined) return yield* invalid("Its size exceeds 2^53 bits.", tooLarge.name)
  // A large model is more often planned than read.
  let known: ReadonlyMap<string, ModelTensor> | undefined
  const seeds = new Map<string, number>()
  const seedFor = (name: string): number => {
    const seed = seeds.get(name) ?? seedOf(name)
    seeds.set(name, seed)
    return seed
  }
  return {
    path: target,
    tensors,
    metadata: new Map(),
    sharded: undefined,
    config,
    digestOf: () => undefined,
    checkFiles: Effect.void,
    files: () => new Map(),
    readRegion: (name, region, into) =>
      Effect.suspend(() => {
        known ??= new Map(tensors.map((tensor) => [tensor.name, tensor]))
        const tensor = known.get(name)
        if (tensor === undefined || !isInside(region, tensor.shape)) {
          return Effect.fail(invalid("It has no such tensor, or not such a region of it.", name))
        }
        const runs = regionRuns(tensor.shape, region, bitsOf(dtype))
        if (Result.isFailure(runs)) return Effect.fail(invalid(runs.failure, name))
        const { runBytes, runCount } = runs.success
        if (into.length !== runBytes * runCount) return Effect.fail(invalid("The buffer has another size.", name))
        const walk = runs.success.walk()
        const seed = seedFor(name)
        for (let run = 0; run < runCount; run++) {
          fillSynthetic(seed, walk.offset(), into.subarray(run * runBytes, (run + 1) * runBytes))
          walk.advance()
        }
        return Effect.void
      })
  }
})
