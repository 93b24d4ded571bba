// SPDX-License-Identifier: Apache-2.0
/**
 * What the package says about itself, and that its layers are what it says.
 */
import { assert, describe, it } from "@effect/vitest"
import { validateDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { layerSingle } from "@tensorferry/core/group/ProcessGroupInProcess"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { descriptor, descriptors } from "../src/index.ts"

describe("descriptor", () => {
  it.live("is valid and available", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(descriptors, [descriptor])
      assert.strictEqual(yield* validateDescriptor(descriptor), descriptor)
      assert.strictEqual((yield* descriptor.probe)._tag, "Available")
    })
  )

  it.live("builds layers whose capabilities are the ones stated", () =>
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      assert.deepStrictEqual(engine.capabilities, descriptor.capabilities.tensorEngine)
      const driver = yield* CopyDriver
      assert.deepStrictEqual(driver.capabilities, descriptor.capabilities.copyDriver)
      assert.strictEqual(driver.worldSize, 1)
      const memory = yield* HostMemory
      yield* memory.share((yield* engine.allocate("int8", [3])).storage)
    }).pipe(
      Effect.scoped,
      Effect.provide(
        Layer.mergeAll(descriptor.copyDriver!({ forbid: ["shared-map"] }), descriptor.hostMemory!({})).pipe(
          Layer.provideMerge(descriptor.tensorEngine!({ threads: 1 })),
          Layer.provide(layerSingle())
        )
      )
    )
  )

  it.live("refuses options that it does not know, by their name", () =>
    Effect.gen(function* () {
      const decode = Schema.decodeUnknownResult(descriptor.options)
      for (const good of [{}, { threads: 64 }, { forbid: [] }, { threads: 1, forbid: ["process-vm-readv", "tcp"] }]) {
        assert.deepStrictEqual(Result.getOrThrow(decode(good)), good)
      }
      for (const bad of [
        { thread: 1 },
        { threads: 0 },
        { threads: 65 },
        { threads: "2" },
        { forbid: ["carrier-pigeon"] },
        1,
        null
      ]) {
        assert.isTrue(Result.isFailure(decode(bad)), JSON.stringify(bad))
      }
      const { reason } = yield* TensorEngine.pipe(Effect.provide(descriptor.tensorEngine!({ thread: 1 })), Effect.flip)
      assert.strictEqual(reason._tag, "InvalidOptions")
      assert.include(reason.detail, "thread")
    })
  )
})
