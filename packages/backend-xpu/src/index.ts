// SPDX-License-Identifier: Apache-2.0
/**
 * Intel devices: an engine that copies, and replay slots. By Level Zero, or by OpenCL where Level Zero has no device.
 */
export { descriptor, descriptors } from "./descriptor.ts"
export { XpuOptions } from "./options.ts"
export * as ReplayDevice from "./ReplayDevice.ts"
export * as TensorEngine from "./TensorEngine.ts"
