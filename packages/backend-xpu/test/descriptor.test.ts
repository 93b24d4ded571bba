// SPDX-License-Identifier: Apache-2.0
/**
 * What the package says about itself, with and without drivers. Loaders read their environment once, so that what depends on
 * it is asked in a process of its own.
 */
import { execFile } from "node:child_process"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { type ProbeResult, validateDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { replayTransfer } from "@tensorferry/core/backend/BackendLayer"
import { registryLayer } from "@tensorferry/core/backend/BackendRegistry"
import { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { descriptor, descriptors } from "../src/index.ts"
import { chooseOrdinal } from "../src/options.ts"
import { assertClean, lackOf, optionsOf, resetSimulator, subjects, titleOf } from "./simulator.ts"

const script = fileURLToPath(new URL("fixtures/probe.ts", import.meta.url))

type Variables = { readonly [name: string]: string }

/** The probe in a process of its own. */
const probedApart = (environment: Variables): Effect.Effect<ProbeResult> =>
  Effect.promise(
    () =>
      new Promise((resolve, reject) => {
        const env = { PATH: process.env.PATH, HOME: process.env.HOME, ...environment }
        execFile(process.execPath, [script], { env, timeout: 60_000 }, (error, stdout) =>
          error === null ? resolve(JSON.parse(stdout)) : reject(error)
        )
      })
  )

/** The probe here, with variables that this package reads itself. */
const probed = (environment: Variables): Effect.Effect<ProbeResult> =>
  Effect.acquireUseRelease(
    Effect.sync(() => {
      const before = Object.keys(environment).map((name) => [name, process.env[name]] as const)
      Object.assign(process.env, environment)
      return before
    }),
    () => descriptor.probe,
    (before) =>
      Effect.sync(() => {
        for (const [name, text] of before) {
          if (text === undefined) delete process.env[name]
          else process.env[name] = text
        }
      })
  )

const noOpenCl = { OCL_ICD_VENDORS: "/nonexistent" }
const noLevelZero = { ZE_ENABLE_ALT_DRIVERS: "/nonexistent/driver.so" }

const available = (found: ProbeResult) => (found._tag === "Available" ? found : assert.fail(found.cause))
const unavailable = (found: ProbeResult) => (found._tag === "Unavailable" ? found : assert.fail(found.detail))

describe("descriptor", () => {
  it.live("is valid and refuses options that it does not know, by their name", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(descriptors, [descriptor])
      assert.strictEqual(yield* validateDescriptor(descriptor), descriptor)
      const { reason } = yield* TensorEngine.pipe(Effect.provide(descriptor.tensorEngine!({ devices: 1 })), Effect.flip)
      assert.strictEqual(reason._tag, "InvalidOptions")
      assert.include(reason.detail, "devices")
    })
  )

  it("chooses a device by option, else by the rank on the machine", () => {
    assert.strictEqual(chooseOrdinal({ device: 3 }, 2, { LOCAL_RANK: "1" }), 3)
    assert.strictEqual(chooseOrdinal({}, 2, { LOCAL_RANK: "3" }), 1)
    assert.strictEqual(chooseOrdinal({}, 2, { LOCAL_RANK: "x", RANK: "2" }), 0)
    assert.strictEqual(chooseOrdinal({}, 2, {}), 0)
  })

  it.live("says what it tried and what helps where no library is there", () =>
    Effect.gen(function* () {
      const missing = unavailable(
        yield* probed({ TENSORFERRY_LEVEL_ZERO: "/none/libze_loader.so.1", TENSORFERRY_OPENCL: "/none/libOpenCL.so.1" })
      )
      assert.deepStrictEqual(missing.tried, ["/none/libze_loader.so.1", "/none/libOpenCL.so.1"])
      assert.include(missing.cause, "Level Zero cannot be used: its loader was not found")
      assert.include(missing.cause, "OpenCL cannot be used: its loader was not found")
      for (const word of ["libze1", "TENSORFERRY_LEVEL_ZERO", "ocl-icd-libopencl1", "TENSORFERRY_OPENCL"]) {
        assert.include(missing.remedy, word)
      }
      const wrong = unavailable(yield* probed({ TENSORFERRY_XPU_DRIVER: "sycl" }))
      assert.include(wrong.cause, "sycl")
      const foreign = { TENSORFERRY_LEVEL_ZERO: "libc.so.6", TENSORFERRY_XPU_DRIVER: "level-zero" }
      assert.include(unavailable(yield* probed(foreign)).cause, "no function zeInit")
    })
  )

  const needsBoth = lackOf("level-zero") ?? lackOf("opencl")
  describe.skipIf(needsBoth !== undefined)(
    `with both loaders${needsBoth === undefined ? "" : `: ${needsBoth}`}`,
    () => {
      it.live(
        "reports the drivers' own errors where no loader finds a driver, and takes the other driver where only one is missing",
        () =>
          Effect.gen(function* () {
            const answers = [{ ...noLevelZero, ...noOpenCl }, noLevelZero].map(probedApart)
            const [neither, other] = yield* Effect.all(answers, { concurrency: 2 })
            const missing = unavailable(neither!)
            assert.include(missing.cause, "zeInit")
            assert.include(missing.cause, "UNINITIALIZED")
            assert.include(missing.cause, "-1001")
            assert.isTrue(missing.tried.some((file) => file.includes("libze_loader.so")))
            const found = available(other!)
            assert.match(
              found.detail,
              /xpu:0 .* \(cpu\)\. By opencl: Level Zero cannot be used: zeInit.*; OpenCL has a device/
            )
            assert.include(found.detail, "without pinnedHost, hostPointerImport")
          })
      )

      it.live("takes Level Zero where it has a device, OpenCL where it has none or where it is named", () =>
        Effect.gen(function* () {
          resetSimulator("devices=0")
          const none = available(yield* probed({}))
          assert.match(none.detail, /By opencl: Level Zero shows no device; OpenCL has a device/)
          resetSimulator("devices=2 name=Tester")
          const found = available(yield* probed({}))
          assert.include(found.detail, "xpu:1 Tester (gpu)")
          assert.include(found.detail, "By level-zero: Level Zero has a device.")
          assert.include(found.detail, "without inOrderQueues")
          assert.include(found.versions.driver, "Level Zero 1.4")
          const named = available(yield* probed({ TENSORFERRY_XPU_DRIVER: "opencl" }))
          assert.include(named.detail, "By opencl: chosen by name.")
          const file = { TENSORFERRY_LEVEL_ZERO: "/none/libze_loader.so.1" }
          assert.include(available(yield* probed(file)).detail, "By opencl: Level Zero cannot be used")
          assertClean()
        })
      )
    }
  )
})

