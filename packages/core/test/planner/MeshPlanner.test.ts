// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import { parse } from "@tensorferry/testing/planning/meshSides"
import * as Result from "effect/Result"
import type { SourceChoice } from "../../src/ir/M2MMap.ts"
import { m2mDigest } from "../../src/ir/M2MMap.ts"
import type { Route } from "../../src/ir/Route.ts"
import type { MeshErrorKind } from "../../src/layout/MeshError.ts"
import { rangeBoxes } from "../../src/planner/CellBoxes.ts"
import { indexMap } from "../../src/planner/MeshIndex.ts"
import { type MeshMapOptions, planMesh, routesOf } from "../../src/planner/MeshPlanner.ts"

const plan = (from: string, to: string, options: MeshMapOptions = {}) => planMesh(parse(from), parse(to), options)
const mapOf = (from: string, to: string, sourceChoice: SourceChoice = "balanced") =>
  Result.getOrThrow(plan(from, to, { sourceChoice }))
const routes = (from: string, to: string, sourceChoice: SourceChoice = "balanced") =>
  routesOf(indexMap(mapOf(from, to, sourceChoice)))

const text = ({ kind, src, dsts }: Route): string =>
  `${kind} ${src.rank}[${src.cell}] > ${dsts.map(({ rank, cell }) => `${rank}[${cell}]`).join(" ")}`.trimEnd()

const refused = (
  result: Result.Result<unknown, { readonly kind: string; readonly message: string }>,
  kind: MeshErrorKind
) => {
  assert.isTrue(Result.isFailure(result))
  if (Result.isFailure(result)) assert.strictEqual(result.failure.kind, kind, result.failure.message)
  return Result.isFailure(result) ? result.failure.message : ""
}

