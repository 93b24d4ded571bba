// SPDX-License-Identifier: Apache-2.0
/** Tensors of a rank under another system's names are filled from a checkpoint as their strips say, and nothing else is read. */
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { elementCount } from "@tensorferry/core/base/Region"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { writeSafetensors } from "../../../src/checkpoint/SafetensorsWriter.ts"
import { placeOf, worldSizeOf } from "../../../src/layout/ParallelConfig.ts"
import { rankReads } from "../../../src/names/files/rankReads.ts"
import { mapModel } from "../../../src/names/mapModel.ts"
import { materialize } from "../../../src/names/materialize.ts"
import { sideOf } from "../../../src/names/namedLayouts.ts"
import { openModel } from "../../../src/openModel.ts"
import { structureOf } from "../../../src/placement/cutModel.ts"
import { loadRegions } from "../../../src/stream/CheckpointStream.ts"
import { scratchFolder } from "../../checkpoint/checkpointSupport.ts"
import { side, smallModel } from "../../support/smallModels.ts"

const poison = 0xa5

/** A small model in a file, whose elements have their numbers as bits, and what each rank of a side holds of it. */
const onDisk = Effect.fnUntraced(function* (type: string, text: string) {
  const { tensors, family } = smallModel(type)
  const structure = Result.getOrThrow(structureOf(tensors, family))
  const stated = Result.getOrThrow(sideOf(side(text), structure, family, 0))
  const mapped = Result.getOrThrow(mapModel({ ...stated, tensors }))
  const contents = new Map<string, Uint8Array>()
  let next = 1
  for (const { name, shape } of tensors)
    contents.set(name, new Uint8Array(Int32Array.from({ length: elementCount(shape) }, () => next++).buffer))
  const path = join(yield* scratchFolder, "model.safetensors")
  yield* writeSafetensors(
    path,
    tensors.map((tensor) => ({ ...tensor, data: contents.get(tensor.name)! }))
  )
  const ranks = Array.from({ length: worldSizeOf(stated.config) }, (_, rank) =>
    Result.getOrThrow(mapped.rankAt(placeOf(stated.config, 0, rank)))
  )
  return { model: yield* openModel(path), contents, ranks }
})

const poisoned = (tensor: Tensor) => {
  tensorBytes(tensor)!.fill(poison)
  return tensor
}

describe("reads of a rank", () => {
  for (const [type, text] of [
    ["llama", "vllm:tp=2"],
    ["llama", "megatron:tp=4"],
    ["qwen3_moe", "transformers:tp=1"],
    ["qwen3_moe", "vllm:tp=2,ep=2"],
    ["qwen3_moe", "fsdp2:tp=3"],
    ["gpt_oss", "megatron:tp=2,ep=2"],
    ["llama4_text", "vllm:tp=2"]
  ] as const) {
    it.effect(`fill what ${text} has of ${type}`, () =>
      Effect.gen(function* () {
        const { model, contents, ranks } = yield* onDisk(type, text)
        const engine = yield* TensorEngine
        for (const { tensors } of ranks) {
          const held: Array<{ readonly made: (typeof tensors)[number]; readonly into: Tensor }> = []
          for (const made of tensors)
            held.push({ made, into: poisoned(yield* engine.allocate(made.dtype, made.shape)) })
          const reads = Result.getOrThrow(rankReads(model, held))
          for (const zero of reads.zeros) yield* engine.fill(zero, 0)
          const plain = yield* loadRegions(model, reads.plain)
          const scattered = yield* loadRegions(reads.assembled, reads.scattered)
          for (const { made, into } of held) {
            const wanted = Result.getOrThrow(materialize(made, (name) => contents.get(name)!))
            assert.isTrue(Buffer.from(wanted).equals(tensorBytes(into)!), made.name)
          }
          const zeros = reads.zeros.reduce((sum, { shape }) => sum + elementCount(shape) * 4, 0)
          const own = held.reduce((sum, { made }) => sum + elementCount(made.shape) * 4, 0)
          assert.isAtMost(plain.bytes + zeros, own)
          if (reads.scattered.length === 0) assert.strictEqual(plain.bytes + scattered.bytes + zeros, own)
        }
      }).pipe(Effect.provide(ReferenceEngine.layer()), Effect.scoped)
    )
  }

  it.effect("go straight to where elements belong, for experts that are stacked and rows that are joined", () =>
    Effect.gen(function* () {
      const { model, ranks } = yield* onDisk("qwen3_moe", "transformers:tp=1")
      const engine = yield* TensorEngine
      const held: Array<Parameters<typeof rankReads>[1][number]> = []
      for (const made of ranks[0]!.tensors) held.push({ made, into: yield* engine.allocate(made.dtype, made.shape) })
      const reads = Result.getOrThrow(rankReads(model, held))
      assert.lengthOf(reads.scattered, 0)
      assert.strictEqual(new Set(reads.plain.map(({ name }) => name)).size, model.tensors.length)
    }).pipe(Effect.provide(ReferenceEngine.layer()), Effect.scoped)
  )

  it.effect("into memory that is too small are refused", () =>
    Effect.gen(function* () {
      const { model, ranks } = yield* onDisk("llama", "vllm:tp=2")
      const engine = yield* TensorEngine
      const { storage } = yield* engine.allocate("float32", [1])
      const made = ranks[0]!.tensors[0]!
      const into = Result.getOrThrow(tensorView(storage, "float32", [1]))
      const refused = rankReads(model, [{ made, into }])
      assert.include(Result.getOrThrow(Result.flip(refused)).detail, "the storage has 4")
    }).pipe(Effect.provide(ReferenceEngine.layer()), Effect.scoped)
  )
})
