// SPDX-License-Identifier: Apache-2.0
/** What the package says about itself, and that its layer is what it says. */
import { assert, describe, it } from "@effect/vitest"
import { validateDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { layerSingle } from "@tensorferry/core/group/ProcessGroupInProcess"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { descriptor, descriptors } from "../src/index.ts"
import { hostEngine } from "./support.ts"

const around = Layer.mergeAll(layerSingle(), hostEngine)

describe("descriptor", () => {
  it.live("is valid and available", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(descriptors, [descriptor])
      assert.strictEqual(yield* validateDescriptor(descriptor), descriptor)
      assert.strictEqual((yield* descriptor.probe)._tag, "Available")
    })
  )

  it.live("builds a layer whose capabilities are the ones stated", () =>
    Effect.gen(function* () {
      const driver = yield* CopyDriver
      assert.deepStrictEqual(driver.capabilities, descriptor.capabilities.copyDriver)
      assert.strictEqual(driver.worldSize, 1)
    }).pipe(Effect.provide(Layer.provide(descriptor.copyDriver!({ lanes: 2 }), around)))
  )

  it.live("refuses options that it does not know, by their name", () =>
    Effect.gen(function* () {
      const decode = Schema.decodeUnknownResult(descriptor.options)
      const good = [
        {},
        { lanes: 64 },
        { interfaces: ["eth0"], port: 4000 },
        { addresses: ["::1"], threads: 2, token: "t" }
      ]
      for (const options of good) assert.deepStrictEqual(Result.getOrThrow(decode(options)), options)
      const bad = [
        { lane: 1 },
        { lanes: 0 },
        { lanes: 65 },
        { threads: 17 },
        { interfaces: [] },
        { port: 65_536 },
        { token: "" }
      ]
      for (const options of bad) assert.isTrue(Result.isFailure(decode(options)), JSON.stringify(options))
      const { reason } = yield* CopyDriver.pipe(
        Effect.provide(Layer.provide(descriptor.copyDriver!({ lane: 1 }), around)),
        Effect.flip
      )
      assert.strictEqual(reason._tag, "InvalidOptions")
      assert.include(reason.detail, "lane")
    })
  )
})
