// SPDX-License-Identifier: Apache-2.0
/** Reading regions gives the bytes that a naive slice gives, from real files and made-up ones, and refuses the rest. */

import { execFileSync } from "node:child_process"
import { createHash } from "node:crypto"
import { readFileSync } from "node:fs"
import { open, symlink, truncate } from "node:fs/promises"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { bitsOf, byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import {
  elementCount,
  type Interval,
  type Region,
  regionShape,
  rowMajorStrides,
  type Shape
} from "@tensorferry/core/base/Region"
import { bytePattern as pattern } from "@tensorferry/testing/bytePattern"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { regionRuns } from "../../src/checkpoint/RegionRuns.ts"
import { openSafetensors, readTensor } from "../../src/checkpoint/Safetensors.ts"
import { expectReason, image, put, scratchFolder } from "./checkpointSupport.ts"

const data = (name: string): string => fileURLToPath(new URL(`../data/${name}`, import.meta.url))

const single = (dtype: string, shape: Shape, bytes: Uint8Array): Uint8Array =>
  image(`{"t":{"dtype":"${dtype}","shape":[${shape.join(",")}],"data_offsets":[0,${bytes.length}]}}`, bytes)

/** Element by element, for whole-byte types. */
const naiveSlice = (bytes: Uint8Array, size: number, shape: Shape, region: Region): Uint8Array => {
  const strides = rowMajorStrides(shape)
  const lengths = regionShape(region)
  const out = new Uint8Array(elementCount(lengths) * size)
  for (let element = 0; element < elementCount(lengths); element++) {
    let rest = element
    let from = 0
    for (let dim = lengths.length - 1; dim >= 0; dim--) {
      from += (region[dim]![0] + (rest % lengths[dim]!)) * strides[dim]!
      rest = Math.floor(rest / lengths[dim]!)
    }
    out.set(bytes.subarray(from * size, (from + 1) * size), element * size)
  }
  return out
}

describe("public files", () => {
  const numbers = [-3, -2, -1, 0, 1, 2]
  const bytesOf = (array: { readonly buffer: ArrayBufferLike }) => new Uint8Array(array.buffer)
  const expected: Record<string, Uint8Array> = {
    u8: bytesOf(Uint8Array.from(numbers)),
    u16: bytesOf(Uint16Array.from(numbers)),
    u32: bytesOf(Uint32Array.from(numbers)),
    i8: bytesOf(Int8Array.from(numbers)),
    i16: bytesOf(Int16Array.from(numbers)),
    i32: bytesOf(Int32Array.from(numbers)),
    f16: bytesOf(Uint16Array.of(0xc200, 0xc000, 0xbc00, 0, 0x3c00, 0x4000)),
    f32: bytesOf(Float32Array.from(numbers)),
    f64: bytesOf(Float64Array.from(numbers))
  }
  const codes: Record<string, string> = {
    u8: "B",
    u16: "H",
    u32: "I",
    i8: "b",
    i16: "h",
    i32: "i",
    f16: "e",
    f32: "f",
    f64: "d"
  }

  for (const [type, bytes] of Object.entries(expected)) {
    it.live(`sample ${type}`, () =>
      Effect.gen(function* () {
        const file = yield* openSafetensors(data(`safetensors/${type}.safetensors`))
        assert.deepStrictEqual([...file.metadata], [["test", "a"]])
        assert.isFalse(file.isAligned)
        const tensor = file.tensors.get(codes[type]!)!
        assert.deepStrictEqual(tensor.shape, [6])
        assert.deepStrictEqual(yield* readTensor(file, tensor), bytes)
      })
    )
  }

  it.live("sample with all types", () =>
    Effect.gen(function* () {
      const file = yield* openSafetensors(data("safetensors/overall.safetensors"))
      assert.strictEqual(file.tensors.size, 9)
      for (const [type, bytes] of Object.entries(expected)) {
        assert.deepStrictEqual(yield* readTensor(file, file.tensors.get(codes[type]!)!), bytes, type)
      }
    })
  )

  it.live("weights of a model, whole and by columns", () =>
    Effect.gen(function* () {
      const raw = readFileSync(
        new URL("../../../../examples/mnist/mnist-tinygrad.safetensors", import.meta.url).pathname
      )
      const file = yield* openSafetensors(
        new URL("../../../../examples/mnist/mnist-tinygrad.safetensors", import.meta.url).pathname
      )
      assert.isTrue(file.isAligned)
      assert.deepStrictEqual(
        [...file.tensors.values()].map(({ name, dtype, shape }) => [name, dtype, ...shape]),
        [
          ["l1.weight", "float32", 128, 784],
          ["l2.weight", "float32", 10, 128]
        ]
      )
      const hash = createHash("sha256")
      for (const tensor of file.tensors.values()) hash.update(yield* readTensor(file, tensor))
      assert.strictEqual(hash.digest("hex"), createHash("sha256").update(raw.subarray(160)).digest("hex"))
      const columns: Region = [
        [0, 128],
        [391, 784]
      ]
      const into = new Uint8Array(128 * 393 * 4).fill(0xa5)
      yield* file.readRegion("l1.weight", columns, into)
      assert.deepStrictEqual(into, naiveSlice(raw.subarray(160), 4, [128, 784], columns))
    })
  )
})

describe("regions", () => {
  const natural = (maximum: number) => Schema.Int.check(Schema.isBetween({ minimum: 0, maximum }))
  const dimension = Schema.Struct({
    length: Schema.Literals([0, 1, 2, 3, 5, 7, 8, 13]),
    a: natural(13),
    b: natural(13)
  })
  const dimensions = Arbitrary.array(Arbitrary.schema(dimension), { maxLength: 4 })
  const cut = ({ length, a, b }: typeof dimension.Type): Interval => {
    const [start, stop] = [a % (length + 1), b % (length + 1)].sort((x, y) => x - y) as [number, number]
    return [start, stop]
  }

  it.effect.prop(
    "a region reads as a naive slice does, into memory that was poisoned",
    { dims: dimensions, dtype: Schema.Literals(["uint8", "bfloat16", "float32", "complex64"]) },
    ({ dims, dtype }) =>
      Effect.gen(function* () {
        const shape = dims.map((dim) => dim.length)
        const region = dims.map(cut)
        const bytes = pattern(byteLengthOf(dtype, elementCount(shape)), shape.length)
        const path = join(yield* scratchFolder, "t.safetensors")
        const names: Partial<Record<DType, string>> = {
          uint8: "U8",
          bfloat16: "BF16",
          float32: "F32",
          complex64: "C64"
        }
        yield* put(path, single(names[dtype]!, shape, bytes))
        const file = yield* openSafetensors(path)
        const expected = naiveSlice(bytes, bitsOf(dtype) / 8, shape, region)
        const into = new Uint8Array(expected.length).fill(0xa5)
        yield* file.readRegion("t", region, into)
        assert.deepStrictEqual(into, expected)
      }).pipe(Effect.scoped),
    { arbitrary: { runs: 150, seed: "regions" } }
  )

  it.effect.prop(
    "runs ascend, never touch, and have the bytes of the region",
    { dims: dimensions },
    ({ dims }) =>
      Effect.gen(function* () {
        const region = dims.map(cut)
        const runs = yield* Effect.fromResult(
          regionRuns(
            dims.map((dim) => dim.length),
            region,
            16
          )
        )
        assert.strictEqual(runs.runBytes * runs.runCount, elementCount(regionShape(region)) * 2)
        const walk = runs.walk()
        let end = -1
        for (let run = 0; run < runs.runCount; run++) {
          assert.isAbove(walk.offset(), end)
          end = walk.offset() + runs.runBytes
          walk.advance()
        }
      }),
    { arbitrary: { runs: 300, seed: "runs" } }
  )

  it.live("many tiny runs, long runs and far-apart runs of one large tensor", () =>
    Effect.gen(function* () {
      // A row is longer than the gap that is read over, and long enough to be read on its own.
      const shape = [2, 61, 70_001]
      const bytes = pattern(elementCount(shape), 7)
      const path = join(yield* scratchFolder, "t.safetensors")
      yield* put(path, single("U8", shape, bytes))
      const file = yield* openSafetensors(path)
      const columns: ReadonlyArray<Interval> = [
        [70_000, 70_001],
        [17, 900],
        [0, 69_000],
        [1, 70_001],
        [0, 70_001]
      ]
      for (const [start, stop] of columns) {
        const region: Region = [
          [0, 2],
          [1, 61],
          [start, stop]
        ]
        const rows = [0, 1].flatMap((plane) => Array.from({ length: 60 }, (_, row) => (plane * 61 + row + 1) * 70_001))
        const expected = Buffer.concat(rows.map((row) => bytes.subarray(row + start, row + stop)))
        const into = new Uint8Array(expected.length).fill(0xa5)
        yield* file.readRegion("t", region, into)
        assert.isTrue(expected.equals(into), JSON.stringify(region))
      }
      assert.isTrue(Buffer.from(bytes).equals(yield* readTensor(file, file.tensors.get("t")!)))
    })
  )

  it.live("short runs over several blocks", () =>
    Effect.gen(function* () {
      const shape = [5_003, 1_021]
      const bytes = pattern(elementCount(shape), 5)
      const path = join(yield* scratchFolder, "t.safetensors")
      yield* put(path, single("U8", shape, bytes))
      const file = yield* openSafetensors(path)
      for (const [start, stop] of [
        [1_020, 1_021],
        [3, 19],
        [3, 20],
        [0, 1_020]
      ] as const) {
        const expected = new Uint8Array(5_003 * (stop - start))
        for (let row = 0; row < 5_003; row++) {
          expected.set(bytes.subarray(row * 1_021 + start, row * 1_021 + stop), row * (stop - start))
        }
        const into = new Uint8Array(expected.length).fill(0xa5)
        yield* file.readRegion(
          "t",
          [
            [0, 5_003],
            [start, stop]
          ],
          into
        )
        assert.isTrue(Buffer.from(into).equals(expected), `${start}:${stop}`)
      }
    })
  )

  it.live("a run that is left over from a block, before a plane that lies far away", () =>
    Effect.gen(function* () {
      // 70 rows fit the block that is read at once, so that the 71st is read alone.
      const shape = [2, 73, 60_000]
      const bytes = pattern(elementCount(shape), 9)
      const path = join(yield* scratchFolder, "t.safetensors")
      yield* put(path, single("U8", shape, bytes))
      const file = yield* openSafetensors(path)
      const into = new Uint8Array(2 * 71).fill(0xa5)
      yield* file.readRegion(
        "t",
        [
          [0, 2],
          [0, 71],
          [5, 6]
        ],
        into
      )
      const expected = Uint8Array.from(into, (_, at) => bytes[(Math.floor(at / 71) * 73 + (at % 71)) * 60_000 + 5]!)
      assert.deepStrictEqual(into, expected)
    })
  )

  it.live("offsets beyond 2^32 are exact", () =>
    Effect.gen(function* () {
      const path = join(yield* scratchFolder, "t.safetensors")
      const rows = 131_072
      const bytes = rows * rows
      const header = image(`{"t":{"dtype":"U8","shape":[${rows},${rows}],"data_offsets":[0,${bytes}]}}`)
      yield* put(path, header)
      yield* Effect.promise(() => truncate(path, header.length + bytes))
      const mark = pattern(16, 3)
      yield* Effect.promise(async () => {
        const handle = await open(path, "r+")
        await handle.write(mark, 0, 16, header.length + 2 ** 32 - 8)
        await handle.close()
      })
      const file = yield* openSafetensors(path)
      const read = (region: Region) =>
        Effect.gen(function* () {
          const into = new Uint8Array(elementCount(regionShape(region))).fill(0xa5)
          yield* file.readRegion("t", region, into)
          return into
        })
      assert.deepStrictEqual(
        yield* read([
          [32_767, 32_768],
          [rows - 8, rows]
        ]),
        mark.subarray(0, 8)
      )
      assert.deepStrictEqual(
        yield* read([
          [32_768, 32_769],
          [0, 8]
        ]),
        mark.subarray(8)
      )
      assert.deepStrictEqual(
        yield* read([
          [rows - 1, rows],
          [rows - 1, rows]
        ]),
        Uint8Array.of(0)
      )
    })
  )

  it.live("sub-byte regions move along whole bytes only", () =>
    Effect.gen(function* () {
      const path = join(yield* scratchFolder, "t.safetensors")
      const bytes = pattern(3 * 4, 1)
      yield* put(path, single("F4", [3, 8], bytes))
      const file = yield* openSafetensors(path)
      const into = new Uint8Array(6).fill(0xa5)
      yield* file.readRegion(
        "t",
        [
          [0, 3],
          [2, 6]
        ],
        into
      )
      assert.deepStrictEqual(into, Uint8Array.from([0, 4, 8].flatMap((row) => [...bytes.subarray(row + 1, row + 3)])))
      for (const region of [
        [
          [0, 3],
          [1, 3]
        ],
        [
          [0, 3],
          [0, 3]
        ],
        [
          [0, 1],
          [7, 8]
        ]
      ] as ReadonlyArray<Region>) {
        const error = yield* Effect.flip(
          file.readRegion("t", region, new Uint8Array(byteLengthOf("float4_e2m1fn", elementCount(regionShape(region)))))
        )
        expectReason(error, "InvalidRequest", "t")
      }
      yield* put(path, single("F4", [3, 2, 5], pattern(15, 1)))
      const odd = yield* openSafetensors(path)
      assert.isTrue(
        Result.isFailure(
          regionRuns(
            [3, 5],
            [
              [0, 3],
              [0, 2]
            ],
            4
          )
        )
      )
      yield* odd.readRegion(
        "t",
        [
          [1, 2],
          [0, 2],
          [0, 5]
        ],
        new Uint8Array(5)
      )
    })
  )
})

describe("refusals", () => {
  const small = single("F32", [2, 2], pattern(16, 1))
  const withFile = <A, E>(
    body: (path: string, file: Effect.Success<ReturnType<typeof openSafetensors>>) => Effect.Effect<A, E>
  ) =>
    Effect.gen(function* () {
      const path = join(yield* scratchFolder, "t.safetensors")
      yield* put(path, small)
      return yield* body(path, yield* openSafetensors(path))
    })

  it.live("unknown names, regions outside the shape, buffers of another size", () =>
    withFile((_, file) =>
      Effect.gen(function* () {
        expectReason(yield* Effect.flip(file.readRegion("x", [], new Uint8Array(0))), "TensorMissing", "x")
        const cases: ReadonlyArray<readonly [Region, number]> = [
          [
            [
              [0, 3],
              [0, 2]
            ],
            24
          ],
          [[[0, 2]], 16],
          [
            [
              [1, 0],
              [0, 2]
            ],
            0
          ],
          [
            [
              [-1, 1],
              [0, 2]
            ],
            16
          ],
          [
            [
              [0, 0.5],
              [0, 2]
            ],
            4
          ],
          [
            [
              [0, Number.NaN],
              [0, 2]
            ],
            0
          ],
          [
            [
              [0, 2],
              [0, 2]
            ],
            15
          ],
          [
            [
              [0, 2],
              [0, 2]
            ],
            17
          ],
          [
            [
              [0, 0],
              [0, 2]
            ],
            1
          ]
        ]
        for (const [region, size] of cases) {
          expectReason(yield* Effect.flip(file.readRegion("t", region, new Uint8Array(size))), "InvalidRequest", "t")
        }
        yield* file.readRegion(
          "t",
          [
            [0, 0],
            [0, 2]
          ],
          new Uint8Array(0)
        )
      })
    )
  )

  it.live("a file that shrinks or grows while it is open", () =>
    withFile((path, file) =>
      Effect.gen(function* () {
        for (const size of [small.length - 1, small.length + 1, 0]) {
          yield* Effect.promise(() => truncate(path, size))
          const error = yield* Effect.flip(
            file.readRegion(
              "t",
              [
                [0, 2],
                [0, 2]
              ],
              new Uint8Array(16)
            )
          )
          expectReason(error, "Truncated")
          assert.strictEqual(error.reason.file, path)
        }
      })
    )
  )

  it.live("a scope that was closed", () =>
    withFile((path) =>
      Effect.gen(function* () {
        const closed = yield* Effect.scoped(openSafetensors(path))
        const error = yield* Effect.flip(
          closed.readRegion(
            "t",
            [
              [0, 2],
              [0, 2]
            ],
            new Uint8Array(16)
          )
        )
        expectReason(error, "Unreadable")
      })
    )
  )

  it.live("absent files, folders and pipes; links are followed", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const attempt = (path: string) => Effect.flip(Effect.scoped(openSafetensors(path)))
      const absent = yield* attempt(join(folder, "absent"))
      expectReason(absent, "NotFound")
      assert.include(absent.message, join(folder, "absent"))
      expectReason(yield* attempt(folder), "Unreadable")
      execFileSync("mkfifo", [join(folder, "pipe")])
      expectReason(yield* attempt(join(folder, "pipe")), "Unreadable")
      expectReason(yield* attempt(join(folder, "a\0b")), "Unreadable")
      yield* put(join(folder, "t"), small)
      yield* Effect.promise(() => symlink("t", join(folder, "link")))
      assert.strictEqual((yield* openSafetensors(join(folder, "link"))).tensors.size, 1)
    })
  )

  it.live("hostile headers of real files, without memory for what they claim", () =>
    Effect.gen(function* () {
      const path = join(yield* scratchFolder, "t")
      for (const length of [2n ** 64n - 5n, 2n ** 63n, 2n ** 53n, 100_000_000n, 1n, 0n]) {
        yield* put(path, image("", 0, length))
        const error = yield* Effect.flip(Effect.scoped(openSafetensors(path)))
        assert.include(["InvalidHeader", "Truncated"], error.reason._tag)
        assert.strictEqual(error.reason.file, path)
      }
      yield* put(path, "")
      expectReason(yield* Effect.flip(Effect.scoped(openSafetensors(path))), "Truncated")
    })
  )
})
