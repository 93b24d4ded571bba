// SPDX-License-Identifier: Apache-2.0
/**
 * What the parts of one driver share.
 */
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import type { Sharing } from "@tensorferry/gpu/Block"
import type { DeviceMemory } from "@tensorferry/gpu/DeviceMemory"
import type { Gpu } from "@tensorferry/gpu/Gpu"
import type { DriverErrors } from "@tensorferry/native/driver/DriverErrors"
import type { Connections } from "./Connections.ts"
import type { Mappings } from "./Mappings.ts"
import type { CudaOptions } from "./options.ts"
import type { DriverKind } from "./planning/route.ts"

/** Made once for each driver. */
export interface DriverParts {
  readonly kind: DriverKind
  readonly gpu: Gpu
  readonly memory: DeviceMemory
  readonly group: ProcessGroupShape
  readonly options: CudaOptions
  readonly errors: DriverErrors
  readonly mappings: Mappings
  readonly connections: Connections
  readonly sharing: Sharing
}
