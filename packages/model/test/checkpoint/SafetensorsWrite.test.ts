// SPDX-License-Identifier: Apache-2.0
/** What is written reads back as it was, and a file appears under its name complete or not at all. */

import { spawnSync } from "node:child_process"
import { readFileSync } from "node:fs"
import { mkdir, readFile, stat } from "node:fs/promises"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { bitsOf, byteLengthOf, DType, isSubByte } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { cpu } from "@tensorferry/core/tensor/Device"
import { makeStorage } from "@tensorferry/core/tensor/Storage"
import { type Tensor, tensorView, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import { bytePattern as pattern } from "@tensorferry/testing/bytePattern"
import * as Arbitrary from "effect/Arbitrary"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { openSafetensors, readTensor } from "../../src/checkpoint/Safetensors.ts"
import {
  stageSafetensors,
  type TensorSource,
  tensorSource,
  writeSafetensors
} from "../../src/checkpoint/SafetensorsWriter.ts"
import { expectReason, list, put, scratchFolder } from "./checkpointSupport.ts"

const bytesOf = (tensor: { readonly dtype: DType; readonly shape: Shape }) =>
  byteLengthOf(tensor.dtype, elementCount(tensor.shape))

/** The bytes in pieces of `size`. */
const pieces = (bytes: Uint8Array, size: number): Stream.Stream<Uint8Array> =>
  Stream.fromIterable(
    Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) => bytes.subarray(at * size, (at + 1) * size))
  )

describe("round trip", () => {
  const description = Schema.Struct({
    name: Schema.String.check(Schema.makeFilter((name) => name.isWellFormed() && name !== "__metadata__")),
    dtype: DType,
    dims: Schema.Array(Schema.Literals([0, 1, 2, 3, 5, 7])).check(Schema.isMaxLength(3)),
    piece: Schema.Literals([0, 1, 3, 1000])
  })

  it.effect.prop(
    "tensors of all types, empty ones included, at once or in parts",
    { items: Arbitrary.array(Arbitrary.schema(description), { maxLength: 6 }), text: Schema.String },
    ({ items, text }) =>
      Effect.gen(function* () {
        const unique = new Map(items.map((item) => [item.name, item]))
        const tensors = [...unique.values()].map(
          ({ name, dtype, dims, piece }, at): TensorSource & { bytes: Uint8Array } => {
            // Eight elements of any type fill whole bytes.
            const shape = isSubByte(dtype) ? [...dims, 8] : dims
            const bytes = pattern(bytesOf({ dtype, shape }), at)
            return { name, dtype, shape, bytes, data: piece === 0 ? bytes : pieces(bytes, piece) }
          }
        )
        const folder = yield* scratchFolder
        const path = join(folder, "t.safetensors")
        const metadata = new Map(
          text.isWellFormed()
            ? [
                [text, text],
                ["format", "pt"]
              ]
            : []
        )
        yield* writeSafetensors(path, tensors, metadata)
        assert.deepStrictEqual(yield* list(folder), ["t.safetensors"])
        const file = yield* openSafetensors(path)
        assert.isTrue(file.isAligned)
        assert.deepStrictEqual(file.metadata, metadata)
        assert.strictEqual(file.tensors.size, tensors.length)
        for (const { name, dtype, shape, bytes } of tensors) {
          const info = file.tensors.get(name)!
          assert.deepStrictEqual([info.dtype, info.shape], [dtype, shape])
          assert.strictEqual(info.byteOffset % Math.max(1, Math.floor(bitsOf(dtype) / 8)), 0)
          assert.deepStrictEqual(yield* readTensor(file, info), bytes)
        }
      }).pipe(Effect.scoped),
    { arbitrary: { runs: 150, seed: "round trip" } }
  )

  it.live("the weights of a model, written again, have the same bytes", () =>
    Effect.gen(function* () {
      const source = fileURLToPath(new URL("../../../../examples/mnist/mnist-tinygrad.safetensors", import.meta.url))
      const original = yield* openSafetensors(source)
      const tensors: Array<TensorSource> = []
      for (const info of original.tensors.values()) tensors.push({ ...info, data: yield* readTensor(original, info) })
      const path = join(yield* scratchFolder, "t.safetensors")
      yield* writeSafetensors(path, tensors)
      assert.isTrue(readFileSync(path).equals(readFileSync(source)))
    })
  )

  it.live("tensors of 0, 1, a prime number of elements, and more than one system call", () =>
    Effect.gen(function* () {
      const path = join(yield* scratchFolder, "t.safetensors")
      const sizes = [0, 1, 65_537, 16 * 1024 * 1024 + 1]
      const tensors = sizes.map(
        (size) => ({ name: `t${size}`, dtype: "int8", shape: [size], data: pattern(size, size) }) as const
      )
      yield* writeSafetensors(path, tensors)
      const file = yield* openSafetensors(path)
      for (const { name, data } of tensors) {
        assert.isTrue(Buffer.from(data).equals(yield* readTensor(file, file.tensors.get(name)!)), name)
      }
    })
  )
})

