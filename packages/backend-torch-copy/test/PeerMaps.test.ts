// SPDX-License-Identifier: Apache-2.0
/** Mappings of memory files that grow and become shorter, over real files. */
import { closeSync, fstatSync, ftruncateSync, mkdtempSync, openSync, readFileSync, rmSync, writeSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { processStart } from "@tensorferry/core/group/processStart"
import type { TensorError } from "@tensorferry/core/service/TensorEngine"
import { cpu } from "@tensorferry/core/tensor/Device"
import { makeStorage } from "@tensorferry/core/tensor/Storage"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import { encodeMoves } from "@tensorferry/native/MoveTable"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Scope } from "effect/Scope"
import { makePeerMaps, type PeerMap } from "../src/PeerMaps.ts"
import { bytesOf, makeEngine } from "./support.ts"

const self = { pid: process.pid, processStart: processStart("self")! }
const mebibyte = 2 ** 20

/** A file of this process that others could map; its name is removed at once, as PyTorch does. */
const sharedFile = Effect.acquireRelease(
  Effect.sync(() => {
    const folder = mkdtempSync("/dev/shm/tensorferry-maps-")
    const descriptor = openSync(join(folder, "memory"), "w+")
    rmSync(folder, { recursive: true })
    return descriptor
  }),
  (descriptor) => Effect.sync(() => closeSync(descriptor))
)

const setUp = Effect.gen(function* () {
  const { addon, engine } = yield* makeEngine({ threads: 1 })
  const descriptor = yield* sharedFile
  const maps = makePeerMaps(addon)
  const published = { descriptor, inode: fstatSync(descriptor).ino, byteOffset: 0 }
  const acquire = (bytes: number) => Result.getOrThrow(maps.acquire(self, published, bytes))
  const fill = (byte: number, bytes: number) => {
    ftruncateSync(descriptor, bytes)
    writeSync(descriptor, Buffer.alloc(bytes, byte), 0, bytes, 0)
  }
  const read = Effect.fnUntraced(function* (map: PeerMap, bytes: number) {
    const { address } = map.memory
    const storage = makeStorage({ device: cpu, address, byteLength: bytes, release: () => {} })
    const into = yield* engine.allocate("uint8", [bytes])
    const src = Result.getOrThrow(tensorView(storage, "uint8", [bytes]))
    assert.strictEqual(addon.runMoves(encodeMoves([{ src, dst: into }])).code, "Ok")
    return bytesOf(into)
  })
  const { inode } = published
  const mapped = () =>
    readFileSync("/proc/self/maps", "utf8")
      .split("\n")
      .filter((line) => line.split(/ +/)[4] === `${inode}`).length
  yield* Effect.addFinalizer(() => Effect.sync(maps.closeAll))
  return { maps, acquire, fill, read, mapped }
})

type Given = Effect.Success<typeof setUp>

const live = (title: string, body: (given: Given) => Effect.Effect<void, TensorError, Scope>) =>
  it.live(title, () => Effect.scoped(Effect.flatMap(setUp, body)))

describe("mappings of peers' files", () => {
  live(
    "a mapping that became too short stays for its users and goes with the last",
    ({ acquire, fill, mapped, maps, read }) =>
      Effect.gen(function* () {
        fill(1, mebibyte)
        const first = acquire(mebibyte)
        fill(2, 2 * mebibyte)
        const second = acquire(2 * mebibyte)
        assert.notStrictEqual(second, first)
        assert.strictEqual(acquire(mebibyte), second)
        maps.release(second)
        for (let preparation = 0; preparation < 3; preparation++) maps.retire()
        assert.strictEqual(mapped(), 2)
        assert.isTrue((yield* read(first, mebibyte)).every((byte) => byte === 2))
        maps.release(first)
        for (let preparation = 0; preparation < 2; preparation++) maps.retire()
        assert.strictEqual(mapped(), 1)
        maps.release(second)
        for (let preparation = 0; preparation < 2; preparation++) maps.retire()
        assert.strictEqual(mapped(), 0)
      })
  )

  live(
    "a mapping whose file became shorter is not given to the next program",
    ({ acquire, fill, mapped, maps, read }) =>
      Effect.gen(function* () {
        fill(1, mebibyte)
        const first = acquire(mebibyte)
        fill(1, 4096)
        assert.strictEqual((yield* read(first, mebibyte))[mebibyte - 1], 0)
        assert.isTrue(Result.isFailure(Result.try(() => acquire(mebibyte))), "the file is too short")
        fill(3, mebibyte)
        const second = acquire(mebibyte)
        assert.isTrue((yield* read(second, mebibyte)).every((byte) => byte === 3))
        maps.release(first)
        maps.release(second)
        for (let preparation = 0; preparation < 2; preparation++) maps.retire()
        assert.strictEqual(mapped(), 0)
      })
  )

  live("all go with the driver", ({ acquire, fill, mapped, maps }) =>
    Effect.sync(() => {
      fill(1, mebibyte)
      acquire(mebibyte)
      fill(1, 2 * mebibyte)
      acquire(2 * mebibyte)
      assert.strictEqual(mapped(), 2)
      maps.closeAll()
      assert.strictEqual(mapped(), 0)
    })
  )
})
