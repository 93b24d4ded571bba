// SPDX-License-Identifier: Apache-2.0
/** What packing refuses: addons that are missing, or older than what they are compiled from. */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  utimesSync,
  writeFileSync
} from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import { assert, describe, it } from "vitest"
import { staleBuilds } from "../../scripts/pack/staleBuilds.ts"

/** A folder that is gone when its block ends. */
const scratch = () => {
  const path = mkdtempSync(join(tmpdir(), "tensorferry-builds-"))
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true }) }
}

const names = ["native", "gpu", "wire", "plain"]

/** Packages whose sources were written at 1000 s and whose addons were built at 2000 s, but for what is stated. */
const packages = (
  folder: string,
  later: Readonly<Record<string, number>> = {},
  without: ReadonlyArray<string> = []
) => {
  const files: Readonly<Record<string, number>> = {
    "native/include/shared.h": 1000,
    "gpu/CMakeLists.txt": 1000,
    "gpu/native/addon.cc": 1000,
    "gpu/build/Release/gpu.node": 2000,
    "wire/CMakeLists.txt": 1000,
    "wire/native/deep/wire.cc": 1000,
    "wire/build/Release/wire.node": 2000,
    "plain/src/index.ts": 3000,
    ...later
  }
  for (const [file, seconds] of Object.entries(files)) {
    if (without.includes(file)) continue
    const at = join(folder, file)
    mkdirSync(dirname(at), { recursive: true })
    writeFileSync(at, "")
    utimesSync(at, seconds, seconds)
  }
  return staleBuilds(folder, names)
}

describe("builds that are packed", () => {
  it("are taken where every addon is newer than what it is compiled from", () => {
    using folder = scratch()
    assert.deepStrictEqual(packages(folder.path), [])
  })

  it("are refused where a source of the package is newer, by the name of the source", () => {
    using folder = scratch()
    assert.deepStrictEqual(packages(folder.path, { "wire/native/deep/wire.cc": 2001 }), [
      "the build of packages/wire is older than packages/wire/native/deep/wire.cc"
    ])
  })

  it("are refused all together where a shared header is newer", () => {
    using folder = scratch()
    assert.deepStrictEqual(packages(folder.path, { "native/include/shared.h": 2500 }), [
      "the build of packages/gpu is older than packages/native/include/shared.h",
      "the build of packages/wire is older than packages/native/include/shared.h"
    ])
  })

  it("are taken where a later build had nothing to do", () => {
    using folder = scratch()
    const later = { "native/include/shared.h": 2500, "gpu/build/built": 2600, "wire/build/built": 2400 }
    assert.deepStrictEqual(packages(folder.path, later), [
      "the build of packages/wire is older than packages/native/include/shared.h"
    ])
  })

  it("are refused where there is none", () => {
    using folder = scratch()
    assert.deepStrictEqual(packages(folder.path, {}, ["gpu/build/Release/gpu.node"]), ["packages/gpu is not built"])
  })
})

it("every addon is built by one command, which begins again where the clone was moved or copied, and marks its end", () => {
  const root = join(import.meta.dirname, "../..", "packages")
  const commands = readdirSync(root)
    .filter((name) => existsSync(join(root, name, "CMakeLists.txt")))
    .map((name) => JSON.parse(readFileSync(join(root, name, "package.json"), "utf8")).scripts["build:native"] as string)
  assert.isAbove(commands.length, 5)
  for (const command of commands) {
    assert.match(command, /\(cmake (.*) \|\| \(rm -rf build && cmake \1\)\) && cmake --build build /)
    assert.match(command, /&& cmake -E touch build\/built$/)
  }
})
