// SPDX-License-Identifier: Apache-2.0
/** Shapes with more dimensions than tensors have are refused wherever they are read, and lengths without bytes cost nothing. */

import { modelLayout } from "@tensorferry/model/layout/ModelLayout"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { describe, expect, it } from "vitest"
import { dimensionLimit, Region, Shape } from "../../src/base/Region.ts"
import { deviceMesh } from "../../src/layout/DeviceMesh.ts"
import { cpu } from "../../src/tensor/Device.ts"
import { makeStorage } from "../../src/tensor/Storage.ts"
import { tensorView } from "../../src/tensor/Tensor.ts"

describe("many dimensions", () => {
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