describe("maps between meshes", () => {
  it("count cells that divide into both sides' shards", () => {
    const map = mapOf("2x3:S0,S1", "4@6:S0")
    assert.deepStrictEqual(map.cellCounts, [4, 3])
    assert.deepStrictEqual(map.sourceNumSlicers, [2, 1])
    assert.deepStrictEqual(map.targetNumSlicers, [1, 3])
    assert.strictEqual(m2mDigest(map), m2mDigest(mapOf("2x3:S0,S1", "4@6:S0")))
    assert.notStrictEqual(m2mDigest(map), m2mDigest(mapOf("2x3:S0,S1", "4@6:S0", "etha")))
    assert.notStrictEqual(m2mDigest(map), m2mDigest(mapOf("2x3:S0,S1", "4@7:S0")))
  })

  it("a partial target, mixed reductions and dimensions out of range are refused with the reason", () => {
    assert.include(refused(plan("2:S0", "2@2:P(sum)"), "PartialTarget"), "which rank would hold which contribution")
    refused(plan("2:P(sum)", "2:P(sum)"), "PartialTarget")
    refused(plan("2x2:P(sum),P(max)", "4:R"), "MixedReductions")
    refused(plan("2:S-1", "2:R"), "DimOutOfRange")
    refused(plan("2:S2", "2:R", { tensorRank: 2 }), "DimOutOfRange")
    refused(plan("2:R", "2:S-3", { tensorRank: 2 }), "DimOutOfRange")
    assert.deepStrictEqual(Result.getOrThrow(plan("2:S-1", "2:R", { tensorRank: 3 })).cellCounts, [1, 1, 2])
  })

  it("more cells than can be counted exactly are refused, never rounded", () => {
    refused(plan("2:SS(0,100000000000000)", "2@2:SS(0,99999999999999)"), "TooLarge")
    refused(plan("2x2:SS(0,100000000),SS(1,100000001)", "2@4:S0"), "TooLarge")
  })

  it("replicas of a shard take equal runs of its deliveries", () => {
    assert.deepStrictEqual(routes("2:R", "4@2:S0").map(text), [
      "p2p 0[0] > 2[0]",
      "p2p 0[1] > 3[0]",
      "p2p 1[2] > 4[0]",
      "p2p 1[3] > 5[0]"
    ])
    assert.deepStrictEqual(routes("2x2:S0,R", "4@4:R").map(text), [
      "broadcast 0[0] > 4[0] 5[0]",
      "broadcast 1[0] > 6[0] 7[0]",
      "broadcast 2[0] > 4[1] 5[1]",
      "broadcast 3[0] > 6[1] 7[1]"
    ])
    // Three shards to four: the first shard's 4 cells go to two ranks, 3 and 1, yet its replicas send 2 each.
    assert.deepStrictEqual(
      routes("3x2:S0,R", "4@6:S0")
        .map(text)
        .filter((route) => / [01]\[/.test(route)),
      ["p2p 0[0] > 6[0]", "p2p 0[1] > 6[1]", "p2p 1[2] > 6[2]", "p2p 1[3] > 7[0]"]
    )
  })

  it("fault 14: what a rank holds already it keeps, and others share the rest", () => {
    assert.deepStrictEqual(routes("2:S0", "2:S1").map(text), [
      "local 0[0,0] > 0[0,0]",
      "p2p 0[0,1] > 1[0,0]",
      "p2p 1[0,0] > 0[1,0]",
      "local 1[0,1] > 1[1,0]"
    ])
    assert.deepStrictEqual(routes("4:R", "6:R").map(text), [
      "local 0[0] > 0[0]",
      "p2p 0[0] > 4[0]",
      "local 1[0] > 1[0]",
      "p2p 1[0] > 5[0]",
      "local 2[0] > 2[0]",
      "local 3[0] > 3[0]"
    ])
    assert.deepStrictEqual(
      routes("4@3,1,0,2:S0", "4@3,1,0,2:S0").map(({ kind }) => kind),
      ["local", "local", "local", "local"]
    )
  })

  it("each cell of a partial source has one shipping member, and they take turns", () => {
    assert.deepStrictEqual(routes("2:P(sum)", "2@2:S0").map(text), [
      "p2p 0[0] > 2[0]",
      "none 0[1] >",
      "none 1[0] >",
      "p2p 1[1] > 3[0]"
    ])
    // Etha's choice lets two members reduce and ship the one cell of each shard.
    assert.deepStrictEqual(
      routes("2x2:P(sum),S0", "4@4:R", "etha").map(({ kind }) => kind),
      ["broadcast", "broadcast", "broadcast", "broadcast"]
    )
    assert.deepStrictEqual(routes("2x2:P(sum),S0", "4@4:R").map(text), [
      "broadcast 0[0] > 4[0] 5[0] 6[0] 7[0]",
      "broadcast 1[0] > 4[1] 5[1] 6[1] 7[1]",
      "none 2[0] >",
      "none 3[0] >"
    ])
    // Replicas of a contribution have no part in another group's reduction.
    assert.deepStrictEqual(
      routes("2x2:P(min),R", "1@4:R").map(({ kind, src }) => [kind, src.rank]),
      [
        ["p2p", 0],
        ["none", 2]
      ]
    )
  })

  it("fault 16: routes are exact far beyond 2^24 cells", () => {
    const [parts, others] = [4096, 4097]
    const index = indexMap(mapOf(`${parts}:S0`, `${others}@${parts}:S0`))
    assert.deepStrictEqual(index.map.cellCounts, [parts * others])
    for (const rank of [0, 2047, parts - 1]) {
      const own = routesOf(index, rank)
      assert.strictEqual(own.length, others)
      for (const [at, { src, dsts }] of own.entries()) {
        const cell = BigInt(rank) * BigInt(others) + BigInt(at)
        assert.deepStrictEqual(src, { rank, cell: [at] })
        const target = Number(cell / BigInt(parts))
        assert.deepStrictEqual(dsts, [{ rank: parts + target, cell: [Number(cell % BigInt(parts))] }])
      }
    }
  })

  it("fault 17: strided shards alone, and beyond the inner count, are shards", () => {
    assert.deepStrictEqual(mapOf("2:S0", "2@2:SS(0,2)").cellCounts, [4])
    assert.deepStrictEqual(routes("2:S0", "2@2:SS(0,2)").map(text), [
      "p2p 0[0] > 2[0]",
      "p2p 0[1] > 3[0]",
      "p2p 1[0] > 2[1]",
      "p2p 1[1] > 3[1]"
    ])
    assert.deepStrictEqual(routes("2x2:SS(0,4),S0", "2@4:S0", "etha").map(text), [
      "p2p 0[0] > 4[0]",
      "p2p 0[1] > 4[2]",
      "p2p 1[0] > 5[0]",
      "p2p 1[1] > 5[2]",
      "p2p 2[0] > 4[1]",
      "p2p 2[1] > 4[3]",
      "p2p 3[0] > 5[1]",
      "p2p 3[1] > 5[3]"
    ])
  })

  it("the routes of one rank are its part of all routes", () => {
    for (const choice of ["balanced", "etha"] as const) {
      const index = indexMap(mapOf("2x3@5,0,3,1,4,2:P(sum),S0", "2x2@2,3,6,7:S0,S1", choice))
      const all = routesOf(index)
      for (const rank of [0, 1, 2, 3, 4, 5]) {
        assert.deepStrictEqual(
          routesOf(index, rank),
          all.filter(({ src }) => src.rank === rank)
        )
      }
      assert.deepStrictEqual(routesOf(index, 6), [])
    }
  })

  it("ranges of cells are few boxes that hold each cell once", () => {
    for (const extents of [[], [1], [5], [3, 4], [2, 3, 5], [1, 4, 1, 3]]) {
      const count = extents.reduce((product, extent) => product * extent, 1)
      for (let start = 0; start <= count; start++) {
        for (let stop = start; stop <= count; stop++) {
          const boxes = rangeBoxes(extents, [start, stop])
          const cells = boxes.flatMap((box) => {
            let numbers = [0]
            for (const [dim, [from, to]] of box.entries()) {
              numbers = numbers.flatMap((base) =>
                Array.from({ length: to - from }, (_, at) => base * extents[dim]! + from + at)
              )
            }
            return numbers
          })
          assert.deepStrictEqual(
            cells,
            Array.from({ length: stop - start }, (_, at) => start + at)
          )
          assert.isAtMost(boxes.length, Math.max(1, 2 * extents.length - 1))
        }
      }
    }
  })
})
