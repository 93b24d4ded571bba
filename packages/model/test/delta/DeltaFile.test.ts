// SPDX-License-Identifier: Apache-2.0
/** Files of deltas: what one says of itself is held against itself, whatever somebody wrote into its metadata. */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { makeRandom, mutateEncoded } from "@tensorferry/testing/mutate"
import { make } from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { CheckpointError } from "../../src/checkpoint/CheckpointError.ts"
import { openSafetensors, readTensor } from "../../src/checkpoint/Safetensors.ts"
import { writeSafetensors } from "../../src/checkpoint/SafetensorsWriter.ts"
import { modelDigest, openDelta } from "../../src/delta/DeltaFile.ts"
import { makeDelta } from "../../src/delta/makeDelta.ts"
import { ModelError } from "../../src/ModelError.ts"
import { openModel } from "../../src/openModel.ts"

const bytesOf = (length: number, step: number): Uint8Array =>
  Uint8Array.from({ length }, (_, at) => (at * 37 + (at % 50 === step ? 1 : 0)) & 0xff)

const writeVersion = (file: string, step: number) =>
  writeSafetensors(file, [
    { name: "a.weight", dtype: "bfloat16", shape: [30, 10], data: bytesOf(600, step) },
    { name: "b.weight", dtype: "float32", shape: [7], data: bytesOf(28, 0) },
    { name: "c", dtype: "uint8", shape: [200], data: bytesOf(200, step) }
  ])

/** A delta between two small versions: its path, metadata and payloads. */
const withDelta = <A, E>(
  use: (made: {
    readonly folder: string
    readonly metadata: ReadonlyMap<string, string>
    readonly payloads: ReadonlyMap<string, Uint8Array>
  }) => Effect.Effect<A, E>
) =>
  Effect.acquireUseRelease(
    Effect.sync(() => mkdtempSync(join(tmpdir(), "tensorferry-delta-"))),
    (folder) =>
      Effect.gen(function* () {
        const [old, later, file] = ["old", "later", "delta"].map((name) => join(folder, `${name}.safetensors`)) as [
          string,
          string,
          string
        ]
        yield* writeVersion(old, 3)
        yield* writeVersion(later, 11)
        const made = makeDelta(yield* openModel(old), yield* openModel(later), file)
        yield* Effect.provideService(made, TensorEngine, make())
        const opened = yield* openSafetensors(file)
        const payloads = new Map<string, Uint8Array>()
        for (const tensor of opened.tensors.values()) payloads.set(tensor.name, yield* readTensor(opened, tensor))
        return yield* use({ folder, metadata: opened.metadata, payloads })
      }).pipe(Effect.scoped),
    (folder) => Effect.sync(() => rmSync(folder, { recursive: true }))
  )

const write = (file: string, payloads: ReadonlyMap<string, Uint8Array>, metadata: ReadonlyMap<string, string>) =>
  writeSafetensors(
    file,
    [...payloads].map(([name, data]) => ({ name, dtype: "uint8" as const, shape: [data.length], data })),
    metadata
  )

describe("files of deltas", () => {
  it.live("say what changed, and nothing of what did not", () =>
    withDelta(({ folder, payloads }) =>
      Effect.gen(function* () {
        const delta = yield* openDelta(join(folder, "delta.safetensors"))
        assert.deepStrictEqual([...payloads.keys()].sort(), ["a.weight", "c"])
        assert.deepStrictEqual([...delta.tensors.keys()].sort(), ["a.weight", "b.weight", "c"])
        const b = delta.tensors.get("b.weight")!
        assert.strictEqual(b.base, b.result)
        assert.strictEqual(delta.result, modelDigest(delta.tensors.values(), "result"))
        assert.deepStrictEqual((yield* delta.readHead("a.weight")).changed, 24)
      }).pipe(Effect.scoped)
    )
  )

  it.live("are refused with a list that was changed, by their own words", () =>
    withDelta(({ folder, metadata, payloads }) =>
      Effect.gen(function* () {
        const file = join(folder, "changed.safetensors")
        let [opened, refused] = [0, 0]
        for (let seed = 0; seed < 300; seed++) {
          const random = makeRandom(seed)
          const key = random.pick(["tensors", "tensors", "tensors", "base", "result", "version", "format"])
          const text = new TextDecoder().decode(mutateEncoded(metadata.get(key)!, random))
          const written = yield* Effect.result(
            write(file, payloads, new Map([...metadata, [key, text.toWellFormed()]]))
          )
          if (Result.isFailure(written)) continue
          const found = yield* Effect.result(Effect.scoped(openDelta(file)))
          if (Result.isSuccess(found)) {
            opened += 1
            assert.strictEqual(found.success.base, metadata.get("base"))
            assert.strictEqual(found.success.result, metadata.get("result"))
          } else {
            refused += 1
            const { failure } = found
            assert.isTrue(failure instanceof ModelError || failure instanceof CheckpointError, String(failure))
          }
        }
        assert.isAbove(refused, 200)
        assert.isBelow(opened, 60)
      })
    )
  )

  it.live("are refused where changes are missing, or there for what did not change", () =>
    withDelta(({ folder, metadata, payloads }) =>
      Effect.gen(function* () {
        const file = join(folder, "other.safetensors")
        const refusal = Effect.fnUntraced(function* (others: ReadonlyMap<string, Uint8Array>) {
          yield* write(file, others, metadata)
          return (yield* Effect.flip(Effect.scoped(openDelta(file)))).message
        })
        const [[first, bytes], second] = [...payloads] as [[string, Uint8Array], [string, Uint8Array]]
        assert.match(yield* refusal(new Map([second])), /missing/)
        assert.match(yield* refusal(new Map([...payloads, ["b.weight", bytes]])), /did not change/)
        assert.match(yield* refusal(new Map([...payloads, ["d", bytes]])), /no such tensor/)
        // Changes of one tensor under the name of another are none of it.
        yield* write(file, new Map([[first, second[1]], second]), metadata)
        const delta = yield* openDelta(file)
        assert.match((yield* Effect.flip(delta.readChanges(first))).message, /elements/)
      }).pipe(Effect.scoped)
    )
  )
})
