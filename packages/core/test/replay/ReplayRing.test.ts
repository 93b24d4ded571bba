// SPDX-License-Identifier: Apache-2.0
/**
 * Replay rings in one process: layouts and views, a model of the ring under any sequence of appends and packs, writers that
 * die, damaged headers, and sampling.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { packRows } from "../../src/replay/ReplayPack.ts"
import {
  claimReplayWriter,
  createReplayRing,
  openReplayRing,
  type ReplayRing,
  replayRingBytes,
  snapshotOf
} from "../../src/replay/ReplayRing.ts"
import { ownerWord, reservedWord, writtenWord } from "../../src/replay/ReplayRingHeader.ts"
import { processWord } from "../../src/replay/ReplayRingOwner.ts"
import { columnViews, fillColumn, makeRowLayout, type RowColumn } from "../../src/replay/ReplayRowLayout.ts"
import { drawRows } from "../../src/replay/ReplaySampling.ts"
import { cpu } from "../../src/tensor/Device.ts"
import { makeStorage } from "../../src/tensor/Storage.ts"
import { type Tensor, tensorView } from "../../src/tensor/Tensor.ts"
import { replayLayout, rowsFrom, storageOf } from "./replaySupport.ts"

const tagOf = <A, R>(effect: Effect.Effect<A, { readonly reason: { readonly _tag: string } }, R>) =>
  Effect.map(Effect.flip(effect), ({ reason }) => reason._tag)

const newRing = (capacity: number, layout = replayLayout): ReplayRing =>
  Result.getOrThrow(createReplayRing(storageOf(replayRingBytes(layout, capacity)), layout, capacity))

describe("row layouts", () => {
  it("align each column to its element and rows to eight bytes", () => {
    const { columns, rowBytes } = Result.getOrThrow(
      makeRowLayout([
        { name: "done", dtype: "bool", shape: [] },
        { name: "reward", dtype: "float32", shape: [] },
        { name: "pixels", dtype: "uint8", shape: [3, 5] },
        { name: "step", dtype: "int64", shape: [] },
        { name: "half", dtype: "bfloat16", shape: [3] }
      ])
    )
    assert.deepStrictEqual(
      columns.map(({ byteOffset }) => byteOffset),
      [0, 4, 8, 24, 32]
    )
    assert.strictEqual(rowBytes, 40)
    const six = Result.getOrThrow(makeRowLayout([{ name: "x", dtype: "float6_e2m3fn", shape: [5] }]))
    assert.strictEqual(six.rowBytes, 24, "whole elements fit between rows")
  })

  it("give views whose elements are the columns'", () => {
    const layout = Result.getOrThrow(
      makeRowLayout([
        { name: "id", dtype: "int32", shape: [] },
        { name: "x", dtype: "float64", shape: [2, 3] }
      ])
    )
    const rows = 5
    const storage = storageOf(64 + rows * layout.rowBytes)
    const batch = Result.getOrThrow(tensorView(storage, "uint8", [rows, layout.rowBytes], { byteOffset: 64 }))
    const packed = storage.bytes!.subarray(64)
    const ids = Int32Array.from({ length: rows }, (_, row) => 100 + row)
    const xs = Float64Array.from({ length: rows * 6 }, (_, at) => at / 7)
    Result.getOrThrow(fillColumn(layout, "id", packed, new Uint8Array(ids.buffer)))
    Result.getOrThrow(fillColumn(layout, "x", packed, new Uint8Array(xs.buffer)))
    const views = Result.getOrThrow(columnViews(layout, batch))
    const at = ({ byteOffset, strides }: Tensor, indices: ReadonlyArray<number>, size: number): number =>
      byteOffset + size * indices.reduce((sum, index, dim) => sum + index * strides[dim]!, 0)
    const memory = new DataView(storage.bytes!.buffer)
    for (let row = 0; row < rows; row++) {
      assert.strictEqual(memory.getInt32(at(views.id!, [row], 4), true), 100 + row)
      for (let i = 0; i < 6; i++) {
        const value = memory.getFloat64(at(views.x!, [row, Math.floor(i / 3), i % 3], 8), true)
        assert.strictEqual(value, (row * 6 + i) / 7)
      }
    }
    for (const view of Object.values(views)) {
      assert.isTrue(Result.isSuccess(tensorView(storage, view.dtype, view.shape, view)), "inside the memory")
    }
  })

  it("refuse columns and batches that are none", () => {
    const column: RowColumn = { name: "x", dtype: "float32", shape: [] }
    const wrong: ReadonlyArray<ReadonlyArray<unknown>> = [
      [],
      [column, column],
      [{ ...column, name: "" }],
      [{ ...column, dtype: "float31" }],
      [{ ...column, shape: [-1] }],
      [{ ...column, shape: [1.5] }],
      [{ ...column, shape: [2 ** 31 - 1, 2 ** 31 - 1] }],
      [{ ...column, shape: [2 ** 30] }]
    ]
    for (const columns of wrong) {
      const made = makeRowLayout(columns as ReadonlyArray<RowColumn>)
      assert.isTrue(Result.isFailure(made), JSON.stringify(columns))
    }
    const { rowBytes } = replayLayout
    const storage = storageOf(10 * rowBytes)
    for (const [dtype, shape, strides] of [
      ["uint8", [2, rowBytes - 1]],
      ["int8", [2, rowBytes]],
      ["uint8", [2 * rowBytes]],
      ["uint8", [2, rowBytes], [2 * rowBytes, 1]]
    ] as const) {
      const batch = Result.getOrThrow(tensorView(storage, dtype, shape, strides === undefined ? {} : { strides }))
      assert.isTrue(Result.isFailure(columnViews(replayLayout, batch)))
    }
  })
})

describe("a ring", () => {
  const Step = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 12 }))

  it.effect.prop(
    "holds the newest rows, whatever is appended",
    {
      capacity: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 9 })),
      chunks: Arbitrary.array(Arbitrary.schema(Step), { maxLength: 12 })
    },
    ({ capacity, chunks }) =>
      Effect.gen(function* () {
        const ring = newRing(capacity)
        const writer = yield* claimReplayWriter(ring)
        const reader = Result.getOrThrow(openReplayRing(ring.storage))
        let written = 0
        for (const [at, chunk] of chunks.entries()) {
          if (at % 2 === 0 || chunk > capacity) yield* writer.append(rowsFrom(written, chunk))
          else {
            const rows = rowsFrom(written, chunk)
            let from = 0
            for (const span of yield* writer.begin(chunk)) {
              span.set(rows.subarray(from, from + span.byteLength))
              from += span.byteLength
            }
            const seen = yield* snapshotOf(reader)
            assert.strictEqual(seen.end, BigInt(written), "not before they are complete")
            const oldest = Math.min(written, Math.max(0, written + chunk - capacity))
            assert.strictEqual(seen.first, BigInt(oldest), "what is overwritten is gone at once")
            assert.strictEqual(yield* writer.commit, BigInt(written + chunk))
          }
          written += chunk
          const { first, end } = yield* snapshotOf(reader)
          assert.deepStrictEqual([first, end], [BigInt(Math.max(0, written - capacity)), BigInt(written)])
          if (end === 0n) continue
          const into = new Uint8Array(20 * replayLayout.rowBytes).fill(0xee)
          const packed = yield* packRows({ ring: reader, seed: 5, tick: at, rows: 20, into })
          const picked = drawRows({ seed: 5, tick: at, rows: 20, range: Number(end - first) })
          const expected = Array.from(picked, (offset) => rowsFrom(Number(first) + offset, 1))
          assert.deepStrictEqual(Buffer.from(into), Buffer.concat(expected))
          assert.deepStrictEqual({ ...packed }, { first, end, redrawn: 0 })
        }
      }),
    { arbitrary: { runs: 60 } }
  )

  it.effect("keeps rows of several mebibytes, and short and long rows", () =>
    Effect.gen(function* () {
      for (const width of [1, 15, 31, 4000]) {
        const layout = Result.getOrThrow(makeRowLayout([{ name: "x", dtype: "float64", shape: [width] }]))
        const capacity = 64
        const ring = newRing(capacity, layout)
        const writer = yield* claimReplayWriter(ring)
        const rows = new Float64Array(100 * width).map((_, at) => Math.floor(at / width))
        yield* writer.append(new Uint8Array(rows.buffer))
        const count = Math.ceil(2.2e6 / layout.rowBytes)
        const into = new Float64Array(count * width).fill(-1)
        const { first, end } = yield* packRows({
          ring,
          seed: 1,
          tick: 2,
          rows: count,
          into: new Uint8Array(into.buffer)
        })
        assert.deepStrictEqual([first, end], [36n, 100n])
        const picked = drawRows({ seed: 1, tick: 2, rows: count, range: 64 })
        for (let row = 0; row < count; row++) {
          const isRight = [0, width - 1].every((at) => into[row * width + at] === 36 + picked[row]!)
          if (!isRight) assert.fail(`row ${row} of width ${width}`)
        }
      }
    })
  )

  it.effect("draws rows again that are overwritten while it packs", () =>
    Effect.gen(function* () {
      const layout = Result.getOrThrow(makeRowLayout([{ name: "x", dtype: "float64", shape: [2 ** 16] }]))
      const ring = newRing(8, layout)
      const writer = yield* claimReplayWriter(ring)
      const rowOf = (value: number) => new Uint8Array(new Float64Array(2 ** 16).fill(value).buffer)
      for (let row = 0; row < 8; row++) yield* writer.append(rowOf(row))
      const into = new Float64Array(24 * 2 ** 16)
      const packing = packRows({ ring, seed: 3, tick: 1, rows: 24, into: new Uint8Array(into.buffer) })
      // Overwrites rows 0 to 3 between two pieces of the batch, each two rows.
      const [packed] = yield* Effect.all(
        [packing, Effect.andThen(Effect.yieldNow, appendAll(writer, [8, 9, 10, 11].map(rowOf)))],
        {
          concurrency: "unbounded"
        }
      )
      assert.isAbove(packed.redrawn, 0)
      assert.deepStrictEqual([packed.first, packed.end], [0n, 8n])
      for (let row = 0; row < 24; row++) {
        const values = new Set(into.subarray(row * 2 ** 16, (row + 1) * 2 ** 16))
        assert.strictEqual(values.size, 1, `row ${row} is whole`)
        assert.isBelow([...values][0]!, 8, "of the snapshot")
      }
    })
  )

  it.effect("says that it is overwritten when nothing of the snapshot is left", () =>
    Effect.gen(function* () {
      const layout = Result.getOrThrow(makeRowLayout([{ name: "x", dtype: "float64", shape: [2 ** 17] }]))
      const ring = newRing(2, layout)
      const writer = yield* claimReplayWriter(ring)
      const row = new Uint8Array(2 ** 20)
      yield* appendAll(writer, [row, row])
      const packing = packRows({ ring, seed: 3, tick: 1, rows: 8, into: new Uint8Array(8 * 2 ** 20) })
      const [tag] = yield* Effect.all(
        [tagOf(packing), Effect.andThen(Effect.yieldNow, appendAll(writer, [row, row]))],
        {
          concurrency: "unbounded"
        }
      )
      assert.strictEqual(tag, "Overwritten")
    })
  )
})

const appendAll = (writer: Effect.Success<ReturnType<typeof claimReplayWriter>>, rows: ReadonlyArray<Uint8Array>) =>
  Effect.forEach(rows, writer.append, { discard: true })

describe("writers", () => {
  it.effect("are one at a time, in one process too, and can follow each other", () =>
    Effect.gen(function* () {
      const ring = newRing(8)
      yield* Effect.scoped(
        Effect.gen(function* () {
          const writer = yield* claimReplayWriter(ring)
          yield* writer.append(rowsFrom(0, 3))
          assert.strictEqual(yield* tagOf(claimReplayWriter(ring)), "OwnedByOther")
        })
      )
      const next = yield* claimReplayWriter(ring)
      assert.strictEqual(yield* next.append(rowsFrom(3, 2)), 5n)
    })
  )

  it.effect("that died leave a ring whose half-written rows are never read", () =>
    Effect.gen(function* () {
      const ring = newRing(8)
      yield* Effect.scoped(
        Effect.gen(function* () {
          const writer = yield* claimReplayWriter(ring)
          yield* writer.append(rowsFrom(0, 10))
          for (const span of yield* writer.begin(3)) span.fill(0xdd)
        })
      )
      // The next process number may exist, but not with this start time.
      ring.words[ownerWord] = (BigInt(process.pid) << 32n) | 1n
      assert.deepStrictEqual(yield* snapshotOf(ring), { first: 5n, end: 10n })
      const next = yield* claimReplayWriter(ring)
      yield* next.append(rowsFrom(10, 1))
      assert.deepStrictEqual(yield* snapshotOf(ring), { first: 5n, end: 11n }, "rows 2 to 4 were touched")
      yield* next.append(rowsFrom(11, 3))
      assert.deepStrictEqual(yield* snapshotOf(ring), { first: 6n, end: 14n })
      const into = new Uint8Array(50 * replayLayout.rowBytes)
      yield* packRows({ ring, seed: 1, tick: 1, rows: 50, into })
      assert.isFalse(into.includes(0xdd))
    })
  )

  it.effect("notice that the ring is not theirs any more, and that it was freed", () =>
    Effect.gen(function* () {
      const ring = newRing(4)
      const writer = yield* claimReplayWriter(ring)
      ring.words[ownerWord] = processWord(process.ppid)!
      assert.strictEqual(yield* tagOf(writer.append(rowsFrom(0, 1))), "NotOwner")
      assert.strictEqual(yield* tagOf(claimReplayWriter(ring)), "OwnedByOther")
      ring.words[ownerWord] = processWord("self")!
      yield* writer.append(rowsFrom(0, 1))
      ring.storage.free()
      assert.strictEqual(yield* tagOf(writer.append(rowsFrom(0, 1))), "RingFreed")
      assert.strictEqual(yield* tagOf(snapshotOf(ring)), "RingFreed")
      assert.strictEqual(yield* tagOf(claimReplayWriter(ring)), "RingFreed")
    })
  )

  it.effect("refuse what they cannot write", () =>
    Effect.gen(function* () {
      const ring = newRing(4)
      const writer = yield* claimReplayWriter(ring)
      assert.strictEqual(yield* tagOf(writer.append(new Uint8Array(replayLayout.rowBytes + 1))), "InvalidRequest")
      for (const rows of [5, -1, 0.5]) assert.strictEqual(yield* tagOf(writer.begin(rows)), "InvalidRequest")
      yield* writer.begin(2)
      assert.strictEqual(yield* tagOf(writer.begin(1)), "InvalidRequest")
      yield* writer.abandon
      assert.strictEqual((yield* writer.begin(1)).length, 1)
      assert.strictEqual(yield* writer.commit, 1n)
    })
  )
})

describe("readers", () => {
  it.effect("refuse headers that lie, field by field", () =>
    Effect.gen(function* () {
      const good = newRing(8)
      const header = new BigInt64Array(good.storage.bytes!.buffer.slice(0, 4096))
      const open = (length = good.storage.byteLength, word?: number, value?: bigint) => {
        const storage = storageOf(length)
        const words = header.slice()
        if (word !== undefined) words[word] = value!
        storage.bytes!.set(new Uint8Array(words.buffer).subarray(0, length))
        return openReplayRing(storage)
      }
      assert.isTrue(Result.isSuccess(open()))
      for (const length of [0, 8, 255, 256, 300, good.storage.byteLength - 1]) {
        assert.isTrue(Result.isFailure(open(length)), `${length} bytes`)
      }
      for (let word = 0; word < 7; word++) {
        for (const value of [0n, -1n, header[word]! + 1n, header[word]! - 1n, 2n ** 62n]) {
          const opened = open(good.storage.byteLength, word, value)
          assert.isTrue(Result.isFailure(opened), `word ${word}: ${value}`)
          if (Result.isFailure(opened)) assert.strictEqual(opened.failure.reason._tag, "InvalidRing")
        }
      }
      for (let byte = 256; byte < 270; byte++) {
        const storage = storageOf(good.storage.byteLength)
        storage.bytes!.set(new Uint8Array(header.buffer))
        storage.bytes![byte] = 0xff
        assert.isTrue(Result.isFailure(openReplayRing(storage)), `column text at ${byte}`)
      }
      const odd = makeStorage({
        device: cpu,
        address: 1n,
        byteLength: 9,
        bytes: new Uint8Array(new ArrayBuffer(16), 1, 9),
        release: () => undefined
      })
      assert.isTrue(Result.isFailure(openReplayRing(odd)))
      yield* Effect.void
    })
  )

  it.effect("refuse positions that no writer leaves", () =>
    Effect.gen(function* () {
      const damages: ReadonlyArray<readonly [word: number, value: bigint]> = [
        [writtenWord, 13n],
        [writtenWord, 11n],
        [writtenWord, -1n],
        [reservedWord, 11n],
        [reservedWord, 21n],
        [reservedWord, -1n]
      ]
      for (const [word, value] of damages) {
        const ring = newRing(8)
        const writer = yield* claimReplayWriter(ring)
        yield* writer.append(rowsFrom(0, 12))
        yield* snapshotOf(ring)
        ring.words[word] = value
        assert.strictEqual(yield* tagOf(snapshotOf(ring)), "RingTorn", `word ${word}: ${value}`)
        const into = new Uint8Array(replayLayout.rowBytes)
        assert.strictEqual(yield* tagOf(packRows({ ring, seed: 0, tick: 0, rows: 1, into })), "RingTorn")
      }
    })
  )

  it.effect("fail when there is no row, and when a request is malformed", () =>
    Effect.gen(function* () {
      const ring = newRing(8)
      const into = new Uint8Array(2 * replayLayout.rowBytes)
      const request = { ring, seed: 0, tick: 0, rows: 2, into }
      assert.strictEqual(yield* tagOf(packRows(request)), "RingEmpty")
      for (const wrong of [{ rows: 3 }, { tick: -1 }, { seed: 0.5 }, { rows: 2 ** 60 }]) {
        assert.strictEqual(yield* tagOf(packRows({ ...request, ...wrong })), "InvalidRequest")
      }
    })
  )
})

describe("sampling", () => {
  it("is a function of seed and tick", () => {
    const draw = (seed: number, tick: number) => [...drawRows({ seed, tick, rows: 20, range: 1000 })].join()
    assert.strictEqual(draw(1, 2), draw(1, 2))
    const all = new Set(
      [0, 1, 2 ** 32, 2 ** 53 - 1].flatMap((seed) => [0, 1, 2 ** 32, 2 ** 53 - 1].map((tick) => draw(seed, tick)))
    )
    assert.strictEqual(all.size, 16)
    // Recorded: other versions and machines must pick the same rows.
    assert.deepStrictEqual([...drawRows({ seed: 42, tick: 7, rows: 6, range: 100 })], recorded)
  })

  it("is uniform, also where the range is not a power of two", () => {
    for (const range of [3, 10, 96, 100]) {
      const seen = new Array<number>(range).fill(0)
      const rows = 200 * range
      for (let tick = 0; tick < 50; tick++) for (const row of drawRows({ seed: 9, tick, rows, range })) seen[row]! += 1
      const expected = (50 * rows) / range
      const chi = seen.reduce((sum, count) => sum + (count - expected) ** 2 / expected, 0)
      assert.isBelow(chi, range + 6 * Math.sqrt(2 * range), `range ${range}`)
    }
    // A draw that is folded back by a remainder would make the first third twice as likely.
    const range = 3 * 2 ** 30
    const low = drawRows({ seed: 1, tick: 1, rows: 30_000, range }).filter((row) => row < 2 ** 30).length
    assert.isBelow(Math.abs(low - 10_000), 500)
  })
})

const recorded = [23, 45, 6, 61, 82, 85]
