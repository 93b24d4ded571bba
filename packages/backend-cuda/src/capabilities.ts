// SPDX-License-Identifier: Apache-2.0
/** What the drivers of this package can do, apart from them so that the descriptor need not import them. */
import type { CopyDriverCapabilities } from "@tensorferry/core/service/CopyDriver"

export const copyDriverCapabilities: CopyDriverCapabilities = {
  gather: true,
  requiresProcessGroupBarrier: true,
  requiresTaskId: false,
  deviceFamilies: ["cuda", "rocm"],
  maxMessageBytes: Number.MAX_SAFE_INTEGER
}
