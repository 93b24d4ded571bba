// SPDX-License-Identifier: Apache-2.0
/**
 * The backend between hosts: tensors over many lanes of TCP.
 */
export * as CopyDriver from "./CopyDriver.ts"
export { descriptor, descriptors } from "./descriptor.ts"
export { TcpOptions } from "./options.ts"
