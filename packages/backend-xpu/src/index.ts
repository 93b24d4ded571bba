// SPDX-License-Identifier: Apache-2.0
/**
 * Intel devices: an engine that copies, and replay slots. By Level Zero, or by OpenCL where Level Zero has no device.
 */
import * as ReplayDevice from "./ReplayDevice.ts"
import * as TensorEngine from "./TensorEngine.ts"

export { descriptor, descriptors } from "./descriptor.ts"
export { XpuOptions } from "./options.ts"

export {
  /** Replay slots on one device: copies on a queue of their own, whose events signal when they are done. */
  ReplayDevice,
  /** `TensorEngine` for memory of one device: strided copies and casts, and fills. */
  TensorEngine
}
