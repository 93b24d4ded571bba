// SPDX-License-Identifier: Apache-2.0
/** Tensors that are made of others, read in any region: the elements that their strips name, in few and bounded reads. */
import { assert, describe, it } from "@effect/vitest"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, fullRegion, type Region, regionShape, rowMajorStrides } from "@tensorferry/core/base/Region"
import { boundedBytes, boundedRegions } from "@tensorferry/model/BoundedRegions"
import type { Model } from "@tensorferry/model/Model"
import { assembledModel } from "@tensorferry/model/names/AssembledModel"
import { mapModel } from "@tensorferry/model/names/mapModel"
import { materialize } from "@tensorferry/model/names/materialize"
import { sideOf } from "@tensorferry/model/names/namedLayouts"
import { transpose, wholeAssembly } from "@tensorferry/model/names/Strips"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { ModelTensor } from "../../src/layout/ModelLayout.ts"
import { placeOf, worldSizeOf } from "../../src/layout/ParallelConfig.ts"
import { side, smallModel } from "../support/smallModels.ts"

/** Elements of a region of a dense tensor of four bytes an element. */
const slice = (bytes: Uint8Array, shape: ReadonlyArray<number>, region: Region): Uint8Array => {
  const strides = rowMajorStrides(shape)
  const found: Array<Uint8Array> = []
  const visit = (dim: number, at: number): void => {
    if (dim === region.length) found.push(bytes.subarray(at * 4, at * 4 + 4))
    else for (let place = region[dim]![0]; place < region[dim]![1]; place++) visit(dim + 1, at + place * strides[dim]!)
  }
  visit(0, 0)
  return Buffer.concat(found)
}

/** A model in memory whose elements are their numbers, or whose reads are only noted. */
const sourceModel = (tensors: ReadonlyArray<ModelTensor>, isRead = true) => {
  const reads: Array<{ readonly name: string; readonly bytes: number }> = []
  const contents = new Map<string, Uint8Array>()
  let next = 1
  for (const { name, shape } of isRead ? tensors : []) {
    const values = Int32Array.from({ length: elementCount(shape) }, () => next++)
    contents.set(name, new Uint8Array(values.buffer))
  }
  const model: Model = {
    path: "memory",
    tensors,
    metadata: new Map(),
    sharded: undefined,
    config: undefined,
    digestOf: () => undefined,
    checkFiles: Effect.void,
    files: () => new Map(),
    readRegion: (name, region, into) =>
      Effect.sync(() => {
        reads.push({ name, bytes: into.length })
        const { shape } = tensors.find((tensor) => tensor.name === name)!
        if (isRead) into.set(slice(contents.get(name)!, shape, region))
      })
  }
  return { model, reads, contents }
}

const mappedRanks = (type: string, text: string) => {
  const { tensors, family } = smallModel(type)
  const structure = Result.getOrThrow(structureOf(tensors, family))
  const stated = Result.getOrThrow(sideOf(side(text), structure, family, 0))
  const mapped = Result.getOrThrow(mapModel({ ...stated, tensors }))
  const ranks = Array.from({ length: worldSizeOf(stated.config) }, (_, rank) =>
    Result.getOrThrow(mapped.rankAt(placeOf(stated.config, 0, rank)))
  )
  return { tensors, ranks }
}

describe("an assembled model", () => {
  for (const [type, text] of [
    ["gpt_oss", "megatron:tp=2,ep=2"],
    ["qwen3_moe", "vllm:tp=2"],
    ["llama4_text", "vllm:tp=2"],
    ["llama", "megatron:tp=4"]
  ] as const) {
    it(`${type} as ${text} has in every region what its strips name`, async () => {
      const { tensors, ranks } = mappedRanks(type, text)
      const { model, contents } = sourceModel(tensors)
      for (const { tensors: made } of ranks) {
        const own = assembledModel(model, made)
        for (const tensor of made) {
          const whole = Result.getOrThrow(materialize(tensor, (name) => contents.get(name)!))
          const regions: ReadonlyArray<Region> = [
            fullRegion(tensor.shape),
            tensor.shape.map((length) => [Math.floor(length / 3), length - Math.floor(length / 4)] as const)
          ]
          for (const region of regions) {
            const into = new Uint8Array(byteLengthOf("float32", elementCount(regionShape(region)))).fill(0xa5)
            await Effect.runPromise(own.readRegion(tensor.name, region, into))
            assert.isTrue(Buffer.from(slice(whole, tensor.shape, region)).equals(into), tensor.name)
          }
        }
      }
    })
  }

  it("reads columns that lie between those of others together, not one by one", async () => {
    const { tensors, ranks } = mappedRanks("gpt_oss", "megatron:tp=2,ep=2")
    const { model, reads } = sourceModel(tensors)
    const name = "decoder.layers.0.mlp.experts.linear_fc1.weight1"
    const { shape } = ranks[1]!.tensors.find((tensor) => tensor.name === name)!
    const into = new Uint8Array(byteLengthOf("float32", elementCount(shape)))
    await Effect.runPromise(assembledModel(model, ranks[1]!.tensors).readRegion(name, fullRegion(shape), into))
    assert.lengthOf(reads, 1)
  })

  it("reads a large transposed matrix in few reads, none of them larger than the bound", async () => {
    const tensor: ModelTensor = { name: "w", dtype: "bfloat16", shape: [2000, 9000] }
    const { model, reads } = sourceModel([tensor], false)
    const turned = { name: "t", dtype: tensor.dtype, ...transpose(wholeAssembly("w", tensor.shape), [1, 0]) }
    const own = assembledModel(model, [turned])
    for (const { region, start, end } of boundedRegions(turned.dtype, fullRegion(turned.shape)))
      await Effect.runPromise(own.readRegion("t", region, new Uint8Array(end - start)))
    assert.isAtMost(reads.length, 6)
    assert.isTrue(reads.every(({ bytes }) => bytes <= boundedBytes))
    assert.strictEqual(
      reads.reduce((sum, { bytes }) => sum + bytes, 0),
      2000 * 9000 * 2
    )
  })
})
