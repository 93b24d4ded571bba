// SPDX-License-Identifier: Apache-2.0
/** Interfaces as devices of UCX, in a tree as the kernel lays it out. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll, assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import { devicesOf } from "../src/devices.ts"

const root = mkdtempSync(join(tmpdir(), "tensorferry-net-"))
afterAll(() => rmSync(root, { recursive: true, force: true }))
mkdirSync(join(root, "eth0"))
for (const [name, port] of [
  ["ib0", 0],
  ["ib1", 1]
] as const) {
  mkdirSync(join(root, name, "device", "infiniband", "mlx5_2"), { recursive: true })
  writeFileSync(join(root, name, "dev_port"), `${port}\n`)
}

describe("devicesOf", () => {
  it("is the interface, and the adapter behind it with its port", () => {
    assert.strictEqual(Result.getOrThrow(devicesOf(["eth0"], root)), "eth0")
    assert.strictEqual(Result.getOrThrow(devicesOf(["ib0", "ib1"], root)), "ib0,mlx5_2:1,ib1,mlx5_2:2")
  })

  it("refuses an interface that is not there, and says which are", () => {
    assert.strictEqual(
      Result.getOrThrow(Result.flip(devicesOf(["eth0", "eth9"], root))),
      "There is no interface eth9; this host has eth0, ib0, ib1"
    )
    assert.include(Result.getOrThrow(Result.flip(devicesOf(["eth9"], join(root, "nowhere")))), "this host has none")
  })
})
