// SPDX-License-Identifier: Apache-2.0
/** What the drivers of this package can do, apart from them so that the descriptor need not import them. */
import type { CopyDriverCapabilities } from "@tensorferry/core/service/CopyDriver"
import type { DriverKind } from "./planning/route.ts"

/** Collectives take both ends of a pair at once, and are out of step after a cancel. */
export const copyDriverCapabilitiesOf = (kind: DriverKind): CopyDriverCapabilities => ({
  gather: true,
  requiresProcessGroupBarrier: true,
  requiresTaskId: false,
  deviceFamilies: ["cuda", "rocm"],
  maxMessageBytes: Number.MAX_SAFE_INTEGER,
  pairwise: kind !== "nccl"
})
