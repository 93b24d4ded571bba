// SPDX-License-Identifier: Apache-2.0
/** Backend `nvshmem`: one-sided transfers between devices of NVIDIA, on one machine and beyond. */
export { type NvshmemCopyDriver, nvshmemOf } from "./CopyDriver.ts"
export { descriptors } from "./descriptor.ts"
export type { NvshmemOptions } from "./options.ts"
