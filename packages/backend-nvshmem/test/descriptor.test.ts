// SPDX-License-Identifier: Apache-2.0
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { validateDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import { descriptors } from "../src/descriptor.ts"
import { libraryNames, libraryVariable } from "../src/libraries.ts"
import { deviceOptions, NvshmemOptions } from "../src/options.ts"

describe("the descriptor", () => {
  it.effect("is right, and needs task ids", () =>
    Effect.gen(function* () {
      for (const descriptor of descriptors) yield* validateDescriptor(descriptor)
      assert.isTrue(descriptors[0]!.capabilities.copyDriver?.requiresTaskId)
    })
  )

  it.effect("says where it looked and what helps where there is no device", () =>
    Effect.gen(function* () {
      const probe = yield* descriptors[0]!.probe
      if (probe._tag === "Available") return
      assert.isNotEmpty(probe.tried)
      assert.isNotEmpty(probe.cause)
      assert.match(probe.remedy, /TENSORFERRY_/)
    })
  )
})

describe("options", () => {
  const decode = (input: unknown) => Effect.runSyncExit(Schema.decodeUnknownEffect(NvshmemOptions)(input))

  it("that do nothing are refused, as values that make no sense", () => {
    for (const wrong of [{ stagingBytes: 1e6 }, { vendor: "rocm" }, { path: "pull" }, { slots: 0 }, { slotBytes: 1 }]) {
      assert.isTrue(Exit.isFailure(decode(wrong)), JSON.stringify(wrong))
    }
    assert.isTrue(Exit.isSuccess(decode({ path: "put", slotBytes: 4096, slots: 1, libraries: { nvshmem: ["a"] } })))
  })

  it("of the device go to it, without a library for collectives", () => {
    const files = { runtime: "r", nvshmem: "n" }
    assert.deepStrictEqual(deviceOptions({ device: 3, slots: 2, path: "put", libraries: files }), {
      device: 3,
      vendor: "cuda",
      libraries: { runtime: "r", collectives: [] }
    })
  })
})

describe("the library", () => {
  it("is looked for by option, variable, loader and wheels, in this order", () => {
    const prefix = mkdtempSync(join(tmpdir(), "tensorferry-python-"))
    const folder = join(prefix, "lib/python3.12/site-packages/nvidia/nvshmem/lib")
    mkdirSync(folder, { recursive: true })
    writeFileSync(join(folder, "libnvshmem_host.so.3"), "")
    const environment = { VIRTUAL_ENV: prefix, PATH: "" }
    const names = libraryNames(undefined, environment, [])
    assert.deepStrictEqual(names.slice(0, 3), [
      "libnvshmem_host.so.3",
      "libnvshmem_host.so",
      join(folder, "libnvshmem_host.so.3")
    ])
    const named = { ...environment, [libraryVariable]: "/x/libnvshmem_host.so" }
    assert.deepStrictEqual(libraryNames(undefined, named, []), ["/x/libnvshmem_host.so"])
    assert.deepStrictEqual(libraryNames("/y", named, []), ["/y"])
  })
})
