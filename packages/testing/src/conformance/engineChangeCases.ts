// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of `TensorEngine.diff` and `apply`: what counts as changed, the order and the room of what is found, every form of
 * memory, and what is refused before a byte is written.
 */
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineCapabilities } from "@tensorferry/core/service/TensorEngine"
import type { Changes } from "@tensorferry/core/tensor/Changes"
import * as Effect from "effect/Effect"
import { findChanges } from "../values/changes.ts"
import { checkEqual, expectFailure, type TensorEngineCase } from "./Case.ts"
import { expectElements, type Form, type Placed, patternBytes, place, poison, setElements, viewOf } from "./memory.ts"

const needsChanges = (capabilities: TensorEngineCapabilities): string | undefined =>
  capabilities.changes ? undefined : "the engine neither finds changes nor writes them"

const types: ReadonlyArray<DType> = ["uint8", "bfloat16", "float32", "float64", "bool", "float8_e8m0fnu", "complex64"]

/** Seeded numbers from 0 to below 1. */
const numbers = (seed: number) => {
  let state = (seed * 2_654_435_761) >>> 0
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return (state >>> 8) / 2 ** 24
  }
}

/** The same bytes with one bit of a share of the elements turned over. */
const changed = (bytes: Uint8Array, size: number, share: number, seed: number): Uint8Array => {
  const next = numbers(seed)
  const made = bytes.slice()
  for (let at = 0; at < made.length; at += size) {
    if (next() < share) made[at + Math.floor(next() * size)]! ^= 1 << Math.floor(next() * 8)
  }
  return made
}

interface PlacedChanges extends Changes {
  readonly placed: { readonly positions: Placed; readonly values: Placed }
}

const placeChanges = Effect.fnUntraced(function* (dtype: DType, room: number) {
  const [positions, values] = [yield* place("uint32", [room]), yield* place(dtype, [room])]
  return {
    positions: positions.tensor,
    values: values.tensor,
    placed: { positions, values }
  } satisfies PlacedChanges
})

const bytesOf = (positions: Uint32Array): Uint8Array => new Uint8Array(positions.slice().buffer)

/** The first bytes are these, and the rest of the list is untouched. */
const expectFirst = (what: string, placed: Placed, bytes: Uint8Array) => {
  const elements = new Uint8Array(elementCount(placed.tensor.shape) * (bitsOf(placed.tensor.dtype) / 8)).fill(poison)
  elements.set(bytes)
  return expectElements(what, placed, elements)
}

/** Finds changes, holds them against the rule, and writes them into a copy of the base. */
const findAndWrite = Effect.fnUntraced(function* (
  what: string,
  dtype: DType,
  shape: Shape,
  base: Uint8Array,
  current: Uint8Array,
  forms: { readonly base: Form; readonly current: Form } = { base: "dense", current: "dense" },
  spare = 3
) {
  const engine = yield* TensorEngine
  const size = bitsOf(dtype) / 8
  const [from, to] = [yield* place(dtype, shape, forms.base), yield* place(dtype, shape, forms.current)]
  yield* setElements(from, base)
  yield* setElements(to, current)
  const expected = findChanges(base, current, size)
  const count = expected.positions.length
  const found = yield* placeChanges(dtype, Math.max(0, count + spare))
  yield* checkEqual(`${what}: the number of changes`, yield* engine.diff(from.tensor, to.tensor, found), count)
  const room = Math.min(count, count + spare)
  yield* expectFirst(`${what}: positions`, found.placed.positions, bytesOf(expected.positions.slice(0, room)))
  yield* expectFirst(`${what}: values`, found.placed.values, expected.values.slice(0, room * size))
  yield* expectElements(`${what}: the base after the search`, from, base)
  yield* expectElements(`${what}: the current tensor after the search`, to, current)
  if (spare < 0) return
  const list = {
    positions: yield* viewOf(found.positions.storage, "uint32", [count], found.positions),
    values: yield* viewOf(found.values.storage, dtype, [count], found.values)
  }
  yield* engine.apply(from.tensor, list)
  yield* expectElements(`${what}: the base with the changes`, from, current)
})

const changesCase = (name: string, program: TensorEngineCase["program"]): TensorEngineCase => ({
  name,
  requires: needsChanges,
  program: Effect.scoped(program)
})

