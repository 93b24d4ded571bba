// SPDX-License-Identifier: Apache-2.0
/** Shapes with more dimensions than tensors have are refused wherever they are read, and lengths without bytes cost nothing. */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { describe, expect, it } from "vitest"
import { dimensionLimit, Region, Shape } from "../../src/base/Region.ts"
import { parseHeader } from "../../src/checkpoint/SafetensorsHeader.ts"
import { deviceMesh } from "../../src/layout/DeviceMesh.ts"
import { modelLayout } from "../../src/layout/ModelLayout.ts"
import { cpu } from "../../src/tensor/Device.ts"
import { makeStorage } from "../../src/tensor/Storage.ts"
import { tensorView } from "../../src/tensor/Tensor.ts"

/** A file of one tensor of one byte. */
const fileOf = (dimensions: number): Uint8Array => {
  const shape = `[${"1,".repeat(dimensions - 1)}1]`
  const json = new TextEncoder().encode(`{"w":{"dtype":"U8","shape":${shape},"data_offsets":[0,1]}}`)
  const bytes = new Uint8Array(8 + json.length + 1)
  new DataView(bytes.buffer).setBigUint64(0, BigInt(json.length), true)
  bytes.set(json, 8)
  return bytes
}

describe("many dimensions", () => {
  it("of a checkpoint's tensor are refused before they take memory", () => {
    expect(Result.isSuccess(parseHeader(fileOf(dimensionLimit), fileOf(dimensionLimit).length))).toBe(true)
    const bytes = fileOf(15_000_000)
    const before = process.memoryUsage().heapUsed
    const parsed = parseHeader(bytes, bytes.length)
    // The text itself takes 30 MB; every dimension took about 400 bytes more.
    expect(process.memoryUsage().heapUsed - before).toBeLessThan(200e6)
    const { reason } = Result.getOrThrow(Result.flip(parsed))
    expect(reason._tag).toBe("TensorInvalid")
    expect(reason.paramName).toBe("w")
    expect(reason.detail).toContain(`more than ${dimensionLimit} items`)
  })

  it("of schemas, views and meshes are refused", () => {
    const ones = Array(dimensionLimit + 1).fill(1)
    expect(Result.isFailure(Schema.decodeUnknownResult(Shape)(ones))).toBe(true)
    expect(Result.isFailure(Schema.decodeUnknownResult(Region)(ones.map(() => [0, 1])))).toBe(true)
    const storage = makeStorage({ device: cpu, address: 4096n, byteLength: 1, release: () => {} })
    expect(Result.isSuccess(tensorView(storage, "uint8", ones.slice(1)))).toBe(true)
    const view = Result.getOrThrow(Result.flip(tensorView(storage, "uint8", Array(100_000).fill(1))))
    expect(view.detail).toBe(`100000 dimensions exceed the limit of ${dimensionLimit}`)
    const mesh = Result.getOrThrow(Result.flip(deviceMesh({ shape: Array(100_000).fill(1) })))
    expect(mesh.message).toContain("100000 dimensions")
    expect(mesh.message.length).toBeLessThan(500)
  })
})

describe("experts without bytes", () => {
  it.each([[[2 ** 32, 0, 4]], [[4, 0, 4]]])("of shape %j are one tensor that is whole everywhere", (shape) => {
    const layout = modelLayout({
      tensors: [
        { name: "experts.up", dtype: "float32", shape },
        { name: "w", dtype: "float32", shape: [8, 4] }
      ],
      rules: {
        rules: [
          { match: "experts.*", shard: 1, experts: 0 },
          { match: "*", shard: 0 }
        ]
      },
      config: { tp: 2, ep: 2, pp: 1, dp: 1 }
    })
    const { ranks, parametersOf, tensorsOf } = Result.getOrThrow(layout)
    for (const rank of ranks) {
      expect(parametersOf(rank).map(({ metadata }) => metadata.name)).toStrictEqual(["experts.up", "w"])
      expect(tensorsOf(rank)[0]!.pieces).toStrictEqual([])
    }
  })
})
