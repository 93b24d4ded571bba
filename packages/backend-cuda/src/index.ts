/**
 * NVIDIA and AMD devices: backends `cuda`, `cuda-ipc` and `nccl`, and the device behind their engine, by which memory of
 * other libraries and processes becomes tensors.
 */
export type { CudaCopyDriver } from "./CopyDriver.ts"
export type { DeviceMemory } from "./DeviceMemory.ts"
export { descriptors } from "./descriptor.ts"
export { type ImportRequest, type MemoryImport, makeMemoryImport } from "./Import.ts"
export type { CudaOptions } from "./options.ts"
export type { RunTimes } from "./RunTimes.ts"
export { deviceOf, type EngineDevice } from "./TensorEngine.ts"
