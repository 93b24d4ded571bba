// SPDX-License-Identifier: Apache-2.0
/**
 * Tensor engines on simulated devices, with the options that suit tests.
 */
import { mkdtempSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { loadAddon } from "@tensorferry/gpu/Addon"
import { makeDeviceMemory } from "@tensorferry/gpu/DeviceMemory"
import { openGpu } from "@tensorferry/gpu/Gpu"
import type { GpuOptions } from "@tensorferry/gpu/options"
import * as GpuEngine from "@tensorferry/gpu/TensorEngine"
import * as Effect from "effect/Effect"
import { simulatedLibraries } from "./gpu.ts"

const kernelCache = mkdtempSync(join(tmpdir(), "tensorferry-kernels-"))

/** Small sizes, so that little data passes through every way. */
export const engineOptions: GpuOptions = {
  vendor: "cuda",
  libraries: simulatedLibraries,
  kernelCache,
  arenaBytes: 2 ** 20,
  copyEngineBytes: 2 ** 15
}

/** An engine on a device, with what is behind it. */
export const makeEngine = (options: GpuOptions = {}) =>
  Effect.gen(function* () {
    const all = { ...engineOptions, ...options }
    const gpu = yield* openGpu(yield* loadAddon, "test", all)
    const memory = makeDeviceMemory(gpu, { arenaBytes: all.arenaBytes })
    return { gpu, memory, engine: yield* GpuEngine.make(gpu, memory) }
  })
