// SPDX-License-Identifier: Apache-2.0
/**
 * The backend over UCX: tensors by remote writes or messages.
 */
import * as CopyDriver from "./CopyDriver.ts"

export { descriptor, descriptors } from "./descriptor.ts"
export { UcxOptions } from "./options.ts"

export {
  /** The driver between hosts: host memory over the transports of UCX. */
  CopyDriver
}