describe("all or nothing", () => {
  const old = new TextEncoder().encode("the file that was there")
  const tensor = (data: TensorSource["data"]): TensorSource => ({ name: "t", dtype: "uint8", shape: [4], data })

  /** A folder with a file of the final name, which `body` must leave as it was, with nothing beside it. */
  const untouched = <A, E>(body: (path: string) => Effect.Effect<A, E>) =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const path = join(folder, "t.safetensors")
      yield* put(path, old)
      const result = yield* body(path)
      assert.deepStrictEqual(yield* list(folder), ["t.safetensors"])
      assert.deepStrictEqual(Uint8Array.from(yield* Effect.promise(() => readFile(path))), old)
      return result
    })

  it.live("data with too few or too many bytes", () =>
    untouched((path) =>
      Effect.gen(function* () {
        for (const size of [0, 1, 3, 5, 100]) {
          for (const data of [new Uint8Array(size), pieces(new Uint8Array(size), 2)]) {
            const error = yield* Effect.flip(writeSafetensors(path, [tensor(data)]))
            expectReason(error, "TensorInvalid", "t")
            assert.strictEqual(error.reason.file, path)
          }
        }
      })
    )
  )

  it.live("data that fails", () =>
    untouched((path) =>
      Effect.gen(function* () {
        const data = Stream.concat(Stream.make(new Uint8Array(2)), Stream.fail("the source is gone" as const))
        const error = yield* Effect.flip(writeSafetensors(path, [{ name: "t", dtype: "uint8", shape: [4], data }]))
        assert.strictEqual(error, "the source is gone")
      })
    )
  )

  it.live("interruption while data is written", () =>
    untouched((path) =>
      Effect.gen(function* () {
        const reached = yield* Deferred.make<void>()
        const stuck = Stream.fromEffect(Effect.andThen(Deferred.succeed(reached, undefined), Effect.never))
        const data = Stream.concat(Stream.make(new Uint8Array(2)), stuck)
        const fiber = yield* Effect.forkChild(writeSafetensors(path, [tensor(data)]))
        yield* Deferred.await(reached)
        assert.strictEqual((yield* list(join(path, ".."))).length, 2)
        yield* Fiber.interrupt(fiber)
      })
    )
  )

  it.live("a staged file that is never committed", () =>
    untouched((path) =>
      Effect.scoped(
        Effect.gen(function* () {
          const staged = yield* stageSafetensors(path, [tensor(pattern(4, 1))])
          const { size } = yield* Effect.promise(() => stat(staged.temporaryPath))
          assert.strictEqual(size, staged.byteLength)
        })
      )
    )
  )

  it.live("duplicate names", () =>
    untouched((path) =>
      Effect.gen(function* () {
        const data = tensor(new Uint8Array(4))
        expectReason(yield* Effect.flip(writeSafetensors(path, [data, data])), "TensorInvalid", "t")
      })
    )
  )

  it.live("commit replaces the old file, once", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const path = join(folder, "t.safetensors")
      yield* put(path, old)
      yield* Effect.scoped(
        Effect.gen(function* () {
          const staged = yield* stageSafetensors(path, [tensor(pattern(4, 1))])
          yield* staged.commit
          yield* staged.commit
        })
      )
      assert.deepStrictEqual(yield* list(folder), ["t.safetensors"])
      const file = yield* openSafetensors(path)
      assert.deepStrictEqual(yield* readTensor(file, file.tensors.get("t")!), pattern(4, 1))
    })
  )

  it.live("folders that are absent, and a folder under the final name", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const data = tensor(new Uint8Array(4))
      expectReason(yield* Effect.flip(writeSafetensors(join(folder, "absent", "t"), [data])), "WriteFailed")
      yield* Effect.promise(() => mkdir(join(folder, "taken", "inside"), { recursive: true }))
      expectReason(yield* Effect.flip(writeSafetensors(join(folder, "taken"), [data])), "WriteFailed")
      assert.deepStrictEqual(yield* list(folder), ["taken"])
    })
  )
})

