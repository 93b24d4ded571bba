// SPDX-License-Identifier: Apache-2.0
/** How UCX is found, what is refused, and what it does to the process that opens it. */
import { spawnSync } from "node:child_process"
import { copyFileSync, existsSync, mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { afterAll, assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { loadAddon } from "../src/Addon.ts"
import { libraryNames, openLibrary } from "../src/library.ts"
import { noUcx } from "./support.ts"

const folder = mkdtempSync(join(tmpdir(), "tensorferry-ucx-"))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const programs = fileURLToPath(new URL("programs", import.meta.url))
const compiled = (values: ReadonlyArray<string>) => spawnSync("c++", values, { cwd: programs, encoding: "utf8" })

const opening = Effect.fnUntraced(function* (library: string) {
  const addon = yield* loadAddon
  const { reason } = yield* Effect.flip(openLibrary(addon, { library }))
  return reason
})

describe("UCX", () => {
  it.effect("that is not there is unavailable, with what was tried and what to install", () =>
    Effect.gen(function* () {
      const reason = yield* opening(join(folder, "libucp.so.0"))
      assert.strictEqual(reason._tag, "Unavailable")
      assert.include(reason.detail, join(folder, "libucp.so.0"))
      assert.include(reason.remedy, "libucx0")
    })
  )

  it.effect("of an older version is refused with both versions", () =>
    Effect.gen(function* () {
      const old = join(folder, "libold-ucp.so")
      const built = compiled(["-x", "c", "-shared", "-fPIC", "-o", old, "old_ucp.c"])
      assert.strictEqual(built.status, 0, built.stderr)
      const { detail } = yield* opening(old)
      assert.include(detail, "has version 1.12.1, and 1.13 or later of major version 1 is needed")
    })
  )

  it.effect("is not taken for another library", () =>
    Effect.gen(function* () {
      assert.include((yield* opening("libm.so.6")).detail, "has no function ucp_get_version")
    })
  )

  it("is named by the option, else by the environment", () => {
    assert.deepStrictEqual(libraryNames({ library: "/opt/libucp.so" }), ["/opt/libucp.so"])
    process.env.TENSORFERRY_UCX_LIBRARY = "/there/libucp.so"
    assert.deepStrictEqual(libraryNames({}), ["/there/libucp.so"])
    delete process.env.TENSORFERRY_UCX_LIBRARY
    assert.deepStrictEqual(libraryNames({}), ["libucp.so.0"])
  })

  describe.skipIf(noUcx !== undefined)(noUcx ?? "where it is there", () => {
    it("leaves signals, the environment and the standard output of the process alone", () => {
      const script = fileURLToPath(new URL("fixtures/open-ucx.ts", import.meta.url))
      const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("UCX_")))
      const ended = spawnSync(process.execPath, [script], { encoding: "utf8", env })
      assert.strictEqual(ended.status, 0, ended.stderr)
      const { before, after, code } = JSON.parse(ended.stdout)
      assert.strictEqual(code, "Ok")
      assert.deepStrictEqual(after, before)
    })

    it.effect("is opened once: a second one is refused, which names the first", () =>
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const { path } = yield* openLibrary(addon, {})
        const copy = join(folder, "libucp-copy.so.0")
        copyFileSync(path, copy)
        const { detail } = yield* opening(copy)
        assert.include(detail, `would be a second UCX in this process, which has ${path}`)
      })
    )

    it("has the structures that this backend declares", (context) => {
      if (!existsSync("/usr/include/ucp/api/ucp.h")) context.skip("no headers of UCX (Debian package libucx-dev)")
      const built = compiled(["-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", "abi.cc"])
      assert.strictEqual(built.status, 0, built.stderr)
    })
  })
})
