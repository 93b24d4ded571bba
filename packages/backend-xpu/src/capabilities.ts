// SPDX-License-Identifier: Apache-2.0
/** What the engine can do, apart from it so that the descriptor need not import it. */
import type { TensorEngineCapabilities } from "@tensorferry/core/service/TensorEngine"

/** What the engine of XPU memory promises; the conformance kit holds it to each flag. */
export const capabilities: TensorEngineCapabilities = {
  cast: true,
  reduce: false,
  quantize: [],
  changes: false,
  products: false,
  hostVisible: false
}
