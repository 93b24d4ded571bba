// SPDX-License-Identifier: Apache-2.0
/** What the engine can do, apart from it so that descriptors need not import it. */
import type { TensorEngineCapabilities } from "@tensorferry/core/service/TensorEngine"
import { quantizedForms } from "@tensorferry/core/tensor/QuantizedTensor"

/** What the engine of this package declares, for devices of either vendor. */
export const tensorEngineCapabilities: TensorEngineCapabilities = {
  cast: true,
  reduce: true,
  quantize: quantizedForms,
  changes: true,
  products: true,
  hostVisible: false
}
