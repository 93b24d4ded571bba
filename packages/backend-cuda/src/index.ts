/** Backends for NVIDIA and AMD devices. This version describes them and probes for libraries; it moves nothing yet. */
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import { plannedBackend } from "@tensorferry/core/backend/PlannedBackend"

const cudaRuntime = { purpose: "CUDA driver", fileNames: ["libcuda.so.1"] }
const nccl = { purpose: "NCCL", fileNames: ["libnccl.so.2"] }
const folders = ["/usr/local/cuda/lib64"]

export const descriptors: ReadonlyArray<BackendDescriptor> = [
  plannedBackend({ name: "cuda", deviceFamilies: ["cuda", "rocm"], libraries: [cudaRuntime, nccl], folders }),
  plannedBackend({ name: "cuda-ipc", deviceFamilies: ["cuda", "rocm"], libraries: [cudaRuntime], folders }),
  plannedBackend({ name: "nccl", deviceFamilies: ["cuda", "rocm"], libraries: [cudaRuntime, nccl], folders })
]