for (const subject of subjects) {
  describe.skipIf(lackOf(subject) !== undefined)(titleOf(subject), () => {
    it.live("builds the layers that it states, also by the registry, and refuses devices that are not there", () =>
      Effect.gen(function* () {
        if (subject === "level-zero") resetSimulator()
        const options = optionsOf(subject)
        yield* Effect.gen(function* () {
          const engine = yield* TensorEngine
          assert.deepStrictEqual(engine.capabilities, descriptor.capabilities.tensorEngine)
          assert.deepStrictEqual(engine.deviceFamilies, descriptor.deviceFamilies)
        }).pipe(Effect.provide(descriptor.tensorEngine!(options)))
        const built = (device: string) =>
          ReplayTransferBackend.use((replay) => replay.attributes).pipe(
            Effect.provide(
              replayTransfer({ device, ringDepth: 2, options }).pipe(Layer.provide(registryLayer(descriptors)))
            )
          )
        assert.strictEqual((yield* built("xpu:0")).h2dSubmitter, "xpu_copy_stream")
        const { reason } = yield* Effect.flip(built("xpu:7"))
        assert.strictEqual(reason._tag, "Unavailable")
        assert.include(reason.detail, "xpu:7")
        if (subject === "level-zero") assertClean()
      })
    )
  })
}