describe("no room", () => {
  const script = fileURLToPath(new URL("../fixtures/writeTensor.ts", import.meta.url))
  const shell = (command: string, ...values: ReadonlyArray<string>) =>
    spawnSync("sh", ["-c", command, "sh", process.execPath, script, ...values], { encoding: "utf8" })

  it.live("a limit on the size of files", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const path = join(folder, "t.safetensors")
      const { stdout, stderr } = shell('ulimit -f 64 && exec "$@"', path, "1000000")
      assert.strictEqual(JSON.parse(stdout || "{}")._tag, "DiskFull", stderr)
      assert.strictEqual(JSON.parse(stdout).file, path)
      assert.deepStrictEqual(yield* list(folder), [])
    })
  )

  // A private mount needs user namespaces, which some hosts forbid.
  const canMount = spawnSync("unshare", ["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).status === 0
  it.live.skipIf(!canMount)("a full device", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const command = `unshare -rm sh -c 'folder=$1; shift; mount -t tmpfs -o size=128k none "$folder" && "$@"; ls "$folder"' sh ${folder} "$@"`
      const { stdout, stderr } = shell(command, join(folder, "t.safetensors"), "1000000")
      const [ending, ...left] = stdout.trim().split("\n")
      assert.strictEqual(JSON.parse(ending || "{}")._tag, "DiskFull", stderr)
      assert.deepStrictEqual(left, [])
    })
  )
})

describe("views", () => {
  const storageOf = (bytes: Uint8Array, address: bigint) =>
    makeStorage({ device: cpu, address, byteLength: bytes.length, bytes, release: () => {} })
  const bytes = pattern(24, 2)
  const whole = Result.getOrThrow(tensorView(storageOf(bytes, 4096n), "float32", [2, 3]))

  it.live("a dense view writes its own elements, not its storage", () =>
    Effect.gen(function* () {
      const first: Tensor = { ...whole, shape: [1, 3] }
      const second: Tensor = { ...first, byteOffset: 12 }
      const path = join(yield* scratchFolder, "t.safetensors")
      const sources = yield* Effect.fromResult(
        Result.all([tensorSource("a", whole), tensorSource("b", first), tensorSource("c", second)])
      )
      yield* writeSafetensors(path, sources)
      const file = yield* openSafetensors(path)
      assert.deepStrictEqual(yield* readTensor(file, file.tensors.get("a")!), bytes)
      assert.deepStrictEqual(yield* readTensor(file, file.tensors.get("b")!), bytes.slice(0, 12))
      assert.deepStrictEqual(yield* readTensor(file, file.tensors.get("c")!), bytes.slice(12))
    })
  )

  it("refuses views that are not dense, with the way out", () => {
    const channelsLast = Result.getOrThrow(
      tensorView(storageOf(pattern(32, 3), 8192n), "float32", [1, 2, 2, 2], { strides: [8, 1, 4, 2] })
    )
    for (const view of [transposeTensor(whole, 0, 1), channelsLast, { ...whole, shape: [2, 2] }]) {
      const source = tensorSource("v", view)
      if (Result.isSuccess(source)) return assert.fail("accepted")
      expectReason(source.failure, "TensorInvalid", "v")
      assert.include(source.failure.message, "TensorEngine.copy")
    }
  })

  it("refuses freed storage", () => {
    const storage = storageOf(pattern(4, 1), 12288n)
    const view = Result.getOrThrow(tensorView(storage, "uint8", [4]))
    storage.free()
    assert.isTrue(Result.isFailure(tensorSource("v", view)))
  })
})
