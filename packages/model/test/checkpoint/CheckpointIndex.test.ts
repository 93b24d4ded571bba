// SPDX-License-Identifier: Apache-2.0
/** A checkpoint opens only where index and files agree, keeps few files open, and is written whole or not at all. */

import { mkdir, readdir, readFile, rename, rm, symlink, unlink } from "node:fs/promises"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { fullRegion } from "@tensorferry/core/base/Region"
import { bytePattern as pattern } from "@tensorferry/testing/bytePattern"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import type { CheckpointError } from "../../src/checkpoint/CheckpointError.ts"
import { indexFileName, openCheckpoint, parseIndex, singleFileName } from "../../src/checkpoint/CheckpointIndex.ts"
import { planFiles, stageCheckpoint, writeCheckpoint } from "../../src/checkpoint/CheckpointWriter.ts"
import { makeFileCache } from "../../src/checkpoint/FileCache.ts"
import { type TensorSource, writeSafetensors } from "../../src/checkpoint/SafetensorsWriter.ts"
import { expectReason, list, put, scratchFolder } from "./checkpointSupport.ts"

const source = (name: string, bytes: number, seed = bytes) =>
  ({ name, dtype: "uint8", shape: [bytes], data: pattern(bytes, seed) }) as const

const index = (weightMap: Record<string, unknown>): string =>
  JSON.stringify({ metadata: { total_size: 1 }, weight_map: weightMap })

/** Two files with `a` and `b`, and an index as given. */
const twoFiles = (weightMap: Record<string, unknown> | string) =>
  Effect.gen(function* () {
    const folder = yield* scratchFolder
    yield* writeSafetensors(join(folder, "one.safetensors"), [source("a", 3)])
    yield* writeSafetensors(join(folder, "two.safetensors"), [source("b", 5)])
    yield* put(join(folder, indexFileName), typeof weightMap === "string" ? weightMap : index(weightMap))
    return folder
  })

const refused = (path: string, tag: CheckpointError["reason"]["_tag"], parameter?: string) =>
  Effect.gen(function* () {
    const error = yield* Effect.flip(Effect.scoped(openCheckpoint(path)))
    expectReason(error, tag, parameter)
    return error
  })

const agreeing = { a: "one.safetensors", b: "two.safetensors" }

describe("what opens", () => {
  const readAll = (path: string) =>
    Effect.gen(function* () {
      const checkpoint = yield* openCheckpoint(path)
      const found = new Map<string, Uint8Array>()
      for (const { name, shape, byteLength } of checkpoint.tensors.values()) {
        const into = new Uint8Array(byteLength).fill(0xa5)
        yield* checkpoint.readRegion(name, fullRegion(shape), into)
        found.set(name, into)
      }
      return found
    })

  it.live("a file, a folder with the usual name, a folder with one file", () =>
    Effect.gen(function* () {
      for (const name of [singleFileName, "other.safetensors"]) {
        const folder = yield* scratchFolder
        yield* writeSafetensors(join(folder, name), [source("a", 7)], new Map([["format", "pt"]]))
        yield* put(join(folder, "config.json"), "{}")
        for (const path of [folder, join(folder, name)]) {
          assert.deepStrictEqual(yield* readAll(path), new Map([["a", pattern(7, 7)]]))
        }
        assert.deepStrictEqual((yield* openCheckpoint(folder)).metadata, new Map([["format", "pt"]]))
      }
    })
  )

  it.live("an index, by folder and by path, with linked files", () =>
    Effect.gen(function* () {
      const folder = yield* twoFiles(agreeing)
      const elsewhere = yield* scratchFolder
      yield* writeSafetensors(join(elsewhere, "blob"), [source("b", 5)])
      yield* Effect.promise(() => unlink(join(folder, "two.safetensors")))
      yield* Effect.promise(() => symlink(join(elsewhere, "blob"), join(folder, "two.safetensors")))
      yield* writeSafetensors(join(folder, "unrelated.safetensors"), [source("x", 1)])
      for (const path of [folder, join(folder, indexFileName)]) {
        assert.deepStrictEqual(
          yield* readAll(path),
          new Map([
            ["a", pattern(3, 3)],
            ["b", pattern(5, 5)]
          ])
        )
      }
    })
  )

  it.live("weights of a model", () =>
    Effect.gen(function* () {
      const path = fileURLToPath(new URL("../../../../examples/mnist/mnist-tinygrad.safetensors", import.meta.url))
      const checkpoint = yield* openCheckpoint(path)
      assert.deepStrictEqual([...checkpoint.tensors.keys()], ["l1.weight", "l2.weight"])
      expectReason(
        yield* Effect.flip(checkpoint.readRegion("l3.weight", [], new Uint8Array(0))),
        "TensorMissing",
        "l3.weight"
      )
    })
  )
})