/** A list of changes with these positions. */
const listOf = Effect.fnUntraced(function* (dtype: DType, positions: ReadonlyArray<number>, seed = 3) {
  const changes = yield* placeChanges(dtype, positions.length)
  yield* setElements(changes.placed.positions, bytesOf(Uint32Array.from(positions)))
  const values = patternBytes(positions.length * (bitsOf(dtype) / 8), seed)
  yield* setElements(changes.placed.values, values)
  return { changes, values }
})

export const engineChangeCases: ReadonlyArray<TensorEngineCase> = [
  changesCase(
    "finds and writes changes of every length and type",
    Effect.gen(function* () {
      for (const dtype of types) {
        const size = bitsOf(dtype) / 8
        for (const length of [0, 1, 2, 7, 8, 9, 31, 32, 33, 127, 128, 129, 1000, 4095, 4096, 4097, 9001]) {
          const base = patternBytes(length * size, length)
          for (const share of [0, 0.02, 1]) {
            yield* findAndWrite(`${share} of ${length}`, dtype, [length], base, changed(base, size, share, length + 7))
          }
        }
      }
    })
  ),
  changesCase(
    "finds changes by bits, not by values",
    Effect.gen(function* () {
      const bits = (...words: ReadonlyArray<number>) => new Uint8Array(Uint32Array.from(words).buffer)
      const [quiet, other, signalling] = [0x7fc0_0000, 0x7fc0_0001, 0x7f80_0001]
      const base = bits(quiet, quiet, signalling, 0, 0x8000_0000, 0x3f80_0000)
      const current = bits(quiet, other, signalling, 0x8000_0000, 0, 0x3f80_0000)
      yield* findAndWrite("NaNs and zeros", "float32", [6], base, current)
    })
  ),
  changesCase(
    "finds and writes changes of tensors of every form",
    Effect.gen(function* () {
      const forms = ["dense", "padded", "transposed", "spread"] as const
      for (const dtype of ["uint8", "bfloat16", "float32", "float64"] as const) {
        const size = bitsOf(dtype) / 8
        for (const shape of [[37, 53], [3, 1, 5, 70], [1], []] as const) {
          const length = elementCount(shape)
          const base = patternBytes(length * size, length)
          for (const [at, form] of forms.entries()) {
            const current = changed(base, size, 0.1, at + 1)
            yield* findAndWrite(`${form} base`, dtype, shape, base, current, { base: form, current: "dense" })
            yield* findAndWrite(`${form} current`, dtype, shape, base, current, {
              base: forms[(at + 1) % 4]!,
              current: form
            })
          }
        }
      }
    })
  ),
  changesCase(
    "counts all changes where there is room for some, and writes no further",
    Effect.gen(function* () {
      const base = patternBytes(2 * 20_000, 5)
      for (const [share, spare] of [
        [0.01, -1],
        [0.5, -5000],
        [1, -19_999],
        [1, -20_000]
      ] as const) {
        const current = changed(base, 2, share, 11)
        yield* findAndWrite(`${-spare} too few`, "bfloat16", [20_000], base, current, undefined, spare)
      }
    })
  ),
  changesCase(
    "finds changes at the ends of large tensors",
    Effect.gen(function* () {
      const length = 600_011
      const base = patternBytes(2 * length, 9)
      const current = base.slice()
      for (const at of [0, 4095, 4096, 65_535, 65_536, 262_143, 262_144, 524_288, length - 1]) current[2 * at]! ^= 1
      yield* findAndWrite("Few and far between", "bfloat16", [length], base, current)
      yield* findAndWrite("Every third", "bfloat16", [length], base, changed(base, 2, 1 / 3, 4))
    })
  ),
  changesCase(
    "finds and writes changes at odd addresses",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const length = 777
      const base = patternBytes(2 * length, 3)
      const current = changed(base, 2, 0.2, 5)
      const expected = findChanges(base, current, 2)
      const count = expected.positions.length
      // Every list and tensor begins at an odd byte of a longer one.
      const odd = Effect.fnUntraced(function* (dtype: DType, elements: number, bytes: Uint8Array) {
        const whole = yield* place("uint8", [bytes.length + 2])
        yield* setElements(whole, Uint8Array.of(poison, ...bytes, poison))
        const { storage, byteOffset } = whole.tensor
        return { whole, tensor: yield* viewOf(storage, dtype, [elements], { byteOffset: byteOffset + 1 }) }
      })
      const [from, to] = [yield* odd("bfloat16", length, base), yield* odd("bfloat16", length, current)]
      const positions = yield* odd("uint32", count, new Uint8Array(4 * count))
      const values = yield* odd("bfloat16", count, new Uint8Array(2 * count))
      const into = { positions: positions.tensor, values: values.tensor }
      yield* checkEqual("The number of changes", yield* engine.diff(from.tensor, to.tensor, into), count)
      const around = (bytes: Uint8Array) => Uint8Array.of(poison, ...bytes, poison)
      yield* expectElements("Positions", positions.whole, around(bytesOf(expected.positions)))
      yield* expectElements("Values", values.whole, around(expected.values))
      yield* engine.apply(from.tensor, into)
      yield* expectElements("The base with the changes", from.whole, around(current))
    })
  ),
  changesCase(
    "refuses positions that do not ascend or lie outside, and writes nothing",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      for (const form of ["dense", "transposed"] as const) {
        const shape = [25, 40]
        const destination = yield* place("bfloat16", shape, form)
        const elements = patternBytes(2000, 1)
        yield* setElements(destination, elements)
        const many = Array.from({ length: 900 }, (_, at) => at)
        for (const [what, positions] of [
          ["one too far", [1000]],
          ["the last too far", [...many, 1000]],
          ["the largest number", [5, 0xffff_ffff]],
          ["one twice", [0, 7, 7, 9]],
          ["two exchanged", [...many.slice(0, 700), 701, 700, ...many.slice(702)]],
          ["a low one at the end", [...many, 3]]
        ] as const) {
          const { changes } = yield* listOf("bfloat16", positions)
          const error = yield* expectFailure(what, engine.apply(destination.tensor, changes), ["InvalidRequest"])
          yield* checkEqual(`${what}: the error names a position`, /\d/.test(error.reason.detail), true)
          yield* expectElements(`${what}: the destination`, destination, elements)
        }
      }
    })
  ),
  changesCase(
    "refuses tensors and lists of changes that do not fit together",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const [a, b] = [yield* place("bfloat16", [4, 6]), yield* place("bfloat16", [4, 6])]
      const [turned, wide] = [yield* place("bfloat16", [6, 4]), yield* place("float32", [4, 6])]
      const into = yield* placeChanges("bfloat16", 5)
      const inputs = ["InvalidRequest"] as const
      yield* expectFailure("Unequal shapes", engine.diff(a.tensor, turned.tensor, into), inputs)
      yield* expectFailure("Unequal types", engine.diff(a.tensor, wide.tensor, into), inputs)
      const signed = yield* place("int32", [5])
      yield* expectFailure(
        "Signed positions",
        engine.diff(a.tensor, b.tensor, { ...into, positions: signed.tensor }),
        inputs
      )
      const shorter = { ...into.values, shape: [4] }
      yield* expectFailure("Lists of two lengths", engine.apply(a.tensor, { ...into, values: shorter }), inputs)
      const halves = yield* place("float16", [5])
      yield* expectFailure("Values of another type", engine.apply(a.tensor, { ...into, values: halves.tensor }), inputs)
      const spread = { ...into.values, shape: [2], strides: [2] }
      const two = { ...into.positions, shape: [2] }
      yield* expectFailure("A list with gaps", engine.apply(a.tensor, { positions: two, values: spread }), inputs)
      const own = { ...a.tensor, shape: [5], strides: [1] }
      yield* expectFailure("Values within the tensor", engine.apply(a.tensor, { ...into, values: own }), inputs)
      yield* expectFailure(
        "A search that writes into its base",
        engine.diff(a.tensor, b.tensor, { ...into, values: own }),
        inputs
      )
      const packed = yield* place("float4_e2m1fn", [8])
      yield* expectFailure("Elements that share bytes", engine.diff(packed.tensor, packed.tensor, into), [
        "Unsupported",
        "InvalidRequest"
      ])
    })
  )
]
