// SPDX-License-Identifier: Apache-2.0
/**
 * The backend between hosts: tensors over many lanes of TCP.
 */
import * as CopyDriver from "./CopyDriver.ts"

export { descriptor, descriptors } from "./descriptor.ts"
export { TcpOptions } from "./options.ts"

export {
  /** The driver between hosts: host memory over many lanes of TCP. */
  CopyDriver
}
