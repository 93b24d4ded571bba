// SPDX-License-Identifier: Apache-2.0
/** What drivers over wires can do, apart from them so that descriptors need not import them. */
import type { CopyDriverCapabilities } from "@tensorferry/core/service/CopyDriver"

/** What a driver over a wire promises; the conformance kit holds it to each flag. */
export const wireCapabilities: CopyDriverCapabilities = {
  gather: true,
  requiresProcessGroupBarrier: false,
  requiresTaskId: false,
  deviceFamilies: ["cpu"],
  maxMessageBytes: Number.MAX_SAFE_INTEGER,
  pairwise: true
}
