// SPDX-License-Identifier: Apache-2.0
/** Which files of a folder are the model, what an index may leave out, and where its configuration lies. */
import { copyFile, rm } from "node:fs/promises"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { writeCheckpoint } from "../../src/checkpoint/CheckpointWriter.ts"
import { writeSafetensors } from "../../src/checkpoint/SafetensorsWriter.ts"
import { readModelConfig } from "../../src/inputs/ConfigFile.ts"
import { openInput } from "../../src/inputs/openInput.ts"
import { openModel } from "../../src/openModel.ts"
import { expectReason, put, scratchFolder } from "../checkpoint/checkpointSupport.ts"
import { recorded } from "../support/sameModel.ts"

const tensor = (name: string, ...shape: ReadonlyArray<number>) => ({
  name,
  dtype: "uint8" as const,
  shape,
  data: Uint8Array.from({ length: shape.reduce((product, length) => product * length, 1) }, (_, at) => at)
})

const config = JSON.stringify({ model_type: "llama", num_key_value_heads: 2 })
const indexName = "model.safetensors.index.json"

/** Three files of one tensor each, an index and a config. */
const threeFiles = Effect.gen(function* () {
  const folder = yield* scratchFolder
  yield* writeCheckpoint(
    folder,
    ["a", "b", "c"].map((name) => tensor(name, 8)),
    { maxFileBytes: 8 }
  )
  yield* put(join(folder, "config.json"), config)
  return folder
})

describe("an index", () => {
  it.effect("that names absent files is refused, and with indexOnly leaves their tensors out by name", () =>
    Effect.gen(function* () {
      const folder = yield* threeFiles
      yield* Effect.promise(() => rm(join(folder, "model-00002-of-00003.safetensors")))
      const error = yield* Effect.flip(openInput(folder))
      expectReason(error, "NotFound")
      assert.include(error.message, "--index-only")
      const model = yield* openModel(folder, { indexOnly: true })
      assert.deepStrictEqual(
        model.tensors.map(({ name }) => name),
        ["a", "c"]
      )
      assert.deepStrictEqual(model.absent, ["b"])
    })
  )

  it.effect("that takes a part of a file is refused, and with indexOnly two of them have a part each", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      for (const [file, names] of Object.entries({ x: ["a", "b", "c"], y: ["a", "d"] }))
        yield* writeSafetensors(
          join(folder, `${file}.safetensors`),
          names.map((name) => tensor(name, file === "x" ? 8 : 4))
        )
      const index = (name: string, map: Readonly<Record<string, string>>) => {
        const targets = Object.entries(map).map(([tensor, file]) => [tensor, `${file}.safetensors`])
        return put(join(folder, name), JSON.stringify({ weight_map: Object.fromEntries(targets) }))
      }
      yield* index(indexName, { a: "x", c: "x" })
      yield* index("second.safetensors.index.json", { a: "y", b: "x", d: "y" })
      const error = yield* Effect.flip(openInput(folder))
      expectReason(error, "InvalidIndex", "b")
      assert.include(error.message, "--index-only")
      const shapes = (path: string) =>
        Effect.map(openModel(path, { indexOnly: true }), ({ tensors }) =>
          Object.fromEntries(tensors.map(({ name, shape }) => [name, shape[0]]))
        )
      assert.deepStrictEqual(yield* shapes(folder), { a: 8, c: 8 })
      assert.deepStrictEqual(yield* shapes(join(folder, "second.safetensors.index.json")), { a: 4, b: 8, d: 4 })
    })
  )

  it.effect("without any of its files is refused even so", () =>
    Effect.gen(function* () {
      const folder = yield* threeFiles
      for (const part of [1, 2, 3])
        yield* Effect.promise(() => rm(join(folder, `model-0000${part}-of-00003.safetensors`)))
      expectReason(yield* Effect.flip(openInput(folder, { indexOnly: true })), "NotFound")
    })
  )

  it.effect("that is named by its path has its configuration beside it", () =>
    Effect.gen(function* () {
      const folder = yield* threeFiles
      for (const target of [folder, join(folder, indexName), join(folder, "model-00001-of-00003.safetensors")]) {
        const read = yield* Effect.flatMap(openModel(target), readModelConfig)
        assert.isTrue(read !== undefined && Result.isSuccess(read), target)
        assert.strictEqual(Result.getOrThrow(read!).num_key_value_heads, 2)
      }
    })
  )
})

describe("a folder", () => {
  it.effect("with an adapter beside other files opens as the adapter", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      yield* writeSafetensors(join(folder, "adapter_model.safetensors"), [tensor("q_proj.lora_A.weight", 2, 4)])
      yield* writeSafetensors(join(folder, "optimizer.safetensors"), [tensor("state", 4)])
      const model = yield* openModel(folder)
      assert.deepStrictEqual(
        model.tensors.map(({ name }) => name),
        ["q_proj.lora_A.weight"]
      )
    })
  )

  it.effect("with a distributed checkpoint and safetensors files is refused", () =>
    Effect.gen(function* () {
      const folder = yield* threeFiles
      for (const name of [".metadata", "__0_0.distcp"])
        yield* Effect.promise(() => copyFile(recorded(`mesh/${name}`), join(folder, name)))
      expectReason(yield* Effect.flip(openInput(folder)), "InvalidRequest")
    })
  )

  it.effect("of Mistral's own format is refused by the names that the format does not have", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const file = join(folder, "consolidated.safetensors")
      yield* writeSafetensors(file, [tensor("norm.weight", 8), tensor("layers.0.attention.wq.qscale_weight", 1)])
      yield* put(
        join(folder, "params.json"),
        JSON.stringify({ dim: 8, n_layers: 1, n_heads: 2, hidden_dim: 12, head_dim: 4 })
      )
      const error = yield* Effect.flip(openInput(folder))
      expectReason(error, "Unsupported")
      assert.include(error.message, "layers.0.attention.wq.qscale_weight")
      const { tensors } = yield* openModel(file)
      assert.strictEqual(tensors.length, 2)
    })
  )

  it.effect("whose part has no tensors says how names begin", () =>
    Effect.gen(function* () {
      const error = yield* Effect.flip(openInput(recorded("fsdp"), { part: "module." }))
      expectReason(error, "InvalidRequest")
      assert.include(error.message, '"model."')
    })
  )
})
