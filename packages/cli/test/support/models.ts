// SPDX-License-Identifier: Apache-2.0
/**
 * Checkpoints for tests, and comparison of whole models in this process, independent of the command's own `verify`.
 */
import { fileURLToPath } from "node:url"
import { assert } from "@effect/vitest"
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, fullRegion, type Shape } from "@tensorferry/core/base/Region"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import { openModel } from "@tensorferry/model/openModel"
import * as Effect from "effect/Effect"

const example = (name: string): string => fileURLToPath(new URL(`../../../../examples/mnist/${name}`, import.meta.url))

export const mnist = example("mnist-tinygrad.safetensors")
export const mnistRules = example("rules.yaml")

export interface Entry {
  readonly name: string
  readonly dtype: DType
  readonly shape: Shape
}

/** Bytes that differ from their neighbours and from those of other tensors; never those of a fresh buffer throughout. */
export const pattern = (length: number, seed: number): Uint8Array =>
  Uint8Array.from({ length }, (_, at) => ((at + 1) * 167 + (at >> 8) * 31 + seed * 59) & 0xff)

export const writeModel = (
  file: string,
  entries: ReadonlyArray<Entry>,
  metadata?: ReadonlyMap<string, string>
): Promise<void> =>
  Effect.runPromise(
    writeSafetensors(
      file,
      entries.map((entry, seed) => ({
        ...entry,
        data: pattern(byteLengthOf(entry.dtype, elementCount(entry.shape)), seed)
      })),
      metadata
    )
  ).then(() => undefined)

const readAll = (path: string) =>
  Effect.runPromise(
    Effect.scoped(
      Effect.gen(function* () {
        const model = yield* openModel(path)
        const tensors = new Map<string, { readonly dtype: DType; readonly shape: Shape; readonly bytes: Uint8Array }>()
        for (const { name, dtype, shape } of model.tensors) {
          const bytes = new Uint8Array(byteLengthOf(dtype, elementCount(shape))).fill(0x5a)
          if (!shape.includes(0)) yield* model.readRegion(name, fullRegion(shape), bytes)
          tensors.set(name, { dtype, shape, bytes })
        }
        return tensors
      })
    )
  )

/** Fails unless both models hold the same tensors, bit by bit. */
export const assertSameModel = async (found: string, expected: string): Promise<void> => {
  const [a, b] = [await readAll(found), await readAll(expected)]
  assert.deepStrictEqual([...a.keys()].sort(), [...b.keys()].sort())
  for (const [name, tensor] of b) {
    const other = a.get(name)!
    assert.strictEqual(other.dtype, tensor.dtype, name)
    assert.deepStrictEqual([...other.shape], [...tensor.shape], name)
    assert.strictEqual(Buffer.compare(other.bytes, tensor.bytes), 0, `${name} differs`)
  }
}
