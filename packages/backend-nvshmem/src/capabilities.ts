// SPDX-License-Identifier: Apache-2.0
/** What the driver can do, apart from it so that the descriptor need not import it. */
import type { CopyDriverCapabilities } from "@tensorferry/core/service/CopyDriver"

export const copyDriverCapabilities: CopyDriverCapabilities = {
  gather: true,
  requiresProcessGroupBarrier: false,
  requiresTaskId: true,
  deviceFamilies: ["cuda"],
  maxMessageBytes: Number.MAX_SAFE_INTEGER
}
