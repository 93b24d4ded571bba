/**
 * Ranks of one process, each with a simulated device of its own: what tests of the engine and the drivers run on.
 */
import { mkdtempSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert } from "@effect/vitest"
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { VirtualClusterOptions } from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { loadAddon } from "../src/Addon.ts"
import * as CudaDriver from "../src/CopyDriver.ts"
import { makeDeviceMemory } from "../src/DeviceMemory.ts"
import { openGpu } from "../src/Gpu.ts"
import type { CudaOptions } from "../src/options.ts"
import type { DriverKind } from "../src/planning/route.ts"
import * as CudaEngine from "../src/TensorEngine.ts"
import { leaks, simulatedLibraries, simulator, violations } from "./simulator.ts"

const kernelCache = mkdtempSync(join(tmpdir(), "tensorferry-kernels-"))

/** Small sizes, so that little data passes through every way; the same on all ranks. */
export const testOptions: CudaOptions = {
  vendor: "cuda",
  libraries: simulatedLibraries,
  kernelCache,
  arenaBytes: 2 ** 20,
  stagingBytes: 2 ** 18,
  directBytes: 2 ** 14,
  copyEngineBytes: 2 ** 15
}

export const kinds: ReadonlyArray<DriverKind> = ["cuda", "cuda-ipc", "nccl"]

/** An engine on a device, with what is behind it. */
export const makeEngine = (options: CudaOptions = {}) =>
  Effect.gen(function* () {
    const all = { ...testOptions, ...options }
    const gpu = yield* openGpu(yield* loadAddon, "test", all)
    const memory = makeDeviceMemory(gpu, { arenaBytes: all.arenaBytes })
    return { gpu, memory, engine: yield* CudaEngine.make(gpu, memory) }
  })

/** Engines for the ranks of a cluster, each on the next device. */
export const engines = (options: CudaOptions = {}): Layer.Layer<TensorEngine, BackendError> => {
  let next = 0
  return Layer.unwrap(Effect.sync(() => CudaEngine.layer({ ...testOptions, ...options, device: next++ })))
}

export const driverOf = (
  kind: DriverKind,
  options: CudaOptions = {}
): Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine> =>
  CudaDriver.layer(kind, { ...testOptions, ...options })

export const clusterOf =
  (kind: DriverKind, options: CudaOptions = {}) =>
  (): Omit<VirtualClusterOptions<BackendError>, "size"> => ({
    engine: engines(options),
    driver: () => driverOf(kind, options)
  })

/** A fresh simulated driver with these settings. */
export const resetSimulator = (settings: string): void => {
  simulator.reset()
  assert.strictEqual(simulator.configure(`pace=1 devices=8 ${settings}`), 0, settings)
}

/** Nothing was objected to and nothing is left. */
export const assertClean = (what = ""): void => {
  assert.deepStrictEqual(violations(), [], `violations ${what}`)
  assert.deepStrictEqual(leaks(), [], `leaks ${what}`)
}
