// SPDX-License-Identifier: Apache-2.0
/**
 * The embedded host backend: memory that processes of one host share, and everything that moves bytes in it.
 */
import * as CopyDriver from "./CopyDriver.ts"
import * as HostMemory from "./HostMemory.ts"
import * as ReplayDevice from "./ReplayDevice.ts"
import * as TensorEngine from "./TensorEngine.ts"

export { descriptor, descriptors } from "./descriptor.ts"
export { TorchCopyOptions } from "./options.ts"

export {
  /** The driver within a host: one copy per byte, by memory that processes map from each other. */
  CopyDriver,
  /** `HostMemory` over memory files: small storages share files of 16 MiB, large ones have one each. */
  HostMemory,
  /** Replay copies by a `TensorEngine`, off the JS thread. */
  ReplayDevice,
  /** `TensorEngine` for host memory. */
  TensorEngine
}