describe("what does not open", () => {
  it.live("nothing there, several files without index, or both forms at once", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      yield* refused(join(folder, "absent"), "NotFound")
      yield* refused(folder, "NotFound")
      yield* writeSafetensors(join(folder, "model-00001-of-00002.safetensors"), [source("a", 1)])
      yield* refused(folder, "NotFound")
      yield* writeSafetensors(join(folder, "x.safetensors"), [source("a", 1)])
      yield* refused(folder, "InvalidRequest")
      yield* writeSafetensors(join(folder, singleFileName), [source("a", 1)])
      yield* put(join(folder, indexFileName), index({}))
      yield* refused(folder, "InvalidRequest")
    })
  )

  it.live("an index that leaves its folder", () =>
    Effect.gen(function* () {
      const outside = [
        "../one.safetensors",
        "/etc/passwd",
        "sub/one.safetensors",
        "..",
        ".",
        "",
        "a\0.safetensors",
        "..\\one.safetensors",
        "C:one.safetensors",
        ".hidden.safetensors",
        `${"x".repeat(256)}.safetensors`
      ]
      for (const target of outside) {
        const error = yield* refused(yield* twoFiles({ ...agreeing, a: target }), "UnsafePath", "a")
        assert.include(error.message, JSON.stringify(target))
      }
    })
  )

  it.live("files that are missing, all named", () =>
    Effect.gen(function* () {
      const folder = yield* twoFiles({ ...agreeing, c: "three.safetensors", d: "four.safetensors" })
      const error = yield* refused(folder, "NotFound")
      assert.include(error.message, "three.safetensors")
      assert.include(error.message, "four.safetensors")
    })
  )

  it.live("tensors in another file, in two files, in no file, in no index", () =>
    Effect.gen(function* () {
      yield* refused(yield* twoFiles({ a: "two.safetensors", b: "one.safetensors" }), "InvalidIndex", "a")
      yield* refused(yield* twoFiles({ ...agreeing, c: "one.safetensors" }), "InvalidIndex", "c")
      const unlisted = yield* twoFiles({ a: "one.safetensors" })
      assert.strictEqual((yield* openCheckpoint(unlisted)).tensors.size, 1)
      yield* writeSafetensors(join(unlisted, "one.safetensors"), [source("a", 3), source("extra", 1)])
      yield* refused(unlisted, "InvalidIndex", "extra")
      const twice = yield* twoFiles(agreeing)
      yield* writeSafetensors(join(twice, "two.safetensors"), [source("a", 3), source("b", 5)])
      const error = yield* refused(twice, "InvalidIndex", "a")
      assert.include(error.message, `also lies in ${join(twice, "one.safetensors")}`)
    })
  )

  it.live("an index of another form", () =>
    Effect.gen(function* () {
      for (const text of [
        "",
        "[]",
        "{}",
        "{",
        '{"weight_map":[]}',
        '{"weight_map":null}',
        '{"weight_map":{}}x',
        "\0"
      ]) {
        yield* refused(yield* twoFiles(text), "InvalidIndex")
      }
      yield* refused(yield* twoFiles({ ...agreeing, a: 1 }), "InvalidIndex", "a")
      yield* refused(yield* twoFiles({ ...agreeing, a: "pytorch_model.bin" }), "InvalidIndex", "a")
      yield* refused(
        yield* twoFiles('{"weight_map":{"a":"one.safetensors","a":"two.safetensors"}}'),
        "InvalidIndex",
        "a"
      )
      assert.isTrue(Result.isFailure(parseIndex(Uint8Array.of(0x7b, 0xff))))
    })
  )

  it.live("an index whose file is damaged, naming that file", () =>
    Effect.gen(function* () {
      const folder = yield* twoFiles(agreeing)
      yield* put(join(folder, "two.safetensors"), "damaged")
      const error = yield* refused(folder, "Truncated")
      assert.strictEqual(error.reason.file, join(folder, "two.safetensors"))
    })
  )

  it.live("a file that goes away while the checkpoint is open", () =>
    Effect.gen(function* () {
      const folder = yield* twoFiles(agreeing)
      const checkpoint = yield* openCheckpoint(folder)
      yield* put(join(folder, "two.safetensors"), "")
      expectReason(yield* Effect.flip(checkpoint.readRegion("b", [[0, 5]], new Uint8Array(5))), "Truncated")
    })
  )
})

