// SPDX-License-Identifier: Apache-2.0
/**
 * Where the simulated drivers lie: one name for each library, and for the addons that control them.
 */
import { createRequire } from "node:module"
import { join } from "node:path"
import { fileURLToPath } from "node:url"

/** The folder of this package, with its CMakeLists. */
export const packageFolder = fileURLToPath(new URL("..", import.meta.url))

/** The build in use; tests under sanitizers name another. */
const buildFolder = process.env.TENSORFERRY_SIMULATORS_BUILD ?? join(packageFolder, "build")

/** Takes the place of the CUDA run time and driver, NVRTC and NCCL; of HIP under its own names. */
export const gpuSimulator = join(buildFolder, "gpu/libtensorferry_gpu_simulator.so")

/** The simulated GPU driver with NVSHMEM in it; takes the place of all. */
export const nvshmemSimulator = join(buildFolder, "nvshmem/libtensorferry_nvshmem_simulator.so")

/** A driver for the Level Zero loader. */
export const levelZeroSimulator = join(buildFolder, "level-zero/libtensorferry_level_zero_simulator.so")

/** The program of `network/slow_wire.cc`. */
export const slowWire = join(buildFolder, "slow_wire")

/** The addon by which tests control a family's simulated driver. */
export const loadControl = (family: "gpu" | "level_zero"): unknown =>
  createRequire(import.meta.url)(join(buildFolder, `Release/${family}_simulator_control.node`))
