// SPDX-License-Identifier: Apache-2.0
/**
 * Host memory in one process and between real ones: contents, bookkeeping, and handles that lie.
 */
import { closeSync, fstatSync, ftruncateSync, openSync, readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import type { HostMemoryHandle } from "@tensorferry/core/service/HostMemory"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { makeEngine, makeRandom, openMemoryFiles, startPeer } from "./support.ts"

const mebibyte = 2 ** 20
const sizes = [0, 1, 63, 64, 65, 4095, 4096, 4097, 4 * mebibyte - 1, 4 * mebibyte, 4 * mebibyte + 1]

const reasonOf = <A, E extends { readonly reason: { readonly _tag: string } }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(effect), (error) => error.reason._tag)

const handleFrom = (answer: unknown): HostMemoryHandle => (answer as { handle: HostMemoryHandle }).handle

describe("allocation", () => {
  it.live("gives zeroed, aligned, separate memory, again after it was used", () =>
    Effect.gen(function* () {
      const { memory } = yield* makeEngine()
      for (let round = 0; round < 3; round++) {
        yield* Effect.scoped(
          Effect.gen(function* () {
            const storages = yield* Effect.forEach(sizes, (size) => memory.allocate(size))
            for (const [i, storage] of storages.entries()) {
              assert.strictEqual(storage.byteLength, sizes[i])
              assert.strictEqual(storage.bytes!.byteLength, sizes[i])
              assert.strictEqual(storage.address % 64n, 0n)
              assert.isTrue(Buffer.from(storage.bytes!).equals(Buffer.alloc(sizes[i]!)))
              storage.bytes!.fill(i + 1)
            }
            for (const [i, storage] of storages.entries()) {
              assert.isTrue(Buffer.from(storage.bytes!).equals(Buffer.alloc(sizes[i]!, i + 1)))
            }
          })
        )
      }
    })
  )

  it.live("needs few files for thousands of storages and leaves none behind", () =>
    Effect.gen(function* () {
      const before = openMemoryFiles()
      yield* Effect.scoped(
        Effect.gen(function* () {
          const { memory } = yield* makeEngine()
          yield* Effect.scoped(
            Effect.gen(function* () {
              yield* Effect.forEach(new Array(5000).fill(4096), (size: number) => memory.allocate(size))
              assert.strictEqual(openMemoryFiles().descriptors - before.descriptors, 2)
            })
          )
          assert.strictEqual(openMemoryFiles().descriptors - before.descriptors, 1, "one spare file")
          yield* Effect.scoped(memory.allocate(64 * mebibyte))
          assert.strictEqual(openMemoryFiles().descriptors - before.descriptors, 1, "large files go at once")
        })
      )
      assert.deepStrictEqual(openMemoryFiles(), before)
    })
  )

  it.live("makes one file for many requests at once", () =>
    Effect.gen(function* () {
      const before = openMemoryFiles()
      const { memory } = yield* makeEngine()
      yield* Effect.forEach(new Array(50).fill(100), (size: number) => memory.allocate(size), {
        concurrency: "unbounded"
      })
      assert.strictEqual(openMemoryFiles().descriptors - before.descriptors, 1)
    })
  )

  it.live("closes its files to other users, to programs it starts and to shrinking", () =>
    Effect.gen(function* () {
      const { memory } = yield* makeEngine()
      const { descriptor } = yield* memory.share(yield* memory.allocate(10))
      assert.strictEqual(fstatSync(descriptor).mode & 0o777, 0o600)
      const flags = /flags:\s+(\d+)/.exec(readFileSync(`/proc/self/fdinfo/${descriptor}`, "utf8"))
      assert.notStrictEqual(Number.parseInt(flags![1]!, 8) & 0o2000000, 0, "close on exec")
      for (const size of [0, 1, 32 * mebibyte]) assert.throws(() => ftruncateSync(descriptor, size), "EPERM")
    })
  )

  it.live("answers OutOfMemory instead of letting the machine run out", () =>
    Effect.gen(function* () {
      const { memory } = yield* makeEngine()
      for (const size of [2 ** 45, Number.MAX_SAFE_INTEGER, -1, 0.5]) {
        assert.strictEqual(yield* reasonOf(memory.allocate(size)), "OutOfMemory")
      }
    })
  )

  it.live("empties the views of memory whose file is closed", () =>
    Effect.gen(function* () {
      const { memory } = yield* makeEngine()
      const bytes = yield* Effect.scoped(Effect.map(memory.allocate(8 * mebibyte), (storage) => storage.bytes!))
      assert.strictEqual(bytes.byteLength, 0)
    })
  )
})

