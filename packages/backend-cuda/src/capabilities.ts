/** What the engine and the drivers of this package can do, apart from them so that the descriptor need not import them. */
import type { CopyDriverCapabilities } from "@tensorferry/core/service/CopyDriver"
import type { TensorEngineCapabilities } from "@tensorferry/core/service/TensorEngine"

export const tensorEngineCapabilities: TensorEngineCapabilities = {
  cast: true,
  reduce: true,
  quantize: ["mxfp8"],
  hostVisible: false
}

export const copyDriverCapabilities: CopyDriverCapabilities = {
  gather: true,
  requiresProcessGroupBarrier: true,
  requiresTaskId: false,
  deviceFamilies: ["cuda", "rocm"],
  maxMessageBytes: Number.MAX_SAFE_INTEGER
}
