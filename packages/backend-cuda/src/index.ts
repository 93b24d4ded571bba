// SPDX-License-Identifier: Apache-2.0
/**
 * NVIDIA and AMD devices: backends `cuda`, `cuda-ipc` and `nccl`, and the device behind their engine, by which memory of
 * other libraries and processes becomes tensors.
 */

export type { DeviceMemory } from "@tensorferry/gpu/DeviceMemory"
export { type ImportRequest, type MemoryImport, makeMemoryImport } from "@tensorferry/gpu/Import"
export type { RunTimes } from "@tensorferry/gpu/RunTimes"
export { deviceOf, type EngineDevice } from "@tensorferry/gpu/TensorEngine"
export type { CudaCopyDriver } from "./CopyDriver.ts"
export { descriptors } from "./descriptor.ts"
export type { CudaOptions } from "./options.ts"