describe("sharing", () => {
  it.live("shows the owner's bytes; writes here do not reach it", () =>
    Effect.gen(function* () {
      const { memory, engine } = yield* makeEngine()
      for (const size of sizes) {
        const storage = yield* memory.allocate(size)
        storage.bytes!.set(makeRandom(size).bytes(size))
        const opened = yield* memory.open(yield* memory.share(storage))
        assert.isTrue(Buffer.from(opened.bytes!).equals(storage.bytes!))
        if (size === 0) continue
        storage.bytes![0] = 77
        assert.strictEqual(opened.bytes![0], 77)
        opened.bytes![0] = 78
        assert.strictEqual(storage.bytes![0], 77)
        const [from, to] = [opened, storage].map((side): Tensor => Result.getOrThrow(tensorView(side, "uint8", [size])))
        assert.strictEqual(yield* reasonOf(engine.copy([{ dst: from!, src: to! }])), "InvalidRequest")
        yield* engine.copy([{ dst: to!, src: from! }])
        assert.strictEqual(storage.bytes![0], 78)
      }
    })
  )

  it.live("shares only what is its own and alive", () =>
    Effect.gen(function* () {
      const { memory, engine } = yield* makeEngine()
      const gone = yield* Effect.scoped(memory.allocate(1))
      const opened = yield* memory.open(yield* memory.share(yield* memory.allocate(1)))
      for (const storage of [gone, opened, yield* engine.wrapHost(new Uint8Array(1))]) {
        assert.strictEqual(yield* reasonOf(memory.share(storage)), "NotShareable")
      }
      yield* memory.share((yield* engine.allocate("float32", [3])).storage)
    })
  )

  it.live("calls revocations before the memory goes", () =>
    Effect.gen(function* () {
      const { memory } = yield* makeEngine()
      const seen: Array<number> = []
      const scope = yield* Scope.make()
      const storage = yield* memory.allocate(8 * mebibyte).pipe(Scope.provide(scope))
      storage.onRevoke(() => seen.push(storage.bytes!.byteLength))
      yield* Scope.close(scope, Exit.void)
      assert.deepStrictEqual([seen, storage.bytes!.byteLength], [[8 * mebibyte], 0])
    })
  )

  it.live("refuses every lie", () =>
    Effect.gen(function* () {
      const { memory } = yield* makeEngine()
      const storage = yield* memory.allocate(100)
      const truth = yield* memory.share(storage)
      const other = yield* memory.share(yield* memory.allocate(8 * mebibyte))
      const file = openSync("/proc/self/exe", "r")
      yield* Effect.addFinalizer(() => Effect.sync(() => closeSync(file)))
      const lies: ReadonlyArray<readonly [string, Partial<Record<keyof HostMemoryHandle, unknown>>, string]> = [
        ["start", { processStart: "1" }, "OwnerGone"],
        ["pid", { pid: 2 ** 31 - 1 }, "OwnerGone"],
        ["another pid", { pid: 1 }, "OwnerGone"],
        ["closed descriptor", { descriptor: 2 ** 31 - 1 }, "InvalidHandle"],
        ["plain file", { descriptor: file, inode: String(fstatSync(file).ino) }, "InvalidHandle"],
        ["terminal or pipe", { descriptor: 0 }, "InvalidHandle"],
        ["other memory", { descriptor: other.descriptor }, "InvalidHandle"],
        ["inode", { inode: "1" }, "InvalidHandle"],
        ["inode beyond 64 bits", { inode: "99999999999999999999" }, "InvalidHandle"],
        ["length", { byteLength: 17 * mebibyte }, "InvalidHandle"],
        ["offset", { byteOffset: 16 * mebibyte }, "InvalidHandle"],
        ["sum", { byteOffset: Number.MAX_SAFE_INTEGER }, "InvalidHandle"],
        ["negative", { byteOffset: -1 }, "InvalidHandle"],
        ["version", { version: 2 }, "InvalidHandle"],
        ["text", { inode: "1; rm" }, "InvalidHandle"]
      ]
      const before = openMemoryFiles()
      for (const [name, lie, tag] of lies) {
        assert.strictEqual(yield* reasonOf(memory.open({ ...truth, ...lie } as HostMemoryHandle)), tag, name)
      }
      assert.deepStrictEqual(openMemoryFiles(), before)
      yield* memory.open(truth)
    })
  )
})

describe("between processes", () => {
  it.live("maps what the other fills, also after it was freed or killed there", () =>
    Effect.gen(function* () {
      const { memory } = yield* makeEngine()
      const peer = yield* startPeer("memory-peer")
      const ask = (question: unknown) => Effect.promise(() => peer.ask(question))
      const small = handleFrom(yield* ask({ _tag: "allocate", byteLength: 1000, byte: 3 }))
      const large = handleFrom(yield* ask({ _tag: "allocate", byteLength: 5 * mebibyte, byte: 4 }))
      assert.strictEqual(small.pid, peer.pid)
      const [smallHere, largeHere] = [yield* memory.open(small), yield* memory.open(large)]
      assert.isTrue(Buffer.from(smallHere.bytes!).equals(Buffer.alloc(1000, 3)))
      assert.isTrue(Buffer.from(largeHere.bytes!).equals(Buffer.alloc(5 * mebibyte, 4)))
      yield* ask({ _tag: "write", index: 0, byte: 9 })
      assert.isTrue(Buffer.from(smallHere.bytes!).equals(Buffer.alloc(1000, 9)))
      yield* ask({ _tag: "free", index: 1 })
      assert.strictEqual(yield* reasonOf(memory.open(large)), "InvalidHandle")
      yield* Effect.promise(peer.kill)
      assert.strictEqual(yield* reasonOf(memory.open(small)), "OwnerGone")
      assert.isTrue(Buffer.from(smallHere.bytes!).equals(Buffer.alloc(1000, 9)))
      assert.isTrue(Buffer.from(largeHere.bytes!).equals(Buffer.alloc(5 * mebibyte, 4)))
    })
  )

  it.live("lets others read and keeps other users out", () =>
    Effect.gen(function* () {
      const { memory } = yield* makeEngine()
      const storage = yield* memory.allocate(1000)
      storage.bytes!.fill(2)
      const handle = yield* memory.share(storage)
      const friend = yield* startPeer("memory-peer")
      const answer = yield* Effect.promise(() => friend.ask({ _tag: "open", handle }))
      assert.deepStrictEqual(answer, { sum: 2000, length: 1000 })
      if (process.getuid!() !== 0) return
      const stranger = yield* startPeer("memory-peer", { uid: 65534 })
      const refused = yield* Effect.promise(() => stranger.ask({ _tag: "open", handle }))
      assert.deepStrictEqual(refused, { failed: "PermissionDenied" })
    })
  )
})
