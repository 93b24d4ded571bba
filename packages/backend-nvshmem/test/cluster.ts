// SPDX-License-Identifier: Apache-2.0
/**
 * Ranks of one process, each a PE with a simulated device of its own: what tests of the driver run on.
 */
import { mkdtempSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert } from "@effect/vitest"
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as CudaEngine from "@tensorferry/gpu/TensorEngine"
import type { VirtualClusterOptions } from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as NvshmemDriver from "../src/CopyDriver.ts"
import { forgetAll } from "../src/LibraryState.ts"
import { deviceOptions, type NvshmemOptions, type PathPreference } from "../src/options.ts"
import { leaks, simulator, simulatorPath, violations } from "./simulator.ts"

/** Small sizes, so that little data passes through many slots; the same on all ranks. */
export const testOptions: NvshmemOptions = {
  libraries: { runtime: simulatorPath, driver: simulatorPath, compiler: simulatorPath, nvshmem: simulatorPath },
  kernelCache: mkdtempSync(join(tmpdir(), "tensorferry-kernels-")),
  arenaBytes: 2 ** 20,
  slotBytes: 2 ** 14,
  slots: 2,
  copyEngineBytes: 2 ** 12
}

export const paths: ReadonlyArray<PathPreference> = ["direct", "put"]

/** Engines for the ranks of a cluster, each on the next device. */
export const engines = (options: NvshmemOptions = {}): Layer.Layer<TensorEngine, BackendError> => {
  let next = 0
  return Layer.unwrap(
    Effect.sync(() => CudaEngine.layer(deviceOptions({ ...testOptions, ...options, device: next++ }), "nvshmem"))
  )
}

export const driverOf = (
  options: NvshmemOptions = {}
): Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine> =>
  NvshmemDriver.layer({ ...testOptions, ...options })

export const clusterOf =
  (options: NvshmemOptions = {}) =>
  (): Omit<VirtualClusterOptions<BackendError>, "size"> => ({
    engine: engines(options),
    driver: () => driverOf(options)
  })

/** A fresh simulated driver with these settings. */
export const resetSimulator = (settings: string): void => {
  simulator.reset()
  forgetAll()
  assert.strictEqual(simulator.configure(`pace=1 devices=8 ${settings}`), 0, settings)
}

/** Nothing was objected to and nothing is left. */
export const assertClean = (what = ""): void => {
  assert.deepStrictEqual(violations(), [], `violations ${what}`)
  assert.deepStrictEqual(leaks(), [], `leaks ${what}`)
}
