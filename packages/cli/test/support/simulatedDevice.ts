// SPDX-License-Identifier: Apache-2.0
/** The environment in which the command finds a simulated GPU instead of the vendor's libraries, and what it wrote there. */
import { readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { gpuSimulator } from "@tensorferry/simulators/libraries"

/** Variables for `run`; `settings` as gpu/simulator_control.h has them, as `memory=1000000`. */
export const simulated = (settings = "devices=1"): NodeJS.ProcessEnv => ({
  TENSORFERRY_CUDA_RUNTIME: gpuSimulator,
  TENSORFERRY_CUDA_DRIVER: gpuSimulator,
  TENSORFERRY_CUDA_NVRTC: gpuSimulator,
  TENSORFERRY_NCCL: gpuSimulator,
  TENSORFERRY_GPU_SIMULATOR: `pace=1 ${settings}`
})

/** Contents of all files of a folder, by name. */
export const contentsOf = (folder: string): { readonly [name: string]: string } =>
  Object.fromEntries(readdirSync(folder).map((name) => [name, readFileSync(join(folder, name)).toString("base64")]))
