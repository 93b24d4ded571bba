// SPDX-License-Identifier: Apache-2.0
/** Where libraries are looked for, in order, without opening one. */
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { afterAll } from "vitest"
import { libraryNames, searchedPaths } from "../src/libraries.ts"

const root = mkdtempSync(path.join(tmpdir(), "libraries-"))
afterAll(() => rmSync(root, { recursive: true }))

const touch = (...parts: ReadonlyArray<string>): string => {
  const file = path.join(root, ...parts)
  mkdirSync(path.dirname(file), { recursive: true })
  writeFileSync(file, "")
  return file
}

const wheel = touch("env/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13")
const nccl = touch("env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2")
const older = touch("env/lib/python3.9/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12")
const system = touch("system/lib/python3/dist-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
const torch = touch("env/lib/python3.12/site-packages/torch/lib/libamdhip64.so")
touch("env/bin/python3")
mkdirSync(path.join(root, "shims"))
symlinkSync(path.join(root, "env/bin/python3"), path.join(root, "shims/python3"))

const withPython = { PATH: `${path.join(root, "none")}:${path.join(root, "env/bin")}` }
const systems = [path.join(root, "system")]

describe("libraryNames", () => {
  it("takes the loader's names first, then the wheels of the Pythons found, newest first", () => {
    const names = libraryNames("cuda", {}, withPython, systems)
    // This machine may have the vendor's own folder, which comes last.
    const known = names.runtime.filter((name) => !name.startsWith("/usr/local/"))
    assert.deepStrictEqual(known, [
      "libcudart.so.13",
      "libcudart.so.12",
      "libcudart.so.11.0",
      "libcudart.so",
      wheel,
      older
    ])
    assert.deepStrictEqual(names.collectives.slice(0, 3), ["libnccl.so.2", "libnccl.so", nccl])
    assert.include(names.compiler, system)
  })

  it("follows links of virtual environments, and VIRTUAL_ENV itself", () => {
    for (const environment of [{ PATH: path.join(root, "shims") }, { VIRTUAL_ENV: path.join(root, "env") }]) {
      assert.include(libraryNames("cuda", {}, environment, []).runtime, wheel)
    }
  })

  it("tries nothing but an explicit choice, the option before the variable", () => {
    const environment = { ...withPython, TENSORFERRY_NCCL: "/opt/own/libnccl.so", TENSORFERRY_CUDA_RUNTIME: "" }
    assert.deepStrictEqual(libraryNames("cuda", {}, environment, []).collectives, ["/opt/own/libnccl.so"])
    assert.deepStrictEqual(libraryNames("cuda", { collectives: "a" }, environment, []).collectives, ["a"])
    assert.deepStrictEqual(libraryNames("cuda", { collectives: ["a", "b"] }, environment, []).collectives, ["a", "b"])
    assert.include(libraryNames("cuda", {}, environment, []).runtime, wheel)
  })

  it("knows the other vendor's names", () => {
    const names = libraryNames("rocm", {}, withPython, [])
    assert.include(names.runtime, "libamdhip64.so.6")
    assert.include(names.driver, torch)
    assert.include(names.collectives, "librccl.so.1")
  })

  it("names every path that the loader would look at", () => {
    const tried = searchedPaths("cuda", ["libnccl.so.2", "/a/libnccl.so.2"])
    assert.strictEqual(tried[0], "/a/libnccl.so.2")
    assert.isTrue(tried.every((file) => path.isAbsolute(file)))
    assert.include(tried, "/usr/local/cuda/lib64/libnccl.so.2")
  })
})