describe("open files", () => {
  const descriptorsUnder = (folder: string) =>
    Effect.promise(async () => {
      const { readlink } = await import("node:fs/promises")
      const links = await Promise.all(
        (await readdir("/proc/self/fd")).map((fd) => readlink(`/proc/self/fd/${fd}`).catch(() => ""))
      )
      return links.filter((link) => link.startsWith(folder)).length
    })

  it.live("stay below the limit, also when used at once, and are closed by the scope", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const paths = Array.from({ length: 7 }, (_, at) => join(folder, `${at}.safetensors`))
      for (const [at, path] of paths.entries()) yield* writeSafetensors(path, [source("t", 5, at)])
      yield* Effect.scoped(
        Effect.gen(function* () {
          const cache = yield* makeFileCache(2)
          const read = (at: number) =>
            cache.use(paths[at]!, (file) =>
              Effect.gen(function* () {
                const into = new Uint8Array(5).fill(0xa5)
                yield* file.readRegion("t", [[0, 5]], into)
                assert.deepStrictEqual(into, pattern(5, at))
              })
            )
          for (const at of [0, 1, 2, 0, 3, 3, 4, 5, 6, 0]) {
            yield* read(at)
            assert.isAtMost(yield* descriptorsUnder(folder), 2)
          }
          const order = Array.from({ length: 40 }, (_, turn) => (turn * 5) % 7)
          yield* Effect.forEach(order, read, { concurrency: 2 })
          assert.isAtMost(yield* descriptorsUnder(folder), 2)
          yield* Effect.forEach(order, read, { concurrency: "unbounded" })
          expectReason(yield* Effect.flip(cache.use(join(folder, "absent"), () => Effect.void)), "NotFound")
          assert.isAbove(cache.openCount(), 0)
        })
      )
      assert.strictEqual(yield* descriptorsUnder(folder), 0)
    })
  )

  it.live("that were replaced or written meanwhile are refused by name, open or not", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const [one, two] = [join(folder, "one"), join(folder, "two")]
      for (const path of [one, two]) yield* writeSafetensors(path, [source("t", 5)])
      const cache = yield* makeFileCache(1)
      const read = (path: string) => cache.use(path, (file) => file.readRegion("t", [[0, 5]], new Uint8Array(5)))
      yield* read(one)
      yield* read(two)
      yield* read(one)
      // Equal names, shapes and length, other bytes, under the path of a file that was closed to make room.
      yield* writeSafetensors(join(folder, "new"), [source("t", 5, 77)])
      yield* Effect.promise(() => rename(join(folder, "new"), two))
      const replaced = yield* Effect.flip(read(two))
      expectReason(replaced, "Changed")
      assert.strictEqual(replaced.reason.file, two)
      // Written in place while it is open.
      yield* read(one)
      yield* put(one, yield* Effect.promise(() => readFile(two)))
      expectReason(yield* Effect.flip(read(one)), "Changed")
    })
  )

  it.live("are not closed while they are in use", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const paths = Array.from({ length: 4 }, (_, at) => join(folder, `${at}.safetensors`))
      for (const [at, path] of paths.entries()) yield* writeSafetensors(path, [source("t", 5, at)])
      const cache = yield* makeFileCache(2)
      yield* cache.use(paths[0]!, (file) =>
        Effect.gen(function* () {
          for (const path of paths.slice(1)) yield* cache.use(path, () => Effect.void)
          const into = new Uint8Array(5).fill(0xa5)
          yield* file.readRegion("t", [[0, 5]], into)
          assert.deepStrictEqual(into, pattern(5, 0))
        })
      )
    })
  )
})

