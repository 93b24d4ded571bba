// SPDX-License-Identifier: Apache-2.0
/** The other tests again, with an addon that finds misuse of memory and races between threads. */
import { describeSanitized } from "@tensorferry/simulators/sanitized"
import { packageFolder } from "../src/Addon.ts"

describeSanitized({
  packageFolder,
  prebuild: "@TENSORFERRY/BACKEND_TORCH_COPY_PREBUILD",
  files: ["Addon", "CopyDriver", "HostMemory", "Kernels", "Tcp", "TensorEngine"],
  oneThread: ["HostMemory", "Kernels"],
  sanitizers: ["address", "thread"]
})
