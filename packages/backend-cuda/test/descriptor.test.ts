// SPDX-License-Identifier: Apache-2.0
/**
 * What the package says about itself, with and without devices, and that its layers are what it says.
 */

import { assert, describe, it } from "@effect/vitest"
import { validateDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { layerSingle } from "@tensorferry/core/group/ProcessGroupInProcess"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { gpuSimulator } from "@tensorferry/simulators/libraries"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { descriptors } from "../src/index.ts"
import { testOptions } from "./cluster.ts"

const variables = ["TENSORFERRY_CUDA_RUNTIME", "TENSORFERRY_CUDA_DRIVER", "TENSORFERRY_CUDA_NVRTC", "TENSORFERRY_NCCL"]

/** The probe as a user has it who names libraries by the environment. */
const probed = (name: string, libraries: Record<string, string>) =>
  Effect.acquireUseRelease(
    Effect.sync(() => {
      const before = variables.map((variable) => [variable, process.env[variable]] as const)
      Object.assign(process.env, libraries)
      return before
    }),
    () => descriptors.find((descriptor) => descriptor.name === name)!.probe,
    (before) =>
      Effect.sync(() => {
        for (const [variable, value] of before) {
          if (value === undefined) delete process.env[variable]
          else process.env[variable] = value
        }
      })
  )

const simulated = Object.fromEntries(variables.map((variable) => [variable, gpuSimulator]))

describe("descriptors", () => {
  it.live("are valid", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(
        descriptors.map(({ name }) => name),
        ["cuda", "cuda-ipc", "nccl"]
      )
      for (const descriptor of descriptors) assert.strictEqual(yield* validateDescriptor(descriptor), descriptor)
    })
  )

  it.live("probe by opening libraries and counting devices", () =>
    Effect.gen(function* () {
      resetSimulator("devices=3 name=Tester")
      for (const { name } of descriptors) {
        const found = yield* probed(name, simulated)
        if (found._tag === "Unavailable") return assert.fail(found.cause)
        assert.include(found.detail, "cuda:2 Tester")
        assert.containsAllKeys(found.versions, ["runtime", "driver", "compiler", "collectives", "addon"])
      }
      assertClean()
    })
  )

  it.live("say what is missing, what was tried and what helps", () =>
    Effect.gen(function* () {
      resetSimulator("")
      const nothing = Object.fromEntries(variables.map((variable) => [variable, `/none/${variable}.so`]))
      const missing = yield* probed("cuda", nothing)
      if (missing._tag === "Available") return assert.fail("there is nothing")
      assert.include(missing.tried, "/none/TENSORFERRY_CUDA_RUNTIME.so")
      assert.include(missing.remedy, "TENSORFERRY_CUDA_RUNTIME")
      const without = { ...simulated, TENSORFERRY_NCCL: "/none/libnccl.so.2" }
      const collectives = yield* probed("nccl", without)
      if (collectives._tag === "Available") return assert.fail("there is no library for collectives")
      assert.deepStrictEqual(collectives.tried, ["/none/libnccl.so.2"])
      assert.include(collectives.remedy, "TENSORFERRY_NCCL")
      const others = yield* probed("cuda-ipc", without)
      assert.strictEqual(others._tag, "Available")
      resetSimulator("devices=0")
      const empty = yield* probed("cuda", simulated)
      if (empty._tag === "Available") return assert.fail("there is no device")
      assert.include(empty.cause, "no device")
    })
  )

  for (const descriptor of descriptors) {
    it.live(`${descriptor.name} builds layers whose capabilities are the ones stated`, () =>
      Effect.gen(function* () {
        resetSimulator("")
        yield* Effect.gen(function* () {
          const engine = yield* TensorEngine
          assert.deepStrictEqual(engine.capabilities, descriptor.capabilities.tensorEngine)
          const driver = yield* CopyDriver
          assert.deepStrictEqual(driver.capabilities, descriptor.capabilities.copyDriver)
          assert.strictEqual(driver.name, descriptor.name)
          assert.strictEqual(driver.worldSize, 1)
        }).pipe(
          Effect.scoped,
          Effect.provide(
            descriptor.copyDriver!(testOptions).pipe(
              Layer.provideMerge(descriptor.tensorEngine!(testOptions)),
              Layer.provide(layerSingle())
            )
          )
        )
        assertClean()
      })
    )
  }

  it.live("refuse options that they do not know, by their name", () =>
    Effect.gen(function* () {
      const { reason } = yield* TensorEngine.pipe(
        Effect.provide(descriptors[0]!.tensorEngine!({ devices: 1 })),
        Effect.flip
      )
      assert.strictEqual(reason._tag, "InvalidOptions")
      assert.include(reason.detail, "devices")
    })
  )
})