describe("writing", () => {
  it.live("one file where it fits", () =>
    Effect.gen(function* () {
      const folder = join(yield* scratchFolder, "new", "folder")
      yield* writeCheckpoint(folder, [source("a", 4), source("b", 6)], { maxFileBytes: 10 })
      assert.deepStrictEqual(yield* list(folder), [singleFileName])
    })
  )

  it.live("a first tensor larger than the limit makes no empty file", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      yield* writeCheckpoint(folder, [source("a", 16), source("b", 4)], {
        maxFileBytes: 10,
        metadata: new Map([["k", "v"]])
      })
      const files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
      assert.deepStrictEqual(yield* list(folder), [...files, indexFileName])
      const written = JSON.parse(yield* Effect.promise(() => readFile(join(folder, indexFileName), "utf8")))
      assert.deepStrictEqual(written, { metadata: { total_size: 20 }, weight_map: { a: files[0], b: files[1] } })
      assert.deepStrictEqual((yield* openCheckpoint(folder)).metadata, new Map([["k", "v"]]))
    })
  )

  it("deals tensors in order, and an empty one opens no file", () => {
    const deal = (sizes: ReadonlyArray<number>, limit: number) =>
      planFiles(
        sizes.map((size, at) => ({ name: `${at}`, dtype: "uint8", shape: [size] }) as const),
        limit
      ).map((part) => part.tensors.map((tensor) => tensor.shape[0]))
    assert.deepStrictEqual(deal([], 1), [[]])
    assert.deepStrictEqual(deal([0, 16, 0, 4, 0], 10), [
      [0, 16, 0],
      [4, 0]
    ])
    assert.deepStrictEqual(deal([5, 5, 5], 10), [[5, 5], [5]])
    assert.deepStrictEqual(deal([11, 11], 10), [[11], [11]])
    assert.deepStrictEqual(deal([2 ** 32, 2 ** 32 - 1, 1], 2 ** 32), [[2 ** 32], [2 ** 32 - 1, 1]])
  })

  const sizes = Arbitrary.array(Arbitrary.schema(Schema.Literals([0, 1, 2, 3, 7, 10, 11, 23])), { maxLength: 8 })
  it.effect.prop(
    "what is written opens with the same tensors, whatever the limit",
    { sizes, limit: Schema.Literals([1, 2, 10, 11, 1000]) },
    ({ sizes, limit }) =>
      Effect.gen(function* () {
        const folder = yield* scratchFolder
        const tensors = sizes.map((size, at) => source(`layers.${at}`, size, at))
        yield* writeCheckpoint(folder, tensors, { maxFileBytes: limit })
        const checkpoint = yield* openCheckpoint(folder)
        assert.deepStrictEqual([...checkpoint.tensors.keys()].sort(), tensors.map((tensor) => tensor.name).sort())
        for (const { name, shape, data } of tensors) {
          const into = new Uint8Array(data.length).fill(0xa5)
          yield* checkpoint.readRegion(name, fullRegion(shape), into)
          assert.deepStrictEqual(into, data)
        }
        const held = [...checkpoint.tensors.values()]
          .filter((tensor) => tensor.byteLength > 0)
          .map((tensor) => tensor.file)
        const files = (yield* list(folder)).filter((name) => name.endsWith(".safetensors"))
        if (files.length > 1) assert.strictEqual(new Set(held).size, files.length)
      }).pipe(Effect.scoped),
    { arbitrary: { runs: 60, seed: "checkpoint" } }
  )

  it.live("names that an object would lose or reorder", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const names = ["2", "1", "__proto__", "constructor"]
      yield* writeCheckpoint(
        folder,
        names.map((name) => source(name, 3)),
        { maxFileBytes: 3 }
      )
      assert.deepStrictEqual([...(yield* openCheckpoint(folder)).tensors.keys()], names)
    })
  )

  it.live("refuses a folder that holds a checkpoint, equal names and limits that are not positive", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const attempt = (tensors: ReadonlyArray<TensorSource>, maxFileBytes = 10) =>
        Effect.flip(writeCheckpoint(folder, tensors, { maxFileBytes }))
      expectReason(yield* attempt([source("a", 16), source("a", 16)]), "TensorInvalid", "a")
      for (const limit of [0, -1, Number.NaN]) expectReason(yield* attempt([source("a", 1)], limit), "InvalidRequest")
      for (const name of ["old.safetensors", indexFileName]) {
        yield* put(join(folder, name), "old")
        expectReason(yield* attempt([source("a", 1)]), "AlreadyExists")
        assert.deepStrictEqual(yield* list(folder), [name])
        yield* Effect.promise(() => unlink(join(folder, name)))
      }
    })
  )

  it.live("a tensor that fails in the last file leaves nothing", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const broken = { name: "c", dtype: "uint8", shape: [8], data: Stream.fail("gone" as const) } as const
      const error = yield* Effect.flip(
        writeCheckpoint(folder, [source("a", 8), source("b", 8), broken], { maxFileBytes: 8 })
      )
      assert.strictEqual(error, "gone")
      assert.deepStrictEqual(yield* list(folder), [])
    })
  )

  it.live("a commit that fails part of the way leaves no index and nothing that opens", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const taken = join(folder, "model-00002-of-00002.safetensors")
      yield* Effect.scoped(
        Effect.gen(function* () {
          const staged = yield* stageCheckpoint(folder, [source("a", 8), source("b", 8)], { maxFileBytes: 8 })
          assert.isTrue((yield* list(folder)).every((name) => name.includes(".tmp-")))
          yield* Effect.promise(() => mkdir(join(taken, "inside"), { recursive: true }))
          expectReason(yield* Effect.flip(staged.commit), "WriteFailed")
        })
      )
      yield* Effect.promise(() => rm(taken, { recursive: true }))
      assert.deepStrictEqual(yield* list(folder), ["model-00001-of-00002.safetensors"])
      yield* refused(folder, "NotFound")
    })
  )
})
