// SPDX-License-Identifier: Apache-2.0
/**
 * What the parts of one driver share.
 */
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import type { Gpu } from "@tensorferry/gpu/Gpu"
import type { DriverAgreement } from "@tensorferry/native/driver/DriverAgreement"
import type { DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import type { Addon, NativeLibrary } from "./Addon.ts"
import type { NvshmemOptions } from "./options.ts"

/** Made once for each driver. */
export interface DriverParts {
  readonly addon: Addon
  readonly library: NativeLibrary
  readonly gpu: Gpu
  readonly group: ProcessGroupShape
  readonly options: NvshmemOptions
  readonly errors: DriverErrors
  readonly agreement: DriverAgreement
}
