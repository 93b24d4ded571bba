/** Backend over NVSHMEM. This version describes it and probes for its library; it moves nothing yet. */
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { plannedBackend } from "@tensorferry/core/backend/PlannedBackend"

export const descriptors: ReadonlyArray<BackendDescriptor> = [
  plannedBackend({
    name: "nvshmem",
    deviceFamilies: ["cuda"],
    libraries: [
      { purpose: "CUDA driver", fileNames: ["libcuda.so.1"] },
      { purpose: "NVSHMEM", fileNames: ["libnvshmem_host.so.3"] }
    ],
    folders: ["/usr/local/cuda/lib64"]
  })
]
