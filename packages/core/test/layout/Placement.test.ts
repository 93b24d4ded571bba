// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import { meshPair } from "@tensorferry/testing/planning/meshArbitraries"
import { heldByRank } from "@tensorferry/testing/planning/meshOracle"
import { parse } from "@tensorferry/testing/planning/meshSides"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { rowMajorStrides } from "../../src/base/Region.ts"
import { coordinateOf, deviceMesh, meshStrides } from "../../src/layout/DeviceMesh.ts"
import type { MeshError, MeshErrorKind } from "../../src/layout/MeshError.ts"
import { formatMeshLayout, parseMeshLayout } from "../../src/layout/MeshText.ts"
import {
  meshLayout,
  PartialOp,
  partial,
  replicate,
  resolveDims,
  shard,
  stridedShard
} from "../../src/layout/Placement.ts"
import { localShard } from "../../src/layout/ShardIntervals.ts"
import { ReduceOp } from "../../src/service/TensorEngine.ts"

const refused = (
  result: Result.Result<unknown, MeshError>,
  kind: MeshErrorKind,
  ...words: ReadonlyArray<string>
): void => {
  assert.isTrue(Result.isFailure(result))
  if (Result.isSuccess(result)) return
  assert.strictEqual(result.failure.kind, kind, result.failure.message)
  for (const word of words) assert.include(result.failure.message, word)
}

describe("device meshes", () => {
  it("count their ranks row-major, in any order", () => {
    const mesh = Result.getOrThrow(deviceMesh({ shape: [2, 3], ranks: [5, 1, 0, 3, 4, 2], dimNames: ["dp", "tp"] }))
    assert.deepStrictEqual(coordinateOf(mesh, 3), [1, 0])
    assert.strictEqual(coordinateOf(mesh, 6), undefined)
    assert.deepStrictEqual(meshStrides(mesh), [3, 1])
    assert.deepStrictEqual(Result.getOrThrow(deviceMesh({ shape: [3], firstRank: 4 })).ranks, [4, 5, 6])
  })

  it("that cannot be are refused with what is wrong", () => {
    refused(deviceMesh({ shape: [] }), "EmptyMesh")
    refused(deviceMesh({ shape: [2, 0] }), "EmptyMesh", "[2,0]")
    refused(deviceMesh({ shape: [1.5] }), "EmptyMesh")
    refused(deviceMesh({ shape: [2, 4], worldSize: 7 }), "OutsideGroup", "[2,4]", "7 ranks")
    refused(deviceMesh({ shape: [2 ** 30, 2 ** 30] }), "OutsideGroup")
    refused(deviceMesh({ shape: [2 ** 18 + 1] }), "OutsideGroup", "262144 ranks")
    refused(deviceMesh({ shape: [2], ranks: [0, 8], worldSize: 8 }), "OutsideGroup", "rank 8")
    refused(deviceMesh({ shape: [2], ranks: [0, -1] }), "OutsideGroup", "rank -1")
    refused(deviceMesh({ shape: [3], ranks: [0, 2, 2] }), "RepeatedRank", "rank 2")
    refused(deviceMesh({ shape: [3], ranks: [0, 2] }), "CountMismatch", "3 places for 2 ranks")
    refused(deviceMesh({ shape: [2, 2], dimNames: ["dp"] }), "CountMismatch")
    refused(deviceMesh({ shape: [2, 2], dimNames: ["dp", "dp"] }), "CountMismatch")
  })
})

