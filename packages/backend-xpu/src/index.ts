/** Backend for Intel GPUs. This version describes it and probes for its libraries; it moves nothing yet. */
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { plannedBackend } from "@tensorferry/core/backend/PlannedBackend"

export const descriptors: ReadonlyArray<BackendDescriptor> = [
  plannedBackend({
    name: "xpu",
    deviceFamilies: ["xpu"],
    libraries: [
      { purpose: "Level Zero loader", fileNames: ["libze_loader.so.1"] },
      { purpose: "OpenCL loader", fileNames: ["libOpenCL.so.1"] }
    ]
  })
]
