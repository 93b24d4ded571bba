// SPDX-License-Identifier: Apache-2.0
/** Adapters that peft writes here and now: the same tensors change as when peft merges them, to the same values. */
import { readFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { elementCount, fullRegion } from "@tensorferry/core/base/Region"
import { pythonWith, runScript, withPython } from "@tensorferry/testing/machine/python"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type Checkpoint, openCheckpoint } from "../../../src/checkpoint/CheckpointIndex.ts"
import type { Adapter } from "../../../src/names/adapters/Adapter.ts"
import { parseAdapterConfig } from "../../../src/names/adapters/AdapterConfig.ts"
import { checkCopies, mergeTensor } from "../../../src/names/adapters/mergeAdapter.ts"
import { readAdapter } from "../../../src/names/adapters/readAdapter.ts"
import { scratchFolder } from "../../checkpoint/checkpointSupport.ts"

const python = pythonWith("torch", "transformers", "peft", "safetensors")
const script = new URL("../../fixtures/peft_merges.py", import.meta.url)

type Values = ReadonlyMap<string, Float32Array>

const valuesOf = (checkpoint: Checkpoint) =>
  Effect.map(
    Effect.forEach(checkpoint.tensors.values(), ({ name, shape }) => {
      const values = new Float32Array(elementCount(shape))
      const into = new Uint8Array(values.buffer)
      return Effect.as(checkpoint.readRegion(name, fullRegion(shape), into), [name, values] as const)
    }),
    (entries): Values => new Map(entries)
  )

const json = (file: string) => JSON.parse(readFileSync(file, "utf8"))

const openCase = (folder: string) =>
  Effect.gen(function* () {
    const files = ["adapter_model", "base", "merged"].map((name) => openCheckpoint(join(folder, `${name}.safetensors`)))
    const [tensors, base, merged] = (yield* Effect.all(files)) as [Checkpoint, Checkpoint, Checkpoint]
    const { names, aliases } = json(join(folder, "names.json"))
    const config = yield* Effect.fromResult(
      parseAdapterConfig(readFileSync(join(folder, "adapter_config.json"), "utf8"))
    )
    const shapes = (names as ReadonlyArray<string>).map((name) => ({ name, shape: base.tensors.get(name)!.shape }))
    const source = { tensors: shapes, isDeclared: true, aliases: new Map<string, string>(Object.entries(aliases)) }
    const adapter = yield* Effect.fromResult(readAdapter(config, [...tensors.tensors.values()], source))
    return {
      adapter,
      base: { shapes: new Map(shapes.map(({ name, shape }) => [name, shape])), values: yield* valuesOf(base) },
      merged: yield* valuesOf(merged),
      values: yield* valuesOf(tensors)
    }
  })

/** Values differ by a few units in the last place of the sums that they are made of; sums of 32 terms here. */
const nearness = 2e-6

const firstFar = (own: Float32Array, other: Float32Array): number =>
  own.findIndex((value, at) => Math.abs(value - other[at]!) > nearness * (1 + Math.abs(other[at]!)))

const compare = (
  name: string,
  adapter: Adapter,
  base: Values,
  merged: Values,
  own: (tensor: string) => Float32Array
) => {
  for (const [tensor, values] of merged) {
    const before = base.get(tensor)!
    const isChanged = values.some((value, at) => !Object.is(value, before[at]))
    assert.strictEqual(adapter.changes.has(tensor), isChanged, `${name}: ${tensor}`)
    if (!isChanged) continue
    const result = own(tensor)
    const at = firstFar(result, values)
    assert.strictEqual(at, -1, `${name}: ${tensor}, element ${at}: ${result[at]} instead of ${values[at]}`)
    // A merge that does nothing would be far.
    assert.notStrictEqual(firstFar(before, values), -1, `${name}: ${tensor}`)
  }
}

describe("adapters by peft", () => {
  it.live.skipIf(python === undefined)(
    withPython(python, "are merged as peft merges them", "peft"),
    () =>
      Effect.gen(function* () {
        const folder = yield* scratchFolder
        yield* Effect.promise(() => runScript(python!, script, folder))
        const cases: ReadonlyArray<string> = json(join(folder, "cases.json"))
        assert.isAtLeast(cases.length, 17)
        for (const name of cases) {
          const { adapter, base, merged, values } = yield* openCase(join(folder, name))
          const value = (tensor: string): Float32Array => values.get(tensor)!
          yield* Effect.fromResult(checkCopies(adapter, value, (tensor) => base.values.get(tensor)!))
          compare(name, adapter, base.values, merged, (tensor) => {
            const changes = adapter.changes.get(tensor)!
            return Result.getOrThrow(mergeTensor(changes, base.shapes.get(tensor)!, base.values.get(tensor)!, value))
          })
        }
      }),
    300_000
  )
})
