// SPDX-License-Identifier: Apache-2.0
/**
 * The embedded host backend: memory that processes of one host share, and everything that moves bytes in it.
 */
export * as CopyDriver from "./CopyDriver.ts"
export { descriptor, descriptors } from "./descriptor.ts"
export * as HostMemory from "./HostMemory.ts"
export { TorchCopyOptions } from "./options.ts"
export * as ReplayDevice from "./ReplayDevice.ts"
export * as TensorEngine from "./TensorEngine.ts"