describe("placements", () => {
  it("number one per mesh dimension, within the tensor", () => {
    const mesh = Result.getOrThrow(deviceMesh({ shape: [2, 2] }))
    refused(meshLayout(mesh, [replicate]), "CountMismatch", "needs 2 placements and has 1")
    refused(meshLayout(mesh, [shard(0.5), replicate]), "InvalidPlacement")
    refused(meshLayout(mesh, [stridedShard(0, 0), replicate]), "InvalidPlacement", "Split factor 0")
    const layout = Result.getOrThrow(meshLayout(mesh, [shard(-1), shard(-3)]))
    assert.deepStrictEqual(Result.getOrThrow(resolveDims(layout, 3)).placements, [shard(2), shard(0)])
    refused(resolveDims(layout, 2), "DimOutOfRange", "dimension -3", "2 dimensions")
    refused(resolveDims(parse("2:S2"), 2), "DimOutOfRange")
    refused(resolveDims(parse("2:S0"), 0), "DimOutOfRange", "Replicate scalars")
    refused(localShard(parse("2:R"), [4], 2), "OutsideGroup", "rank 2")
  })

  it("reduce as tensor engines do", () => {
    assert.deepStrictEqual([...PartialOp.literals], [...ReduceOp.literals])
  })

  it.effect("shards are those of lists cut index by index", () =>
    Effect.gen(function* () {
      for (const { source, shape } of yield* Arbitrary.sampleEffect(meshPair(), { count: 200, seed: "shards" })) {
        const seen = shape.map((length) => new Array<number>(length).fill(0))
        for (const rank of source.mesh.ranks) {
          const held = Result.getOrThrow(localShard(source, shape, rank))
          const wanted = heldByRank(source, shape, rank)
          const listed = held.intervals.map((intervals) =>
            intervals.flatMap(([start, stop]) => Array.from({ length: stop - start }, (_, at) => start + at))
          )
          assert.deepStrictEqual(listed, wanted, formatMeshLayout(source))
          assert.deepStrictEqual(
            held.shape,
            wanted.map((indices) => indices.length)
          )
          for (const [dim, indices] of wanted.entries()) for (const index of indices) seen[dim]![index]! += 1
        }
        for (const counts of seen) assert.isTrue(counts.every((count) => count > 0))
      }
    })
  )

  it("an empty shard begins where the dimension ends", () => {
    const offsets = (length: number, ranks: number) =>
      Array.from({ length: ranks }, (_, rank) => {
        const held = Result.getOrThrow(localShard(parse(`${ranks}:S0`), [length], rank))
        return [held.offset[0], held.shape[0]]
      })
    assert.deepStrictEqual(offsets(5, 4), [
      [0, 2],
      [2, 2],
      [4, 1],
      [5, 0]
    ])
    const fine = offsets(512, 30)
    assert.deepStrictEqual(fine.slice(27), [
      [486, 18],
      [504, 8],
      [512, 0]
    ])
    assert.strictEqual(new Set(fine.map(([offset]) => offset)).size, 30)
  })

  it("the strides of a short shard are its own", () => {
    const held = Result.getOrThrow(localShard(parse("2:S1"), [3, 9], 1))
    assert.deepStrictEqual(held.shape, [3, 4])
    assert.deepStrictEqual(rowMajorStrides(held.shape), [4, 1])
  })

  it("lengths near 2^53 stay exact", () => {
    const length = 2 ** 53 - 1
    const held = Array.from({ length: 3 }, (_, rank) => Result.getOrThrow(localShard(parse("3:S0"), [length], rank)))
    const size = Number((BigInt(length) + 2n) / 3n)
    assert.deepStrictEqual(
      held.map(({ intervals }) => intervals[0]),
      [[[0, size]], [[size, 2 * size]], [[2 * size, length]]]
    )
    refused(localShard(parse("2:SS(0,1000000000)"), [2 ** 40], 0), "TooLarge", "intervals")
  })
})

describe("layout texts", () => {
  it("read back as the layout that they were written from", () => {
    for (const text of [
      "8:S1",
      "2x4:S0,R",
      "2x4@8:S-1,P(sum)",
      "dp=2xtp=2@3,1,0,2:SS(0,2),S0",
      "4@0-1,8-9:P(avg)",
      "expert=2xx=3:R,SS(-2,10)",
      "1@5:P(product)",
      "2x1x2@4:P(max),P(min),R"
    ]) {
      assert.strictEqual(formatMeshLayout(parse(text)), text)
    }
    assert.deepStrictEqual(parse(" 2 x 2 @ 0-3 : S0 , SS( 1 , 2 ) "), parse("2x2:S0,SS(1,2)"))
    assert.deepStrictEqual(parse("2:P(sum)").placements, [partial("sum")])
  })

  it.effect("do so for any layout", () =>
    Effect.gen(function* () {
      for (const { source } of yield* Arbitrary.sampleEffect(meshPair({ isPartial: true }), {
        count: 100,
        seed: "text"
      })) {
        assert.deepStrictEqual(parse(formatMeshLayout(source)), source)
      }
    })
  )

  it("that say nothing are refused with the place and an example", () => {
    for (const text of [
      "",
      "8",
      "8:",
      "x8:S0",
      "8x:S0",
      "0x8",
      "a=2x2:R,R",
      "8@:R",
      "8@1-0:R",
      "8@a:R",
      "8:S",
      "8:s0"
    ]) {
      refused(parseMeshLayout(text), "InvalidText", `"${text}"`, "2x4:S0,R")
    }
    for (const text of ["8:S0,", "8:,S0", "8:SS(0)", "8:SS(0,1", "8:P()", "8:P", "8:P(mean)", "8:S0)", "8:R:R"]) {
      refused(parseMeshLayout(text), "InvalidText")
    }
    refused(parseMeshLayout("2x4:S0"), "CountMismatch")
    refused(parseMeshLayout("0:R"), "EmptyMesh")
    refused(parseMeshLayout("2@0,0:R"), "RepeatedRank")
    refused(parseMeshLayout("2x8:S0,R", 8), "OutsideGroup", "8 ranks")
    refused(parseMeshLayout("2:SS(0,0)"), "InvalidPlacement")
  })
})
