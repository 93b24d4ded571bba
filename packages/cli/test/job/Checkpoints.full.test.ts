// SPDX-License-Identifier: Apache-2.0
/**
 * Shards of every kind written to disk and read back by whole jobs whose ranks run in this process: there and back is
 * bit-identical, whatever the types, sizes and layouts.
 */
import { mkdirSync, readdirSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { bitsOf, dtypes, isSubByte } from "@tensorferry/core/base/DType"
import type { ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { scratch, seeded } from "../support/command.ts"
import { memoryFiles, runJob } from "../support/inProcess.ts"
import { assertSameModel, type Entry, writeModel } from "../support/models.ts"
import { reportsOf, throughLayouts } from "../support/throughLayouts.ts"

const rules: ShardingRules = {
  rules: [
    { match: "rows*", shard: 0 },
    { match: "columns*", shard: -1 },
    { match: "middle*", shard: 1 },
    { match: "*", shard: "replicate" }
  ]
}

const through = (entries: ReadonlyArray<Entry>, layouts: ReadonlyArray<string>) =>
  throughLayouts(entries, rules, layouts)

const wholeBytes = dtypes.filter((dtype) => !isSubByte(dtype))

describe("there and back through files", () => {
  it.live("all element types, cut where their bits allow it", () =>
    through(
      [
        ...wholeBytes.map((dtype): Entry => ({ name: `rows.${dtype}`, dtype, shape: [7, 3] })),
        ...wholeBytes.map((dtype): Entry => ({ name: `columns.${dtype}`, dtype, shape: [3, 7] })),
        ...dtypes.filter(isSubByte).flatMap(
          (dtype): ReadonlyArray<Entry> => [
            { name: `replica.${dtype}`, dtype, shape: [3, 24 / bitsOf(dtype)] },
            // Rows of whole bytes, so that they may be cut.
            { name: `rows.${dtype}`, dtype, shape: [8, 8] }
          ]
        )
      ],
      ["tp=3,pp=2", "tp=2"]
    )
  )

  it.live("[10, 128] over eight ranks: uneven shards, and ranks without any", () =>
    through(
      [
        { name: "rows", dtype: "float32", shape: [10, 128] },
        { name: "columns", dtype: "bfloat16", shape: [128, 10] }
      ],
      ["tp=8", "tp=7", "tp=8,dp=2", "tp=3,pp=2"]
    )
  )

  it.live("scalars, and tensors without elements", () =>
    through(
      [
        { name: "scalar", dtype: "float64", shape: [] },
        { name: "rows.empty", dtype: "float32", shape: [0, 4] },
        { name: "rows.thin", dtype: "float32", shape: [5, 0] },
        { name: "columns.empty", dtype: "int64", shape: [4, 0] },
        { name: "replica.empty", dtype: "uint8", shape: [0] },
        { name: "rows.one", dtype: "int8", shape: [1] }
      ],
      ["tp=2", "tp=4,pp=3", "dp=2"]
    )
  )

  it.live("only empty tensors: nothing moves", () =>
    through([{ name: "rows", dtype: "float32", shape: [0] }], ["tp=2"])
  )

  it.live("lengths around the number of ranks, and primes", () =>
    through(
      [0, 1, 2, 3, 4, 5, 7, 11, 13].flatMap(
        (length): ReadonlyArray<Entry> => [
          { name: `rows.${length}`, dtype: "int16", shape: [length] },
          { name: `middle.${length}`, dtype: "uint8", shape: [3, length, 2] }
        ]
      ),
      ["tp=4", "tp=3,pp=2,dp=2", "tp=5"]
    )
  )

  it.live("more than one read per tensor: pieces of a large one", () =>
    // 17 MiB per shard: more than the 16 MiB that are read at once.
    through([{ name: "rows", dtype: "uint8", shape: [34, 1024 * 1024 + 1] }], ["tp=2"])
  )

  const random = seeded(0x1a70)
  const pick = (limit: number): number => Math.floor(random() * limit)
  for (let round = 0; round < 6; round++) {
    const entries = Array.from({ length: 1 + pick(6) }, (_, at): Entry => {
      const kind = ["rows", "columns", "middle", "replica"][pick(4)]!
      return {
        name: `${kind}.layers.${at}.w`,
        dtype: wholeBytes[pick(wholeBytes.length)]!,
        shape: Array.from({ length: 2 + pick(2) }, () => pick(9))
      }
    })
    const layouts = Array.from({ length: 2 }, () => `tp=${1 + pick(4)},pp=${1 + pick(2)},dp=${1 + pick(2)}`)
    it.live(`random model ${round} through ${layouts.join(" and ")}`, () => through(entries, layouts))
  }

  it.live("a destination with ranks of its own", () =>
    Effect.gen(function* () {
      using folder = scratch()
      const original = join(folder.path, "original.safetensors")
      yield* Effect.promise(() => writeModel(original, [{ name: "rows", dtype: "float32", shape: [7, 5] }]))
      const out = join(folder.path, "out")
      const job = { checkpoint: original, from: "tp=2", to: "tp=3", ranks: "disjoint", rules, out } as const
      const reports = reportsOf(yield* runJob(job))
      assert.deepStrictEqual(
        reports.map(({ sourceBytes, destinationBytes }) => [sourceBytes > 0, destinationBytes > 0]),
        [
          [true, false],
          [true, false],
          [false, true],
          [false, true],
          [false, true]
        ]
      )
      yield* Effect.promise(() => assertSameModel(out, original))
    })
  )

  it.live("without --verify the shards are the same", () =>
    Effect.gen(function* () {
      using folder = scratch()
      const original = join(folder.path, "original.safetensors")
      yield* Effect.promise(() => writeModel(original, [{ name: "rows", dtype: "float32", shape: [7, 5] }]))
      const out = join(folder.path, "out")
      const reports = reportsOf(
        yield* runJob({ checkpoint: original, from: "tp=1", to: "tp=2", rules, out, verify: false })
      )
      assert.deepStrictEqual(
        reports.map((report) => report.tensorsVerified),
        [0, 0]
      )
      yield* Effect.promise(() => assertSameModel(out, original))
    })
  )
})

describe("a rank that fails", () => {
  it.live("while it reads: no output, and every other rank names it", () =>
    Effect.gen(function* () {
      const before = memoryFiles()
      using folder = scratch()
      const original = join(folder.path, "original.safetensors")
      const absent = join(folder.path, "absent.safetensors")
      yield* Effect.promise(() => writeModel(original, [{ name: "rows", dtype: "float32", shape: [7, 5] }]))
      const exits = yield* runJob({
        checkpoint: original,
        from: "tp=1",
        to: "tp=3",
        rules,
        out: join(folder.path, "out"),
        specOf: (rank, spec) => (rank === 1 ? { ...spec, checkpoint: absent } : spec)
      })
      for (const exit of exits) assert.isTrue(Exit.isFailure(exit))
      const texts = exits.map((exit) => (Exit.isFailure(exit) ? String(exit.cause) : ""))
      assert.include(texts[1]!, absent)
      for (const rank of [0, 2]) assert.match(texts[rank]!, /peer 1|Rank 1/, texts[rank]!)
      assert.deepStrictEqual(readdirSync(folder.path), ["original.safetensors"])
      assert.strictEqual(memoryFiles(), before)
    })
  )

  it.live("because its part of the output cannot be written", () =>
    Effect.gen(function* () {
      const before = memoryFiles()
      using folder = scratch()
      const original = join(folder.path, "original.safetensors")
      yield* Effect.promise(() => writeModel(original, [{ name: "rows", dtype: "float32", shape: [7, 5] }]))
      const blocked = join(folder.path, "blocked")
      mkdirSync(blocked)
      const exits = yield* runJob({
        checkpoint: original,
        from: "tp=1",
        to: "tp=2",
        rules,
        out: join(folder.path, "out"),
        specOf: (rank, spec) =>
          rank === 1 ? { ...spec, out: { ...spec.out!, temporary: join(blocked, "absent") } } : spec
      })
      const texts = exits.map((exit) => (Exit.isFailure(exit) ? String(exit.cause) : ""))
      assert.match(texts[1]!, /WriteFailed.*absent\/rank-00001\.safetensors/)
      assert.match(texts[0]!, /peer 1|Rank 1/)
      assert.deepStrictEqual(readdirSync(folder.path).sort(), ["blocked", "original.safetensors"])
      assert.strictEqual(memoryFiles(), before)
    })
  )
})
