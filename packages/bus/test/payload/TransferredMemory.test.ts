// SPDX-License-Identifier: Apache-2.0
/** PyTorch's memory whose bytes a script has transferred to another buffer: its count goes back, the bytes stay. */
import { existsSync, rmSync, writeFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { loadAddon } from "../../src/Addon.ts"

describe("PyTorch's memory", () => {
  it.live("can be read from the buffer that a script transferred it to, after it was closed", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const name = `/torch_${process.pid}_41_1`
      const content = Buffer.alloc(64 + 9000, 0xa5)
      content.writeInt32LE(1, 0)
      writeFileSync(`/dev/shm${name}`, content, { mode: 0o600 })
      yield* Effect.addFinalizer(() => Effect.sync(() => rmSync(`/dev/shm${name}`, { force: true })))
      const opened = addon.openTorchMemory(name, 9000)
      if (opened.code !== "Ok") return assert.fail(opened.detail)
      const { memory, buffer } = opened.value
      const moved = new Uint8Array(buffer!.transfer())
      assert.strictEqual(addon.closeTorchMemory(memory, buffer!).code, "Ok")
      assert.isFalse(existsSync(`/dev/shm${name}`), "the last count removes the file")
      // Once more gives no count back, and unmaps nothing.
      assert.strictEqual(addon.closeTorchMemory(memory, buffer!).code, "Ok")
      assert.isTrue(moved.every((byte) => byte === 0xa5))
      moved.fill(1)
    }).pipe(Effect.scoped)
  )
})
