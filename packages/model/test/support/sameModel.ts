// SPDX-License-Identifier: Apache-2.0
/** Comparison of open models with what a reference wrote: every tensor whole, and regions that cut across its chunks. */
import { fileURLToPath } from "node:url"
import { assert } from "@effect/vitest"
import { bitsOf } from "@tensorferry/core/base/DType"
import { elementCount, fullRegion, type Region, regionShape } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import type { InputOptions } from "../../src/inputs/openInput.ts"
import type { Model } from "../../src/Model.ts"
import { openModel } from "../../src/openModel.ts"

/** A file or folder of the recorded checkpoints. */
export const recorded = (name: string): string => fileURLToPath(new URL(`../data/distributed/${name}`, import.meta.url))

const read = (model: Model, name: string, region: Region) =>
  Effect.gen(function* () {
    const tensor = model.tensors.find((one) => one.name === name)!
    const bytes = new Uint8Array((elementCount(regionShape(region)) * bitsOf(tensor.dtype)) / 8).fill(0x5a)
    yield* model.readRegion(name, region, bytes)
    return bytes
  })

/** Regions that begin and end inside of the tensor in every dimension. */
const inner = (region: Region): ReadonlyArray<Region> => [
  region.map(([, stop]) => [Math.min(1, stop), stop] as const),
  region.map(([, stop], dim) =>
    dim % 2 === 0 ? ([0, Math.ceil(stop / 2)] as const) : ([Math.floor(stop / 3), stop] as const)
  )
]

/** Fails unless the model at `found` is the one at `expected`, by name, type, shape and bits. */
export const assertSameAs = (found: string, expected: string, options?: InputOptions) =>
  Effect.gen(function* () {
    const [model, whole] = [yield* openModel(found, options), yield* openModel(expected)]
    const facts = ({ tensors }: Model) =>
      tensors.map(({ name, dtype, shape }) => `${name} ${dtype} ${shape.join("x")}`).sort()
    assert.deepStrictEqual(facts(model), facts(whole))
    for (const { name, shape } of whole.tensors) {
      const all = fullRegion(shape)
      for (const region of [all, ...inner(all)]) {
        const [one, two] = [yield* read(model, name, region), yield* read(whole, name, region)]
        assert.strictEqual(Buffer.compare(one, two), 0, `${name} ${JSON.stringify(region)}`)
      }
    }
    return model
  }).pipe(Effect.scoped)
