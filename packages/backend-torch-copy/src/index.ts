// SPDX-License-Identifier: Apache-2.0
/**
 * The embedded host backend: memory that processes of one host share, and everything that moves bytes in it.
 */
export * as CopyDriver from "./CopyDriver.ts"
export { descriptor, descriptors } from "./descriptor.ts"
/** `HostMemory` over memory files: small storages share files of 16 MiB, large ones have one each. */
export * as HostMemory from "./HostMemory.ts"
export { TorchCopyOptions } from "./options.ts"
/** Replay copies by a `TensorEngine`, off the JS thread. */
export * as ReplayDevice from "./ReplayDevice.ts"
/** `TensorEngine` for host memory. */
export * as TensorEngine from "./TensorEngine.ts"
